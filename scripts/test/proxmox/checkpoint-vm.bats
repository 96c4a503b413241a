#!/usr/bin/env bats
# checkpoint-vm.sh as a whole, and what is made of a checkpoint: create-vm.sh with
# VM_CHECKPOINT, its destroy, its list, the sweep.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031,SC2312
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

job2=22222222-2222-4333-8444-555555555555

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
  export VM_ID=250
  answer /nodes/pve/tasks '[]'
  kept=${LINUS_HOST_DIR}/checkpoints/250
}

add_ready_vm() {
  add_vm 250 "#linus-job=${job} linus-owner=${owner} linus-vm=250" 'boot: order=scsi0' "name: ${VM_NAME}" 'scsi0: local-lvm:vm-250-disk-0,size=10G' \
    'tags: linus' 'ciuser: debian' 'cores: 2' 'memory: 2048' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' 'ipconfig0: ip=10.0.0.7/24' \
    'sshkeys: ssh-ed25519%20AAAA' 'smbios1: uuid=0d3a4f63-0d3a-4f63-8d7f-e9f4f35f1b2a' 'meta: creation-qemu=8.1.5,ctime=1700000000'
}

save() {
  run_script checkpoint-vm "$@"
}

# A VM of its own, restored from 250.
restore() { # [<argument...>]
  VM_NAME=restored LINUS_JOB=${job2} VM_CHECKPOINT=250 run_script create-vm "$@"
}

assert_no_checkpoint() {
  local left
  left=$(find "${LINUS_HOST_DIR}/checkpoints" -type f 2>/dev/null) || :
  [[ -z ${left} ]] || fail "left behind: ${left}"
}

refute_changed() {
  refute_called 'qm \(set\|suspend\|template\|destroy\|stop\|unlock\) .*'
  [[ $(<"${PVE_STUB}/status/250") == running ]] || fail 'VM 250 does not run any more'
}

@test "a VM that is ready becomes a checkpoint: its memory lies here, and it is a template" {
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf 'none %s %s pve local-lvm 1 %s 1 1 99999999 99999999999\n' "${VM_NAME}" "${owner}" "$(</proc/sys/kernel/random/boot_id)" \
    >"${LINUS_HOST_DIR}/leases/250-${job}"
  save
  assert_status 0
  assert_line LINUS_CHECKPOINT_ID:250
  assert_line LINUS_CHECKPOINT_TEMPLATE:9000
  assert_line LINUS_CHECKPOINT_GENERATION:6c4b7a52-0d3a-4f63-8d7f-e9f4f35f1b2a.1700000000
  assert_line LINUS_CHECKPOINT_MACHINE:pc-i440fx-10.1+pve0
  assert_line LINUS_CHECKPOINT_CPU:host
  assert_says 'LINUS_CHECKPOINT_HOST:QEMU emulator version 8.1.5 (pve-qemu-kvm_8.1.5-6), '
  assert_line LINUS_RESULT:SUCCESS
  assert_says 'LINUS_STEP:7/7:output_result:'
  assert_called 'qm set 250 --net0 virtio=BC:24:11:AA:AA:AA,bridge=vmbr0,link_down=1'
  assert_called 'qm suspend 250 --todisk 1'
  assert_called 'qm unlock 250'
  assert_called "qm set 250 --delete vmstate,sshkeys --ipconfig0 ip=dhcp --description linus-job=${job} linus-owner=${owner} linus-vm=250 linus-checkpoint=9000"
  assert_called 'qm template 250'
  refute_called 'qm destroy .*'
  [[ $(stat -c %a "${kept}.state" "${kept}.meta") == $'600\n600' ]] || fail 'others can read it'
  [[ $(stat -c %s "${kept}.state") == 4194304 && $(stat -c '%b' "${kept}.state") -lt 200 ]] || fail 'its holes are not holes'
  local key
  for key in "JOB=${job}" "OWNER=${owner}" TEMPLATE=9000 CORES=2 MEMORY=2048 DISK=10 NETS_HOST_MTU=net0=1500 MAC=bc:24:11:aa:aa:aa USER=debian SIZE=4194304; do
    grep -qx -- "${key}" "${kept}.meta" || fail "no ${key} in" "$(<"${kept}.meta")"
  done
  assert_nothing_left # also no lease: it is not to end
}

