#!/usr/bin/env bats
# save-vm.sh as a whole: a template of a copy of a VM, or of the VM itself.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031,SC2312
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

build=77777777-2222-4333-8444-555555555555

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  add_ready_vm
  export VM_ID=250 TEMPLATE_NAME=setup LINUS_BUILD=${build} SAVED_BY=ann VM_ID_RANGE=260-299
  unset SAVE_MODE
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:aa:aa:aa","ip-addresses":[]}'
  printf '{"exitcode":0,"exited":1,"out-data":"linus-clean done|/root/.netrc (may hold credentials)|/root/work"}' >"${PVE_STUB}/guest/clean"
  answer /nodes/pve/tasks '[]'
  answer /nodes/pve/qemu/250/feature '{"hasFeature":1,"nodes":["pve"]}'
}

add_ready_vm() {
  add_vm 250 "#linus-job=${job} linus-owner=${owner} linus-vm=250" 'boot: order=scsi0' "name: ${VM_NAME}" 'scsi0: local-lvm:vm-250-disk-0,size=10G' \
    'scsi1: local-lvm:vm-250-cloudinit,media=cdrom' 'tags: linus' 'ciuser: debian' 'cores: 2' 'memory: 2048' 'agent: enabled=1' \
    'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' 'net1: virtio=BC:24:11:AA:AA:AB,bridge=vmbr0,link_down=1' 'ipconfig0: ip=10.0.0.7/24' 'sshkeys: ssh-ed25519%20AAAA'
}

save() {
  run_script save-vm "$@"
}

read_copy() { # id: the VM's that is not the stub's own; empty: there is none
  local file
  id=''
  for file in "${PVE_STUB}"/vm/*; do
    [[ ${file##*/} == @(101|250|9000) ]] || id=${file##*/}
  done
}

assert_no_copy() {
  read_copy
  [[ -z ${id} ]] || fail "left: VM ${id}" "$(<"${PVE_STUB}/vm/${id}")"
  assert_nothing_left
  assert_foreign_untouched
}

refute_changed() {
  refute_called 'qm \(clone\|set\|start\|stop\|shutdown\|template\|destroy\) .*'
  [[ $(<"${PVE_STUB}/status/250") == running ]] || fail 'VM 250 does not run any more'
}

@test "a copy becomes the template: unheard of, cleaned, off, with our mark and where it came from; the VM goes on" {
  local -r before=$(<"${PVE_STUB}/vm/250")
  save
  assert_status 0
  read_copy
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_TEMPLATE_NAME:setup
  assert_line LINUS_SAVED:copy
  assert_line "LINUS_VM_ID:${id}"
  assert_line 'LINUS_LEFT:/root/.netrc (may hold credentials)'
  assert_line 'LINUS_LEFT:/root/work'
  assert_says 'LINUS_STEP:8/8:output_result:'
  assert_called "qm clone 250 ${id} --name setup --description linus-job=${build} linus-owner=${owner} linus-vm=${id} linus-state=cloning"
  local config
  config=$(<"${PVE_STUB}/vm/${id}")
  grep -qE "^#linus-job=${build} linus-owner=${owner} linus-vm=${id} linus-template=1 linus-saved=${job} linus-from=${VM_NAME} linus-before=agent-template linus-by=ann linus-at=[0-9]+\$" <<<"${config}" || fail 'no mark' "${config}"
  [[ ${config} != *sshkeys* ]] || fail 'the key stays'
  grep -qx 'template: 1' <<<"${config}"
  grep -qx 'ipconfig0: ip=dhcp' <<<"${config}"
  grep -qx 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' <<<"${config}"
  grep -qx 'net1: virtio=BC:24:11:AA:AA:AB,bridge=vmbr0,link_down=1' <<<"${config}"
  [[ $(<"${PVE_STUB}/vm/250") == "${before}" && $(<"${PVE_STUB}/status/250") == running ]] || fail 'VM 250 is another'
  # In this order, and started with no link.
  grep -q "^qm set ${id} --description linus-job=.* --net0 virtio=BC:24:11:AA:AA:AA,bridge=vmbr0,link_down=1" "${PVE_STUB}/calls" || fail 'its link was up'
  local order
  order=$(grep -oE "^qm (clone|start|guest exec|set|shutdown|template)" "${PVE_STUB}/calls" | tr '\n' ,)
  [[ ${order} == 'qm clone,qm set,qm start,qm guest exec,qm guest exec,qm shutdown,qm set,qm template,' ]] || fail "another order: ${order}"
  sh -n "${PVE_STUB}/guest/program"
  assert_nothing_left
  assert_foreign_untouched
}