@test "it is run again: the answer is the same, and nothing is done" {
  save
  assert_status 0
  local -r first=${output}
  : >"${PVE_STUB}/calls"
  save
  assert_status 0
  [[ ${output} == "${first}" ]] || fail 'another answer'
  refute_called 'qm .*'
}

@test "what a run left that was killed after any step is gone on with" {
  local verb
  for verb in set-1 suspend path unlock set-2 template; do
    rm -f "${PVE_STUB}"/{calls,hook-*}
    # shellcheck disable=SC2016 # the hook's own variables
    case ${verb} in
      set-1) hook after-set '[[ "$*" == *--delete* ]] || kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
      set-2) hook after-set '[[ "$*" != *--delete* ]] || kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
      *) hook "after-${verb}" 'kill -KILL "$(<"${PVE_STUB}/script.pid")"' ;;
    esac
    status=0
    # shellcheck disable=SC2016 # the inner shell's own variables
    bash -c 'echo $$ >"${PVE_STUB}/script.pid"; exec bash "$1"' bash "${host_scripts}/checkpoint-vm.sh" >/dev/null 2>&1 3>&- || status=$?
    [[ ${status} -eq 137 ]] || fail "was not killed at ${verb}"
    rm -f "${PVE_STUB}"/hook-* "${LINUS_LOCK_DIR}"/linus-vm-*
    save
    assert_status 0
    assert_line LINUS_CHECKPOINT_ID:250
    grep -qx 'template: 1' "${PVE_STUB}/vm/250" || fail "killed at ${verb}: no template"
    # And again from the beginning.
    rm -r "${LINUS_HOST_DIR}/checkpoints"
    add_ready_vm
  done
}

@test "a step that fails, or lies, undoes all of it" {
  local verb
  for verb in set suspend path unlock template guest-exec; do
    rm -f "${PVE_STUB}/calls"
    case ${verb} in
      guest-exec) echo '{"exitcode":1,"exited":1,"out-data":"no"}' >"${PVE_STUB}/guest/clean" ;;
      path | unlock) fault "${verb}" 255 skip 'it does not work' ;;
      *) fault "${verb}" 0 skip '' ;;
    esac
    [[ ${verb} != unlock ]] || hook set 'true'
    save
    if [[ ${verb} == unlock ]]; then # Proxmox takes that lock by itself, too
      assert_status 0
    else
      assert_status "$([[ ${verb} == path ]] && echo 3 || echo 5)"
      assert_line LINUS_VM_OUTCOME:destroyed
      [[ ! -e ${PVE_STUB}/vm/250 ]] || fail "failed at ${verb}: VM 250 is there"
      assert_no_checkpoint
    fi
    rm -rf "${LINUS_HOST_DIR}/checkpoints"
    echo '{"exitcode":0,"exited":1,"out-data":"linus-clean done"}' >"${PVE_STUB}/guest/clean"
    add_ready_vm
  done
  assert_foreign_untouched
}

@test "what does not prove, is not ready or has no room is left as it is" {
  LINUS_JOB=${job2} save
  assert_status 5
  assert_says "does not carry linus-job=${job2}"
  VM_ID=101 save
  assert_status 5
  CHECKPOINT_ROOM=1000000 save
  assert_status 3
  assert_says 'GB are to stay free beside 4596 MB, which the memory of VM 250 may take'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":5905580032,"type":"lvmthin"}'
  save
  assert_status 3
  assert_says '5 GiB are to stay free beside 2048 MiB of memory'
  STORAGE_RESERVE=0 VM_TEMPLATE=nope save
  assert_status 3
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":107374182400,"type":"lvmthin"}'
  echo '{"exitcode":75,"exited":1}' >"${PVE_STUB}/guest/cloud-init"
  save
  assert_status 5
  assert_says 'is not ready (cloud-init: running)'
  echo '{"exitcode":0,"exited":1}' >"${PVE_STUB}/guest/cloud-init"
  echo '{"exitcode":75,"exited":1,"out-data":"systemctl is-system-running says starting, and waits for 7 slow.service start running"}' >"${PVE_STUB}/guest/settled"
  save
  assert_status 5
  assert_says 'has not ended its boot (exit 75): systemctl is-system-running says starting, and waits for 7 slow.service'
  refute_changed
  assert_no_checkpoint
  assert_foreign_untouched
}

@test "a VM of another build of the template, with a device, a second card or snapshots is refused" {
  sed -i 's/ctime=1700000000/ctime=1600000000/' "${PVE_STUB}/vm/250"
  save
  assert_status 3
  assert_says "was not made of template 'agent-template' as it is now"
  sed -i 's/ctime=1600000000/ctime=1700000000/' "${PVE_STUB}/vm/250"
  local line
  for line in 'hostpci0: 0000:01:00.0' 'ivshmem: size=4' 'net1: virtio=BC:24:11:AA:AA:AB,bridge=vmbr0' 'parent: clean'; do
    echo "${line}" >>"${PVE_STUB}/vm/250"
    save
    assert_status 3
    sed -i '$d' "${PVE_STUB}/vm/250"
  done
  refute_changed
}

@test "its dry run changes nothing" {
  save --dry-run
  assert_status 0
  assert_says 'LINUS_PLAN:qm suspend 250 --todisk 1'
  assert_says 'LINUS_PLAN:qm template 250'
  refute_changed
}

# --- restore ---

@test "a VM is restored: cloned without link, started from the memory, made itself, then let into the network" {
  save
  restore
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_SOURCE:restored
  assert_line LINUS_VM_USER:debian
  assert_line LINUS_VM_IP:127.0.0.1
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  assert_says 'LINUS_STEP:11/11:output_result:'
  read_vm_id
  assert_called "qm clone 250 ${id} --name restored --description linus-job=${job2} linus-owner=${owner} linus-vm=${id} linus-state=cloning --full 0"
  assert_called "qm start ${id} --stateuri ${kept}.state --machine pc-i440fx-10.1+pve0 --force-cpu host --nets-host-mtu net0=1500"
  grep -q "^qm set ${id} --cores 2 --memory 2048 --agent enabled=1 --net0 virtio=BC:24:11:AA:AA:AA,bridge=vmbr0,link_down=1 " "${PVE_STUB}/calls" || fail 'its link was up'
  assert_called "qm set ${id} --net0 virtio=BC:24:11:AA:AA:AA,bridge=vmbr0"
  # In this order.
  local order
  order=$(grep -oE '^qm (clone|start|guest exec|set [0-9]+ --net0|guest cmd)' "${PVE_STUB}/calls" | tail -n 5 | tr -d '0-9' | tr '\n' ,)
  # Its address is waited for beside the change that lets it have one.
  [[ ${order} == 'qm clone,qm start,qm guest exec,'@('qm set  --net,qm guest exec'|'qm guest exec,qm set  --net'), ]] || fail "another order: ${order}"
  refute_called "qm resize ${id} .*"
  [[ -s ${kept}.state ]] || fail 'the memory is gone'
  assert_nothing_left
}