@test "in place the VM itself becomes the template, by another job's mark" {
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf 'none %s %s pve local-lvm 1 %s 1 1 99999999 99999999999\n' "${VM_NAME}" "${owner}" "$(</proc/sys/kernel/random/boot_id)" >"${LINUS_HOST_DIR}/leases/250-${job}"
  SAVE_MODE=in-place save
  assert_status 0
  assert_line LINUS_SAVED:in-place
  assert_line LINUS_VM_ID:250
  refute_called 'qm clone .*'
  local config
  config=$(<"${PVE_STUB}/vm/250")
  grep -qE "^#linus-job=${build} linus-owner=${owner} linus-vm=250 linus-template=1 linus-saved=${job} " <<<"${config}" || fail 'no mark' "${config}"
  grep -qx 'name: setup' <<<"${config}"
  grep -qx 'template: 1' <<<"${config}"
  [[ ${config} != *sshkeys* ]] || fail 'the key stays'
  assert_nothing_left # also no lease
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:foreign
  [[ $(<"${PVE_STUB}/vm/250") == "${config}" ]] || fail 'the template was touched as the VM that it was'
  : >"${PVE_STUB}/calls"
  SAVE_MODE=in-place save
  assert_status 0
  assert_line LINUS_VM_ID:250
  refute_called 'qm .*'
}

@test "in place, what a run left that was killed after any step is gone on with" {
  local verb
  export SAVE_MODE=in-place
  for verb in guest-exec shutdown set-1 template set-2; do
    rm -f "${PVE_STUB}"/hook-*
    # shellcheck disable=SC2016 # the hook's own variables
    case ${verb} in
      set-1) hook after-set '[[ "$*" == *--name* ]] || kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
      set-2) hook after-set '[[ "$*" != *--name* ]] || kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
      *) hook "after-${verb}" 'kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
    esac
    status=0
    # shellcheck disable=SC2016 # the inner shell's own variables
    bash -c 'echo $$ >"${PVE_STUB}/script.pid"; exec bash "$1"' bash "${host_scripts}/save-vm.sh" >/dev/null 2>&1 3>&- || status=$?
    [[ ${status} -eq 137 ]] || fail "was not killed at ${verb}"
    rm -f "${PVE_STUB}"/hook-* "${LINUS_LOCK_DIR}"/linus-vm-*
    save
    assert_status 0
    grep -qx 'name: setup' "${PVE_STUB}/vm/250" || fail "killed at ${verb}: no template"
    add_ready_vm
  done
}

@test "a copy whose run fails at any step, or lies, is destroyed, and the VM goes on" {
  local verb
  for verb in clone set start guest-exec shutdown set-2 template; do
    rm -f "${PVE_STUB}/calls"
    case ${verb} in
      guest-exec) echo '{"exitcode":1,"exited":1,"out-data":"it is still there"}' >"${PVE_STUB}/guest/clean" ;;
      set-2)
        fault set 0 'do' ''
        fault set 0 skip ''
        ;;
      template) fault "${verb}" 0 skip 'command lvrename failed: exit code 5' ;;
      *) fault "${verb}" 255 skip 'it does not work' ;;
    esac
    save
    assert_status 5
    assert_no_copy
    [[ $(<"${PVE_STUB}/status/250") == running ]] || fail "failed at ${verb}: VM 250 does not run"
    printf '{"exitcode":0,"exited":1,"out-data":"linus-clean done"}' >"${PVE_STUB}/guest/clean"
  done
}