@test "what the guest is told to be comes on stdin, with the host's random bytes and none of them twice" {
  local first
  save
  restore
  assert_status 0
  first=$(<"${PVE_STUB}/guest/program")
  sh -n "${PVE_STUB}/guest/program"
  local line
  for line in "name='restored'" "mac='bc:24:11:aa:aa:aa'" "old_mac='bc:24:11:aa:aa:aa'" "user='debian'" "key='${SSH_PUBLIC_KEY}'" "ip4='dhcp'"; do
    [[ ${first} == *"${line}"$'\n'* ]] || fail "no ${line}"
  done
  [[ ${first} =~ seed=\'[0-9a-f]{128}\' && ${first} =~ machine_id=\'[0-9a-f]{12}4[0-9a-f]{3}8[0-9a-f]{15}\' ]] || fail 'no random bytes'
  local -r seed=${first#*seed=}
  ! grep -qF "${seed:1:32}" "${PVE_STUB}/argv" || fail 'random bytes in arguments'
  VM_NAME=another LINUS_JOB=33333333-2222-4333-8444-555555555555 VM_CHECKPOINT=250 VM_IP_CONFIG=127.0.0.1/8 VM_GATEWAY=127.0.0.254 \
    VM_NAMESERVERS=1.1.1.1,9.9.9.9 SSH_PUBLIC_KEY="${SSH_PUBLIC_KEY} o'neil" run_script create-vm
  assert_status 0
  [[ $(<"${PVE_STUB}/guest/program") != *"${seed:1:32}"* ]] || fail 'the same bytes twice'
  for line in "ip4='127.0.0.1/8'" "gw4='127.0.0.254'" "servers='1.1.1.1 9.9.9.9'" "key='${SSH_PUBLIC_KEY} o'\\''neil'"; do
    grep -qxF -- "${line}" "${PVE_STUB}/guest/program" || fail "no ${line} in" "$(<"${PVE_STUB}/guest/program")"
  done
}

@test "on 8.x, which notes no MTU, none is given" {
  save
  sed -i 's/^NETS_HOST_MTU=.*/NETS_HOST_MTU=/' "${kept}.meta"
  restore
  assert_status 0
  read_vm_id
  assert_called "qm start ${id} --stateuri ${kept}.state --machine pc-i440fx-10.1+pve0 --force-cpu host"
}

@test "a checkpoint that does not fit is told before anything is made" {
  local change
  save
  cp -p "${kept}.meta" "${BATS_TEST_TMPDIR}/meta"
  cp -p "${kept}.state" "${BATS_TEST_TMPDIR}/state"
  cp -p "${PVE_STUB}/vm/250" "${BATS_TEST_TMPDIR}/conf"
  cp -p "${PVE_STUB}/vm/9000" "${BATS_TEST_TMPDIR}/template"
  for change in "sed -i s/^CORES=.*/CORES=4/ ${kept}.meta" "sed -i s/^QEMU=.*/QEMU=1/ ${kept}.meta" "sed -i s/^CPU_MODEL=.*/CPU_MODEL=Z80/ ${kept}.meta" \
    "sed -i s/^JOB=.*/JOB=${job2}/ ${kept}.meta" "sed -i /^END/d ${kept}.meta" "rm ${kept}.meta" "rm ${kept}.state" "truncate -s 1M ${kept}.state" \
    "sed -i s/linus-checkpoint=9000/linus-checkpoint=9001/ ${PVE_STUB}/vm/250" "sed -i s/${owner}/${job2}/ ${PVE_STUB}/vm/250" \
    "sed -i /^template/d ${PVE_STUB}/vm/250" "sed -i s/ctime=1700000000/ctime=1800000000/ ${PVE_STUB}/vm/9000" \
    "sed -i s/^cores:.*/cores:\ 8/ ${PVE_STUB}/vm/250" "echo 'hostpci0: 0000:01:00.0' >>${PVE_STUB}/vm/250"; do
    bash -c "${change}"
    restore
    assert_status 3
    assert_line LINUS_RESTORE:unfit
    assert_says LINUS_REMEDY
    cp -p "${BATS_TEST_TMPDIR}/meta" "${kept}.meta"
    cp -p "${BATS_TEST_TMPDIR}/state" "${kept}.state"
    cat "${BATS_TEST_TMPDIR}/conf" >"${PVE_STUB}/vm/250"
    cat "${BATS_TEST_TMPDIR}/template" >"${PVE_STUB}/vm/9000"
  done
  VM_RAM=4096 restore
  assert_line LINUS_RESTORE:unfit
  VM_DISK=20 restore
  assert_line LINUS_RESTORE:unfit
  VM_CPU_TYPE=kvm64 restore
  assert_line LINUS_RESTORE:unfit
  VM_SSH_USER=worker restore
  assert_line LINUS_RESTORE:unfit
  VM_TEMPLATE='' VM_OS=debian-12 restore
  assert_line LINUS_RESTORE:unfit
  VM_NAME=restored LINUS_JOB=${job2} VM_CHECKPOINT=999 run_script create-vm
  assert_line LINUS_RESTORE:unfit
  VM_NAME=restored LINUS_JOB=${job2} VM_CHECKPOINT=x run_script create-vm
  assert_status 1
  refute_called 'qm clone .*'
  restore
  assert_status 0
}

@test "what hinders a restore now does not make the checkpoint unfit" {
  save
  echo 'lock: backup' >>"${PVE_STUB}/vm/250"
  restore
  assert_status 3
  assert_line LINUS_RESTORE:failed
  assert_says 'cannot be restored now: VM is locked (backup)'
  sed -i '$d' "${PVE_STUB}/vm/250"
  fault --version 124 skip 'no answer'
  restore
  assert_status 3
  assert_line LINUS_RESTORE:failed
  assert_says 'which QEMU is installed is not known'
  refute_line_like LINUS_RESTORE:unfit
  refute_called 'qm clone .*'
  restore
  assert_status 0
}

@test "a restore that fails later says so, and is undone" {
  local verb
  local -a left
  save
  for verb in clone set start guest-exec set-2; do
    rm -f "${PVE_STUB}"/hook-*
    printf '{"exitcode":0,"exited":1,"out-data":"linus-identity taken"}' >"${PVE_STUB}/guest/identity"
    case ${verb} in
      guest-exec) printf '{"exitcode":65,"exited":1,"err-data":"linus-identity: its network is not known"}' >"${PVE_STUB}/guest/identity" ;;
      set-2)
        fault set 0 'do' ''
        fault set 0 skip ''
        ;;
      *) fault "${verb}" 255 skip 'QEMU exited with code 1' ;;
    esac
    restore
    assert_status 5
    assert_line LINUS_RESTORE:failed
    refute_line_like LINUS_RESTORE:unfit
    left=("${PVE_STUB}"/vm/*)
    [[ ${#left[@]} -eq 3 ]] || fail "failed at ${verb}: left ${left[*]}"
    assert_nothing_left
  done
  [[ -s ${kept}.state && -s ${kept}.meta ]] || fail 'the checkpoint is gone'
}

@test "a checkpoint whose memory goes while it is restored is told to be of no use" {
  save
  hook after-clone "rm '${kept}.state'"
  fault start 255 skip 'no such file'
  restore
  assert_status 5
  assert_line LINUS_RESTORE:unfit
  refute_line_like LINUS_RESTORE:failed
  assert_nothing_left
}

@test "the plan of a restore changes nothing" {
  save
  restore --dry-run
  assert_status 0
  assert_says "'qm' 'clone' '250'"
  assert_says '--stateuri'
  assert_says 'LINUS_PLAN:in the VM, through its agent: MAC'
  refute_called 'qm \(clone\|start\) .*'
}

@test "a boot is asked for by no VM_CHECKPOINT, and a checkpoint is no template of a boot" {
  save
  VM_NAME=booted LINUS_JOB=${job2} run_script create-vm
  assert_status 0
  refute_line_like LINUS_VM_SOURCE
  refute_line_like LINUS_RESTORE
  VM_NAME=booted2 LINUS_JOB=${job2} VM_TEMPLATE=250 run_script create-vm
  assert_status 3
  assert_says 'is a checkpoint, not a template'
}

# --- its end ---

@test "a checkpoint is destroyed as a VM of ours, with its memory; other templates are not" {
  save
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  [[ ! -e ${PVE_STUB}/vm/250 ]]
  assert_no_checkpoint
  add_our_vm 250 'template: 1'
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says 'it is a template'
  sed -i 's/linus-vm=250/linus-vm=250 linus-checkpoint=9000/' "${PVE_STUB}/vm/250"
  LINUS_JOB=${job2} run_script destroy-vm
  assert_status 5
  [[ -e ${PVE_STUB}/vm/250 ]]
}

@test "while clones use its disk its memory stays, and the destroy can be tried again" {
  save
  fault destroy 255 skip "base volume 'local:250/base-250-disk-0.qcow2' is still in use by linked cloned"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
  assert_says 'has linked clones, which read its disk'
  assert_says 'destroy these VMs first (checkpoints by: linus template checkpoint remove)'
  [[ -s ${kept}.state && -s ${kept}.meta ]] || fail 'its memory is gone'
  run_script destroy-vm
  assert_status 0
  assert_no_checkpoint
}

@test "it is listed as a VM that is a checkpoint, and no template of ours" {
  save
  answer /nodes/pve/qemu "[{\"vmid\":250,\"name\":\"${VM_NAME}\",\"status\":\"stopped\",\"template\":1},{\"vmid\":9000,\"name\":\"agent-template\",\"status\":\"stopped\",\"template\":1}]"
  run_script list-vms
  assert_status 0
  assert_line "LINUS_VM:id=250 node=pve name=${VM_NAME} status=stopped job=${job} owner=${owner} checkpoint=9000"
  VM_KIND=template run_script list-vms
  refute_line_like LINUS_VM:
}

@test "no look at templates takes it for one" {
  save
  answer /cluster/resources '[{"type":"node","node":"pve","maxmem":1073741824,"mem":1}]'
  run_script list-nodes
  assert_status 0
  assert_says 'LINUS_NODE_TEMPLATE:pve 9000 '
  refute_line_like 'LINUS_NODE_TEMPLATE:pve 250 '
  refute_line_like 'LINUS_NODE_VMS:*250:'
  ROOM_TEMPLATES="250 9000 ${VM_NAME}" run_script host-room
  assert_status 0
  assert_says 'LINUS_TEMPLATE:9000 9000 '
  refute_line_like 'LINUS_TEMPLATE:250 '
  refute_line_like "LINUS_TEMPLATE:${VM_NAME} "
  VM_TEMPLATE=nope VM_NAME=booted LINUS_JOB=${job2} run_script create-vm
  assert_says '(templates: agent-template (9000))'
}

@test "what a killed run left is destroyed when its lease is over, with what it had kept" {
  local half
  for half in 'lock: suspended' 'template: 1'; do
    save
    [[ ${half} != lock* ]] || sed -i -e 's/ linus-checkpoint=9000//' -e '/^template/d' -e "1a ${half}" "${PVE_STUB}/vm/250"
    sed -i 's/base-250-disk-0/vm-250-disk-0/' "${PVE_STUB}/vm/250"
    mkdir -p "${LINUS_HOST_DIR}/leases"
    printf 'none %s %s pve local-lvm 1 %s 999999999 1 1 1\n' "${VM_NAME}" "${owner}" "$(</proc/sys/kernel/random/boot_id)" \
      >"${LINUS_HOST_DIR}/leases/250-${job}"
    run_script list-vms
    assert_status 0
    [[ ! -e ${PVE_STUB}/vm/250 ]] || fail "VM 250 was left" "$(<"${PVE_STUB}/vm/250")"
    assert_no_checkpoint
    add_ready_vm
  done
}

@test "nothing else is done to a checkpoint" {
  local action
  save
  for action in start stop suspend; do
    ACTION=${action} run_script power-vm
    assert_status 5
    assert_says 'it is a checkpoint; nothing was touched'
  done
}

@test "the memory of another VM that has the ID since stays, when ours is found gone" {
  save
  sed -i "s/${job}/${job2}/" "${PVE_STUB}/vm/250" "${kept}.meta"
  sed -i "s/^name: .*/name: other/" "${PVE_STUB}/vm/250"
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:foreign
  [[ -s ${kept}.state && -s ${kept}.meta ]] || fail 'the memory of the other is gone'
}

@test "the memory of a checkpoint that was destroyed by hand goes with the next list" {
  save
  run_script list-vms
  [[ -s ${kept}.state ]]
  sed -i "s/${job}/${job2}/" "${PVE_STUB}/vm/250"
  run_script list-vms
  assert_no_checkpoint
  echo x >"${kept}.state.new"
  rm "${PVE_STUB}/vm/250" "${LINUS_PVE_DIR}/nodes/pve/qemu-server/250.conf"
  # Without quorum another node may have it.
  write_members '[{"type":"cluster","quorate":0},{"type":"node","name":"pve","local":1,"online":1}]'
  run_script list-vms
  [[ -e ${kept}.state.new ]] || fail 'removed without quorum'
  write_members '[{"type":"node","name":"pve","local":1,"online":1}]'
  run_script list-vms
  assert_no_checkpoint
}

@test "uninstall names checkpoints, and does not take their memory from them" {
  save
  run_script uninstall
  assert_status 5
  assert_line "LINUS_STAYS:checkpoint 250 (${VM_NAME})"
  [[ -s ${kept}.state ]]
}