@test "in place, a step that fails destroys nothing, and says what has become of the VM" {
  local verb
  export SAVE_MODE=in-place
  for verb in guest-exec shutdown template; do
    case ${verb} in
      guest-exec) echo '{"exitcode":1,"exited":1,"out-data":"no"}' >"${PVE_STUB}/guest/clean" ;;
      template)
        # shellcheck disable=SC2016 # the hook's own variables
        hook template 'echo "template: 1" >>"${PVE_STUB}/vm/$2"'
        fault "${verb}" 0 skip 'command lvrename failed: exit code 5'
        ;;
      *) fault "${verb}" 255 skip 'it does not work' ;;
    esac
    save
    assert_status 5
    assert_says "LINUS_WARNING:VM 250 (${VM_NAME}) on node 'pve' is no template"
    refute_called 'qm destroy .*'
    grep -qx "name: ${VM_NAME}" "${PVE_STUB}/vm/250"
    rm -f "${PVE_STUB}"/hook-*
    printf '{"exitcode":0,"exited":1,"out-data":"linus-clean done"}' >"${PVE_STUB}/guest/clean"
  done
  assert_called 'qm set 250 --template 0'
}

@test "a copy whose name another run has taken meanwhile is destroyed" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone 'printf "name: setup\ntags: linus\n" >"${PVE_STUB}/vm/555"; echo stopped >"${PVE_STUB}/status/555"'
  save
  assert_status 5
  assert_says "VM already exists: 'setup' is VM 555"
  rm "${PVE_STUB}/vm/555" "${PVE_STUB}/status/555"
  assert_no_copy
}

@test "a copy that has its name goes on when another run takes it, too: that one sees this one's" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook after-start 'printf "name: setup\ntags: linus\n" >"${PVE_STUB}/vm/555"; echo stopped >"${PVE_STUB}/status/555"'
  save
  assert_status 0
}

@test "in place, a name that another run takes meanwhile ends it: before anything is cleaned, and before it becomes a template" {
  # shellcheck disable=SC2016 # the hook's own variables
  local -r taken='printf "name: setup\ntags: linus\n" >"${PVE_STUB}/vm/555"; echo stopped >"${PVE_STUB}/status/555"'
  export SAVE_MODE=in-place
  change_during after-guest-exec 1 "${taken}"
  save
  assert_status 5
  assert_says "VM already exists: 'setup' is VM 555"
  assert_line LINUS_VM_OUTCOME:exists
  refute_called 'qm guest exec .*linus-clean.*'
  refute_changed
  rm "${PVE_STUB}"/hook-* "${PVE_STUB}/vm/555"
  hook after-shutdown "${taken}"
  save
  assert_status 5
  assert_says "VM already exists: 'setup' is VM 555"
  assert_says "LINUS_WARNING:VM 250 (${VM_NAME}) on node 'pve' is no template"
  refute_called 'qm \(set\|template\|destroy\) .*'
  grep -qx "name: ${VM_NAME}" "${PVE_STUB}/vm/250"
}

@test "what changes hands before it is cleaned is not cleaned" {
  take_during after-start 1
  save
  assert_status 5
  assert_called 'qm start .*'
  refute_called 'qm guest exec .*linus-clean.*'
  rm "${PVE_STUB}"/hook-*
  : >"${PVE_STUB}/calls"
  take_during after-guest-exec 1 250
  TEMPLATE_NAME=setup2 SAVE_MODE=in-place save
  assert_status 5
  assert_says 'refused to save VM 250'
  refute_called 'qm guest exec .*linus-clean.*'
  refute_called 'qm \(shutdown\|template\) .*'
}

@test "a copy that does not read back as it was set is not started" {
  local line
  for line in 's/^net0: .*/net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0/' 's/^ipconfig0: .*/ipconfig0: ip=10.0.0.7\/24/' 's/^#.*/& linus-state=cloning/'; do
    rm -f "${PVE_STUB}"/hook-*
    # shellcheck disable=SC2016 # the hook's own variables
    change_during after-set 1 'sed -i "'"${line}"'" "${PVE_STUB}/vm/$2"'
    save
    assert_status 5
    assert_says 'the copy, could not be taken down'
    refute_called 'qm start .*'
    assert_no_copy
  done
}

@test "a copy whose run was killed is destroyed when its lease is over" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook after-start 'kill -KILL "$(<"${PVE_STUB}/script.pid")"'
  status=0
  # shellcheck disable=SC2016 # the inner shell's own variables
  bash -c 'echo $$ >"${PVE_STUB}/script.pid"; exec bash "$1"' bash "${host_scripts}/save-vm.sh" >/dev/null 2>&1 3>&- || status=$?
  [[ ${status} -eq 137 ]] || fail 'was not killed'
  rm -f "${PVE_STUB}"/hook-* "${LINUS_LOCK_DIR}"/linus-vm-*
  read_copy
  [[ -n ${id} ]]
  sed -i -E 's/[0-9]+ [0-9]+$/1 1/' "${LINUS_HOST_DIR}/leases/${id}-${build}"
  run_script list-vms
  assert_status 0
  assert_no_copy
}

@test "what does not prove, is not ready, cannot be copied or has a name that is taken is left as it is" {
  local line
  LINUS_JOB=${build} save
  assert_status 5
  assert_says "does not carry linus-job=${build}"
  VM_ID=101 save
  assert_status 5
  TEMPLATE_NAME=agent-template save
  assert_status 5
  assert_line LINUS_VM_OUTCOME:exists
  TEMPLATE_NAME='no such' save
  assert_status 1
  SAVE_MODE=both save
  assert_status 1
  LINUS_BUILD=x save
  assert_status 1
  for line in 'hostpci0: 0000:01:00.0' 'lock: backup' 'scsi2: local-lvm:vm-999-disk-0,size=5G'; do
    echo "${line}" >>"${PVE_STUB}/vm/250"
    save
    [[ ${status} == @(3|5) ]] || fail "with ${line}"
    assert_says LINUS_REMEDY
    sed -i '$d' "${PVE_STUB}/vm/250"
  done
  answer /nodes/pve/qemu/250/feature '{"hasFeature":0,"nodes":["pve"]}'
  save
  assert_status 3
  assert_says 'cannot copy its disks'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":12884901888,"type":"lvmthin"}'
  save
  assert_status 3
  assert_says '5 GiB are to stay free beside 10240 MiB of the copy'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":107374182400,"type":"lvm"}'
  save
  assert_status 3
  assert_says 'takes no templates'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":107374182400,"type":"lvmthin"}'
  printf '[clean]\nsnaptime: 1700000000\n' >>"${PVE_STUB}/vm/250"
  SAVE_MODE=in-place save
  assert_status 3
  assert_says 'has snapshots'
  refute_changed
  assert_no_copy
}

@test "a guest agent that stays silent ends it" {
  echo '{}' >"${PVE_STUB}/guest/cloud-init"
  VM_READY_TIMEOUT=1 save
  assert_status 6
  assert_no_copy
  SAVE_MODE=in-place VM_READY_TIMEOUT=1 save
  assert_status 6
  [[ $(<"${PVE_STUB}/status/250") == running ]] || fail 'VM 250 does not run any more'
}

@test "its dry run changes nothing" {
  save --dry-run
  assert_status 0
  assert_says 'LINUS_PLAN:qm clone 250 2'
  assert_says 'LINUS_PLAN:qm template 2'
  SAVE_MODE=in-place save --dry-run
  assert_status 0
  assert_says 'LINUS_PLAN:qm template 250'
  refute_changed
}

@test "the list of templates tells where it came from, and it is removed like another" {
  save
  read_copy
  answer /nodes/pve/qemu "[{\"vmid\":${id},\"name\":\"setup\",\"status\":\"stopped\",\"template\":1,\"tags\":\"linus\"}]"
  VM_KIND=template run_script list-vms
  assert_status 0
  assert_says "LINUS_VM:id=${id} node=pve name=setup status=stopped job=${build} owner=${owner} from=${VM_NAME} before=agent-template by=ann at="
  VM_ID=${id} VM_NAME=setup LINUS_JOB=${build} VM_KIND=template run_script destroy-vm
  assert_status 0
  assert_no_copy
}

@test "the program cleans a guest, and tells what it leaves" {
  save
  local -r root=${BATS_TEST_TMPDIR}/guest
  mkdir -p "${root}"/{root/.ssh,root/.claude,home/ann/.ssh,home/ann/.docker,home/ann/work,etc/ssh,opt/job-runner/x,var/lib/linus/jobs,var/lib/dhcpcd,var/lib/snapd/device/private-keys-v1,etc/nvme,etc/iscsi,var/log/journal/x,tmp,var/tmp,etc/skel,bin}
  touch "${root}"/{root/.bash_history,root/.claude/.credentials.json,root/.ssh/id_ed25519,home/ann/.ssh/authorized_keys,home/ann/.python_history} \
    "${root}"/{home/ann/.docker/config.json,home/ann/work/a,home/ann/.bashrc,etc/skel/.bashrc,etc/ssh/ssh_host_rsa_key,var/log/journal/x/y,tmp/t,var/log/auth.log.1,var/lib/dhcpcd/duid,etc/nvme/hostnqn,etc/iscsi/initiatorname.iscsi,etc/krb5.keytab}
  printf '#!/bin/sh\necho "ann:x:1000:1000::%s/home/ann:/bin/sh"\n' "${root}" >"${root}/bin/getent"
  # A first boot's machine ID is held in a mount, which cloud-init fails at.
  mkdir -p "${root}/proc/self"
  echo "tmpfs ${root}/etc/machine-id tmpfs ro 0 0" >"${root}/proc/self/mounts"
  printf '#!/bin/sh\n[ "$*" = "-l %s/etc/machine-id" ] && : >%s/proc/self/mounts\n' "${root}" "${root}" >"${root}/bin/umount"
  printf '#!/bin/sh\necho "cloud-init $*" >&2\n[ ! -s %s/proc/self/mounts ] && rm %s/etc/machine-id\n' "${root}" "${root}" >"${root}/bin/cloud-init"
  echo 0123456789abcdef0123456789abcdef >"${root}/etc/machine-id"
  printf '#!/bin/sh\nexit 1\n' >"${root}/bin/fstrim"
  printf '#!/bin/sh\ncp -a %s/etc %s/synced\n' "${root}" "${root}" >"${root}/bin/sync"
  printf '#!/bin/sh\nexit 0\n' | tee "${root}/bin/apt-get" >"${root}/bin/dnf"
  chmod +x "${root}"/bin/*
  sed -E "s#(^|[ \"=])/(root|home|etc|opt|var|run|tmp|proc/self/mounts)#\\1${root}/\\2#g" "${PVE_STUB}/guest/program" >"${root}/program"
  run env PATH="${root}/bin:${PATH}" sh "${root}/program" ann
  # shellcheck disable=SC2154 # run sets it
  [[ ${status} -eq 0 ]] || fail "${output}"
  [[ ${output} == *"linus-clean done|${root}/home/ann/.docker/config.json (may hold credentials)|${root}/etc/krb5.keytab (may hold credentials)|${root}/var/lib/snapd/device/private-keys-v1 (may hold credentials)|what was deleted, in free blocks"* ]] || fail "${output}"
  [[ ${output} == *"|${root}/home/ann/work"* && ${output} != *.bashrc* ]] || fail "${output}"
  local gone
  for gone in root/.bash_history root/.claude/.credentials.json root/.ssh home/ann/.ssh home/ann/.python_history etc/ssh/ssh_host_rsa_key opt/job-runner var/lib/linus \
    var/log/journal/x tmp/t var/log/auth.log.1 var/lib/dhcpcd/duid etc/nvme/hostnqn; do
    [[ ! -e ${root}/${gone} ]] || fail "${gone} is there"
  done
  [[ ! -s ${root}/etc/iscsi/initiatorname.iscsi || $(<"${root}/etc/iscsi/initiatorname.iscsi") == GenerateName=yes ]] || fail 'it is known by its old name'
  [[ -e ${root}/home/ann/work/a && -e ${root}/home/ann/.bashrc ]]
  [[ -e ${root}/etc/machine-id && ! -s ${root}/etc/machine-id ]] || fail 'a clone whose root is mounted read-only first would have no machine ID'
  diff -r "${root}/etc" "${root}/synced" || fail 'what it has done is not on the disk'
}
