#!/usr/bin/env bats
# create-vm.sh as a whole: a process, on a stub of Proxmox that keeps state.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
}

@test "no VM is created where a storage has less free than is to stay free" {
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":5368709119,"type":"lvmthin"}'
  run_script create-vm
  assert_status 3
  assert_says "storage 'local-lvm' on node 'pve' has 4 GiB free, and 5 GiB are to stay free"
  assert_says 'LINUS_REMEDY:remove what is not needed (pvesm list local-lvm)'
  refute_called 'qm clone .*'
  STORAGE_RESERVE=0 run_script create-vm
  assert_status 0
}

@test "a host that exports options for every bash gets a VM like another" {
  local -x POSIXLY_CORRECT=1
  status=0
  env SHELLOPTS=noclobber BASHOPTS=failglob bash "${host_scripts}/create-vm.sh" --dry-run >"${BATS_TEST_TMPDIR}/stdout" 2>&1 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
}

@test "clones a template, configures, starts and answers all keys, by hand from a checkout, too" {
  host_scripts=${scripts_dir}/proxmox run_script create-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_NAME:linus-job-11111111
  assert_line LINUS_VM_IP:127.0.0.1
  assert_line LINUS_VM_USER:debian
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_VM_CPU:2
  assert_line LINUS_VM_RAM:2048
  assert_line LINUS_VM_DISK:10
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  read_vm_id
  ((id >= 200 && id <= 299))
  assert_called "qm clone 9000 ${id} --name linus-job-11111111 --description linus-job=${job} linus-owner=${owner} linus-vm=${id} linus-state=cloning"
  assert_called "qm resize ${id} scsi0 10G"
  grep -qx 'net0: virtio=BC:24:11:AA:AA:AA,firewall=1,bridge=vmbr0' "${PVE_STUB}/vm/${id}"
  grep -qx 'tags: linus' "${PVE_STUB}/vm/${id}"
  grep -qx 'ciupgrade: 0' "${PVE_STUB}/vm/${id}"
  grep -qx "#linus-job=${job} linus-owner=${owner} linus-vm=${id}" "${PVE_STUB}/vm/${id}"
  [[ $(<"${PVE_STUB}/status/${id}") == running ]]
  assert_nothing_left
}

@test "stdout has LINUS_ lines only, and every step says so before it begins" {
  run_script create-vm
  assert_status 0
  local line steps=0
  while IFS= read -r line; do
    [[ ${line} == LINUS_* ]]
    if [[ ${line} == LINUS_STEP:* ]]; then
      ((steps += 1))
    fi
  done <<<"${output}"
  ((steps == 9))
  assert_says 'LINUS_STEP:4/9:create_vm:'
}

@test "imports an image in one create and reads the disk's size back" {
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  export IMAGE_DIR=${BATS_TEST_TMPDIR}/images VM_OS=debian-12 VM_VLAN_TAG=7 VM_CPU_TYPE=host
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  run_script create-vm
  assert_status 0
  assert_line LINUS_VM_USER:debian
  read_vm_id
  grep -q "^qm create ${id} --name linus-job-11111111 --cpu host --ostype l26 --scsihw virtio-scsi-single --scsi0 local-lvm:0,import-from=${IMAGE_DIR}/custom-.*qcow2,discard=on,iothread=1 --scsi1 local-lvm:cloudinit" "${PVE_STUB}/calls"
  grep -q -- '--net0 virtio,bridge=vmbr0,tag=7 ' "${PVE_STUB}/calls"
  grep -q -- '--ciupgrade 0 ' "${PVE_STUB}/calls"
  assert_called "qm resize ${id} scsi0 10G"
}

@test "an image becomes a qcow2 file where disks are files, and nothing is said where they are blocks" {
  local type
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  export IMAGE_DIR=${BATS_TEST_TMPDIR}/images PROXMOX_STORAGE=files
  for type in dir nfs cifs btrfs zfspool lvm rbd; do
    answer /nodes/pve/storage/files/status "{\"active\":1,\"enabled\":1,\"content\":\"images\",\"avail\":107374182400,\"type\":\"${type}\"}"
    run_script create-vm --dry-run
    assert_status 0
    case ${type} in
      dir | nfs | cifs) assert_says '.qcow2,format=qcow2,discard=on' ;;
      *) [[ ${output} != *format=* ]] || fail "a format on ${type}" ;;
    esac
  done
}

@test "with a nonce the answer is framed, BEGIN first and END last" {
  LINUS_NONCE=abc123 run_script create-vm
  assert_status 0
  [[ ${output} == 'LINUS_BEGIN:abc123'$'\n'* && ${output} == *$'\nLINUS_RESULT:SUCCESS\nLINUS_END:abc123' ]]
  fault clone 255 skip 'clone failed: no space left'
  LINUS_NONCE=abc123 VM_NAME=another run_script create-vm
  assert_status 5
  [[ ${output} == 'LINUS_BEGIN:abc123'$'\n'* && ${output} == *$'\nLINUS_END:abc123' ]]
}

@test "dry run validates, prints the commands and changes nothing" {
  run_script create-vm --dry-run
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_says "LINUS_PLAN:'qm' 'clone' '9000'"
  assert_says "LINUS_PLAN:'qm' 'set'"
  assert_says 'LINUS_PLAN:qm start'
  refute_called 'qm \(create\|clone\|set\|resize\|start\|stop\|destroy\) .*'
  assert_nothing_left
}

@test "help goes to stderr and needs no host" {
  PATH=/usr/bin:/bin run_script create-vm --help
  assert_status 0
  [[ -z ${output} && ${log} == usage:* ]]
}

# --- what is refused before anything is created ---

@test "a missing tool is exit 2, named" {
  rm "${BATS_TEST_TMPDIR}/bin/pvesm"
  run_script create-vm
  assert_status 2
  assert_says "LINUS_ERROR:'pvesm' is not on this machine"
}

@test "a node that does not exist is exit 3, one that is offline exit 4" {
  answer /cluster/status '[{"type":"cluster","quorate":1},{"type":"node","name":"pve","local":1,"online":1},{"type":"node","name":"pve2","local":0,"online":0}]'
  PROXMOX_NODE=nope run_script create-vm
  assert_status 3
  assert_says "LINUS_ERROR:node 'nope' does not exist (known: pve, pve2)"
  PROXMOX_NODE=pve2 run_script create-vm
  assert_status 4
  assert_says "LINUS_ERROR:node 'pve2' is offline"
}

@test "an online node that is not this host is refused: qm works on its own node only" {
  answer /cluster/status '[{"type":"node","name":"pve","local":1,"online":1},{"type":"node","name":"pve2","local":0,"online":1}]'
  PROXMOX_NODE=pve2 run_script create-vm
  assert_status 3
  assert_says "node 'pve2' is not this host"
}

@test "no quorum is exit 3" {
  answer /cluster/status '[{"type":"cluster","quorate":0},{"type":"node","name":"pve","local":1,"online":1}]'
  run_script create-vm
  assert_status 3
  assert_says 'no quorum'
}

@test "a quorum lost between look and create is exit 3 too" {
  fault clone 255 skip 'unable to create VM 200 - cluster not ready - no quorum?'
  run_script create-vm
  assert_status 3
  refute_called 'qm destroy.*'
}

@test "quorum lost when the clone is there is exit 3, with what to do about it" {
  fault set 13 skip "unable to open file '/etc/pve/nodes/pve/qemu-server/250.conf.tmp.4711' - Permission denied"
  run_script create-vm
  assert_status 3
  assert_says 'could not configure VM'
  assert_says 'LINUS_REMEDY:bring the other nodes of the cluster back'
  fault start 255 skip 'cluster not ready - no quorum?'
  run_script create-vm
  assert_status 3
  assert_says 'could not start VM'
  assert_says 'LINUS_REMEDY:bring the other nodes of the cluster back'
}

@test "a missing storage, bridge or template and an unknown OS are exit 3 with a remedy" {
  PROXMOX_STORAGE=nope run_script create-vm
  assert_status 3
  assert_says "storage 'nope' does not exist on node 'pve'"
  PROXMOX_BRIDGE=vmbr77 run_script create-vm
  assert_status 3
  assert_says "bridge 'vmbr77' does not exist on node 'pve' (bridges: vmbr0)"
  VM_TEMPLATE=nope run_script create-vm
  assert_status 3
  assert_says "template 'nope' does not exist on node 'pve'"
  VM_TEMPLATE='' VM_OS=beos run_script create-vm
  assert_status 3
  assert_says 'LINUS_REMEDY:set VM_OS to one of'
  refute_called 'qm \(create\|clone\).*'
}

@test "a storage without disks, or not active, is exit 3" {
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"iso,vztmpl"}'
  run_script create-vm
  assert_status 3
  assert_says "does not take VM disks"
  answer /nodes/pve/storage/local-lvm/status '{"active":0,"enabled":1,"content":"images"}'
  run_script create-vm
  assert_status 3
  assert_says 'is not active'
}

@test "a VM named as template that is none, or lacks a cloud-init drive, is exit 3" {
  VM_TEMPLATE=101 run_script create-vm
  assert_status 3
  assert_says "VM 101 ('101') on node 'pve' is not a template"
  sed -i '/cloudinit/d' "${PVE_STUB}/vm/9000"
  run_script create-vm
  assert_status 3
  assert_says 'no cloud-init drive'
}

@test "a template larger than VM_DISK is refused before anything is created" {
  VM_DISK=5 run_script create-vm
  assert_status 0
  sed -i 's/size=3G/size=12G/' "${PVE_STUB}/vm/9000"
  VM_NAME=another run_script create-vm
  assert_status 1
  assert_says "smaller than the disk of template 'agent-template' (12 GB)"
  assert_called_times 1 'qm clone .*'
}

@test "a name in use is exit 5 and that VM is not touched" {
  VM_NAME=other run_script create-vm
  assert_status 5
  assert_says "LINUS_ERROR:VM already exists: 'other' is VM 101 on node 'pve'"
  assert_line LINUS_VM_OUTCOME:exists
  refute_line_like LINUS_VM_ID
  refute_called 'qm \(create\|clone\|set\|stop\|destroy\).*'
  assert_foreign_untouched
}

@test "inputs with quotes, blanks, newlines and leading dashes are refused by name" {
  local name
  local -a bad
  # shellcheck disable=SC2016 # nothing may expand these
  bad=('a b' "a'b" 'a"b' $'a\nLINUS_VM_IP:6.6.6.6' 'a;reboot' '-a' 'a$(id)' '`id`' 'ä' 'a_b')
  bad=("${bad[@]/#/VM_NAME=}")
  for name in SSH_PUBLIC_KEY VM_SSH_USER VM_CPU_TYPE PROXMOX_NODE PROXMOX_STORAGE PROXMOX_BRIDGE VM_TEMPLATE \
    VM_IP_CONFIG VM_GATEWAY VM_NAMESERVERS VM_VLAN_TAG VM_ID_RANGE VM_CPU VM_RAM VM_DISK VM_OS IMAGE_DIR LINUS_JOB LINUS_OWNER; do
    bad+=("${name}="$'x\ny' "${name}=--x" "${name}=x;y")
  done
  refuses create-vm "${bad[@]}"
}

@test "bounds hold: CPU 1-128, RAM 512-524288, disk 5-10000" {
  refuses create-vm VM_CPU=0 VM_CPU=129 VM_CPU=2.5 VM_CPU=08 VM_RAM=511 VM_RAM=524289 VM_DISK=4 VM_DISK=10001 \
    VM_DISK=99999999999999999999 VM_VLAN_TAG=4095 VM_ID_RANGE=300-200 VM_ID_RANGE=10-200 VM_IP_CONFIG=10.0.0.300/24 \
    VM_IP_CONFIG=10.0.0.3 VM_GATEWAY=x LINUS_NONCE=a:b
}

# --- IDs ---

@test "an ID taken between check and create: the next is tried, the winner is not touched" {
  export VM_ID_RANGE=200-201
  # Whoever comes first, wins the ID this run has chosen.
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone 'rm "$0"; printf "name: winner\n" >"${PVE_STUB}/vm/$3"; echo running >"${PVE_STUB}/status/$3"'
  run_script create-vm
  assert_status 0
  read_vm_id
  winner=$((401 - id))
  [[ $(<"${PVE_STUB}/vm/${winner}") == 'name: winner' && $(<"${PVE_STUB}/status/${winner}") == running ]]
  refute_called "qm \(stop\|destroy\|set\|resize\|start\) ${winner}.*"
}

@test "an ID lost to a container, after waiting for the lock, is not destroyed either" {
  fault clone 255 skip "trying to acquire lock... OK unable to create VM 250 - CT 250 already exists on node 'pve'"
  run_script create-vm
  assert_status 0
  assert_called_times 2 'qm clone .*'
  refute_called 'qm destroy.*'
}

@test "no free ID in the range is exit 3" {
  VM_ID_RANGE=100-101 run_script create-vm
  assert_status 3
  assert_says 'no VM ID is free in VM_ID_RANGE=100-101'
}

# --- locks, lies and lost answers ---

@test "a lock time-out is tried again and then succeeds" {
  fault clone 255 skip "can't lock file '/var/lock/qemu-server/lock-9000.conf' - got timeout"
  fault start 255 skip 'VM is locked (clone)'
  run_script create-vm
  assert_status 0
  assert_called_times 2 'qm clone .*'
  assert_called_times 2 'qm start .*'
}

@test "a clone whose answer was lost but which landed is not made again" {
  fault clone 255 'do' "can't lock file '/var/lock/x' - got timeout"
  run_script create-vm
  assert_status 0
  assert_called_times 1 'qm clone .*'
}

# Proxmox cannot note the worker that it has started, says that it has failed, and lets go of it.
lose_worker() { # <what there is of the clone, beside its lock: a command; $* is qm's>
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone '[[ ! -e ${PVE_STUB}/lost ]] || exit 0
    echo "$3" >"${PVE_STUB}/lost"
    { echo "lock: clone"; '"$1"'; } >"${PVE_STUB}/vm/$3"
    echo stopped >"${PVE_STUB}/status/$3"'
  fault clone 255 skip "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout"
}

@test "what a lost worker of a clone has left is no other VM: it is rolled back, and no second one is made" {
  local made
  answer /nodes/pve/tasks '[]'
  # shellcheck disable=SC2016 # the hook's own variables
  for made in 'printf "#%s\nname: %s\n" "$7" "$5"' 'echo "#qmclone temporary file"'; do
    rm -f "${PVE_STUB}/lost" "${PVE_STUB}/calls"
    lose_worker "${made}"
    run_script create-vm
    assert_status 5
    assert_says 'Proxmox answered: can'
    assert_called "qm destroy $(<"${PVE_STUB}/lost") --purge 1"
    [[ ! -e ${PVE_STUB}/vm/$(<"${PVE_STUB}/lost") ]] || fail 'it is left behind'
    refute_called 'qm set.*'
    assert_no_vm_of_ours
    assert_nothing_left
  done
}

@test "a lost worker of a clone that comes to its end has made the VM" {
  # shellcheck disable=SC2016 # the hook's own variables
  lose_worker 'printf "#%s\nname: %s\n" "$7" "$5"; echo "$*" >"${PVE_STUB}/lost"'
  # shellcheck disable=SC2016 # the program's own variables
  stub_program sleep 'read -r _ _ id rest <"${PVE_STUB}/lost"
    if grep -q ^lock: "${PVE_STUB}/vm/${id}"; then
      sed -e "s/base-9000-disk/vm-${id}-disk/; /^\(name\|template\):/d" "${PVE_STUB}/vm/9000" >>"${PVE_STUB}/vm/${id}"
      sed -i "/^lock:/d" "${PVE_STUB}/vm/${id}"
    fi'
  run_script create-vm
  assert_status 0
  assert_called_times 1 'qm clone.*'
  local lost
  read -r _ _ lost _ <"${PVE_STUB}/lost"
  assert_line "LINUS_VM_ID:${lost}"
}

@test "a lock that never frees ends after a bounded number of tries" {
  for _ in 1 2 3 4 5 6 7 8 9; do fault clone 255 skip 'got lock request timeout'; done
  run_script create-vm
  assert_status 5
  assert_called_times 6 'qm clone .*'
  refute_called 'qm destroy.*'
}

@test "an error that is no lock's is not tried again" {
  fault clone 255 skip 'clone failed: no space left on device'
  run_script create-vm
  assert_status 5
  assert_says "on node 'pve'"
  assert_says 'Proxmox answered: clone failed: no space left on device'
  assert_called_times 1 'qm clone .*'
  refute_called 'qm \(stop\|destroy\).*'
  refute_line_like LINUS_VM_ID
}

@test "a clone that lies (exit 0, no VM) fails and destroys nothing" {
  fault clone 0 skip ''
  run_script create-vm
  assert_status 5
  refute_called 'qm \(stop\|destroy\).*'
}

@test "a resize that lies (exit 0, old size) fails and rolls back" {
  fault resize 0 skip ''
  run_script create-vm
  assert_status 5
  assert_says 'not 10 GB'
  assert_no_vm_of_ours
}

@test "a resize that lies because of a lock is tried again" {
  fault resize 0 skip 'storage local-lvm: got timeout'
  run_script create-vm
  assert_status 0
  assert_called_times 2 'qm resize .*'
}

@test "a start that lies (exit 0, stopped) fails and rolls back" {
  fault start 0 skip ''
  run_script create-vm
  assert_status 5
  assert_no_vm_of_ours
}

@test "an ID whose volumes lie on the template's storage is not used" {
  sed -i 's/local-lvm:/nfs:/' "${PVE_STUB}/vm/9000"
  # shellcheck disable=SC2016 # the hook's own variables
  hook list 'rm -f "${PVE_STUB}/volumes"; [[ $2 != nfs ]] || printf "nfs:%s/vm-%s-disk-0.raw raw images 1 %s\n" 200 200 200 202 202 202 >"${PVE_STUB}/volumes"'
  VM_ID_RANGE=200-202 run_script create-vm
  assert_status 0
  assert_line LINUS_VM_ID:201
}

@test "no second try is made on a VM that another has replaced, and it is not rolled back" {
  local verb
  for verb in 'set' resize start; do
    # shellcheck disable=SC2016 # the hook's own variables
    hook "${verb}" 'rm "$0"; echo "name: somebody" >"${PVE_STUB}/vm/$2"'
    fault "${verb}" 255 skip 'got timeout'
    : >"${PVE_STUB}/calls"
    VM_NAME=${verb} run_script create-vm
    assert_status 5
    assert_called_times 1 "qm ${verb} .*"
    read_vm_id
    [[ $(<"${PVE_STUB}/vm/${id}") == 'name: somebody' ]] || fail "$(<"${PVE_STUB}/vm/${id}")"
    refute_called 'qm \(stop\|destroy\).*'
  done
}

# --- each step failing ---

@test "a failing set rolls back: proof, stop, proof, destroy with its disks" {
  fault set 255 skip 'no such CPU'
  run_script create-vm
  assert_status 5
  assert_line LINUS_RESULT:FAILURE
  assert_says 'Proxmox answered: no such CPU'
  read_vm_id
  assert_called "qm destroy ${id} --purge 1"
  assert_no_vm_of_ours
  assert_foreign_untouched
  assert_nothing_left
}

@test "a failing start rolls back" {
  fault start 255 skip "bridge 'vmbr0' does not exist"
  run_script create-vm
  assert_status 5
  assert_says "Proxmox answered: bridge 'vmbr0' does not exist"
  assert_no_vm_of_ours
}

@test "no address in time is exit 6, says what was last seen, and rolls back" {
  rm "${PVE_STUB}/guest/interfaces"
  VM_NETWORK_TIMEOUT=1 run_script create-vm
  assert_status 6
  assert_says 'last seen: agent: QEMU guest agent is not running'
  assert_no_vm_of_ours
}

@test "an SSH server that does not greet is exit 6 and rolls back" {
  VM_SSH_PORT=1 VM_READY_TIMEOUT=1 run_script create-vm
  assert_status 6
  assert_says 'did not answer at 127.0.0.1:1'
  assert_no_vm_of_ours
}

@test "a cloud-init that failed is exit 5 with its words, and rolls back" {
  printf '%s\n' '{"exitcode":1,"exited":1,"out-data":"status: error\n"}' >"${PVE_STUB}/guest/cloud-init"
  run_script create-vm
  assert_status 5
  assert_says 'status: error'
  assert_no_vm_of_ours
}

@test "a cloud-init that never ends is exit 6 and rolls back" {
  echo '{"pid":77}' >"${PVE_STUB}/guest/cloud-init"
  VM_READY_TIMEOUT=1 run_script create-vm
  assert_status 6
  assert_says 'cloud-init of VM'
  assert_no_vm_of_ours
}

@test "another host key on the network than in the VM is exit 6 and rolls back" {
  echo '127.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGV2aWw' >"${PVE_STUB}/keyscan"
  run_script create-vm
  assert_status 6
  assert_says 'is not that of VM'
  assert_no_vm_of_ours
}

@test "a VM that stops while it boots is told at once" {
  rm "${PVE_STUB}/guest/interfaces"
  # shellcheck disable=SC2016 # the hook's own variables
  hook guest-cmd 'echo stopped >"${PVE_STUB}/status/$3"'
  run_script create-vm
  assert_status 5
  assert_says 'stopped while it booted'
  assert_no_vm_of_ours
}

@test "roll-back leaves alone a VM that no longer proves to be ours" {
  # Between start and address somebody else takes the VM over.
  # shellcheck disable=SC2016 # the hook's own variables
  hook start 'sed -i "/^#/d" "${PVE_STUB}/vm/$2"'
  VM_NETWORK_TIMEOUT=1 VM_SSH_PORT=1 VM_READY_TIMEOUT=1 run_script create-vm
  assert_status 6
  assert_says 'LINUS_WARNING:VM'
  assert_says 'is left alone: its description does not carry'
  refute_called 'qm \(stop\|destroy\).*'
}

@test "a clone killed half way, before its description was written, is left alone and told" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone 'echo "lock: clone" >"${PVE_STUB}/vm/$3"; touch -d "1 hour ago" "${PVE_STUB}/vm/$3"'
  fault clone 137 skip ''
  run_script create-vm
  assert_status 5
  assert_says "it carries only the lock 'clone'"
  refute_called 'qm \(unlock\|stop\|destroy\).*'
}

@test "a clone killed half way, but marked, is destroyed" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone 'printf "#%s\nname: %s\nlock: clone\n" "$7" "$5" >"${PVE_STUB}/vm/$3"; echo stopped >"${PVE_STUB}/status/$3"'
  fault clone 137 skip ''
  answer /nodes/pve/tasks '[]'
  run_script create-vm
  assert_status 5
  assert_called 'qm unlock 2.*'
  assert_no_vm_of_ours
}

@test "an image that cannot be read in time is not said to be no disk image" {
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *} IMAGE_DIR=${BATS_TEST_TMPDIR}/images
  stub_program qemu-img 'exit 124' # as it ends when it hangs
  run_script create-vm
  assert_status 5
  assert_says "LINUS_REMEDY:check that ${IMAGE_DIR} is on a disk that responds"
}

@test "a roll-back that cannot destroy says so" {
  fault start 255 skip 'no memory'
  fault destroy 255 skip 'protection mode enabled'
  run_script create-vm
  assert_status 5
  assert_says 'LINUS_ERROR:could not start'
  assert_says 'could not be destroyed and is left behind: qm destroy'
}

@test "a clone of a protected template is rolled back, also before it was configured" {
  local verb
  echo 'protection: 1' >>"${PVE_STUB}/vm/9000"
  for verb in 'set' resize start; do
    fault "${verb}" 255 skip 'out of luck'
    run_script create-vm
    assert_status 5
    refute_line_like LINUS_WARNING
    assert_no_vm_of_ours
    assert_nothing_left
  done
  grep -qx 'protection: 1' "${PVE_STUB}/vm/9000"
}

@test "a storage that is full while an image is imported is said to be full" {
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  # shellcheck disable=SC2016 # the hook's own variables
  hook create 'for i in {1..37}; do echo "transferred ${i}.0 MiB of 2.0 GiB (${i}.00%)"; done
    echo "qemu-img: error while writing at byte 2097152: No space left on device"'
  fault create 255 skip "unable to create VM 200 - copy failed: command '/usr/bin/qemu-img convert' failed: exit code 1"
  IMAGE_DIR=${BATS_TEST_TMPDIR}/images run_script create-vm
  assert_status 5
  assert_says 'unable to create VM 200 - copy failed'
  assert_says 'No space left on device'
  [[ ${output} != *transferred* ]]
}

@test "a read that has no answer in time is made again; one that never has is a time-out" {
  local slow verb
  for slow in get:/storage/ get:/network list:local-lvm; do
    verb=${slow%%:*}
    rm -f "${PVE_STUB}"/hook-*
    # shellcheck disable=SC2016 # the hook's own variables
    hook "${verb}" '
      [[ $* == *"$(<"${PVE_STUB}/slow")"* ]] || exit 0
      echo x >>"${PVE_STUB}/asked"
      [[ $(wc -l <"${PVE_STUB}/asked") -gt $(<"${PVE_STUB}/times") ]] || exit 124'
    echo "${slow#*:}" >"${PVE_STUB}/slow"
    answer /nodes/pve/network '[{"iface":"vmbr1","type":"OVSBridge"}]' # not the kernel's
    echo 2 >"${PVE_STUB}/times"
    rm -f "${PVE_STUB}/asked"
    PROXMOX_BRIDGE=vmbr1 run_script create-vm --dry-run
    assert_status 0
    echo 99 >"${PVE_STUB}/times"
    rm -f "${PVE_STUB}/asked"
    PROXMOX_BRIDGE=vmbr1 run_script create-vm --dry-run
    assert_status 6
    assert_says 'no answer in time'
  done
}

# A worker killed in the middle leaves its lock in the config.
leave_lock_behind() {
  fault start 255 skip 'no memory'
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'grep -q "^lock" "${PVE_STUB}/vm/$2" || echo "lock: create" >>"${PVE_STUB}/vm/$2"'
}

@test "a stale lock is broken when no task is at work on the VM" {
  leave_lock_behind
  answer /nodes/pve/tasks '[]'
  run_script create-vm
  assert_status 5
  assert_called 'qm unlock 2.*'
  assert_no_vm_of_ours
}

@test "a lock is never broken while a task is at work, or when nobody can tell" {
  leave_lock_behind
  answer /nodes/pve/tasks '[{"upid":"UPID:pve:1"}]'
  run_script create-vm
  assert_status 5
  assert_says 'is left behind: qm destroy'
  rm "${PVE_STUB}/answers/nodes_pve_tasks"
  fault start 255 skip 'no memory'
  VM_NAME=another run_script create-vm
  assert_status 5
  refute_called 'qm unlock.*'
}

# --- agent and address ---

@test "an agent that comes late is waited for" {
  fault guest-cmd 255 skip 'QEMU guest agent is not running'
  fault guest-cmd 255 skip 'QEMU guest agent is not running'
  run_script create-vm
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
}

@test "the address is that of net0's MAC, not docker0's nor a link-local one" {
  guest_interfaces '{"name":"docker0","hardware-address":"02:42:00:00:00:01","ip-addresses":[{"ip-address":"172.17.0.1","ip-address-type":"ipv4"}]},
    {"name":"lo"},
    {"name":"ens18","hardware-address":"BC:24:11:AA:AA:AA","ip-addresses":[{"ip-address":"fe80::1","ip-address-type":"ipv6"},
      {"ip-address":"169.254.7.7","ip-address-type":"ipv4"},{"ip-address":"fd00::7","ip-address-type":"ipv6"},{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  run_script create-vm
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
}

@test "a static address is used as given and reaches ipconfig0" {
  VM_IP_CONFIG=127.0.0.1/8 VM_GATEWAY=127.0.0.254 run_script create-vm
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
  grep -q -- '--ipconfig0 ip=127.0.0.1/8,gw=127.0.0.254 ' "${PVE_STUB}/calls"
  refute_called 'qm guest cmd.*'
}

@test "an address out of a pool is known before boot, and one VM's alone" {
  export VM_IP_CONFIG=127.0.0.1-127.0.0.1/8 VM_GATEWAY=127.0.0.254 VM_NAMESERVERS='1.1.1.1,9.9.9.9' VM_VLAN_TAG=7
  run_script create-vm
  assert_status 0
  refute_called 'qm guest cmd.*'
  read_vm_id
  grep -qx 'ipconfig0: ip=127.0.0.1/8,gw=127.0.0.254' "${PVE_STUB}/vm/${id}"
  grep -qx 'nameserver: 1.1.1.1 9.9.9.9' "${PVE_STUB}/vm/${id}"
  grep -qx 'net0: virtio=BC:24:11:AA:AA:AA,firewall=1,bridge=vmbr0,tag=7' "${PVE_STUB}/vm/${id}"
  assert_nothing_left
  VM_NAME=second run_script create-vm
  assert_status 3
  assert_says 'no address of VM_IP_CONFIG=127.0.0.1-127.0.0.1/8 is free'
  # Free with its VM, whoever destroys it.
  rm "${PVE_STUB}/vm/${id}"
  VM_NAME=second run_script create-vm
  assert_status 0
  assert_nothing_left
}

@test "a create that fails anywhere gives its address back" {
  local verb
  export VM_IP_CONFIG=127.0.0.1/8
  for verb in clone 'set' resize start; do
    fault "${verb}" 255 skip 'out of luck'
    run_script create-vm
    assert_status 5
    assert_nothing_left
  done
  run_script create-vm
  assert_status 0
}

@test "a network that Proxmox did not take over fails, and is rolled back" {
  local key
  export VM_IP_CONFIG=127.0.0.1/8 VM_NAMESERVERS=1.1.1.1 VM_VLAN_TAG=7
  for key in ipconfig0 nameserver net0; do
    # shellcheck disable=SC2016 # the hook's own variables
    hook after-set 'sed -i "/^'"${key}"': / s/: .*/: none/" "${PVE_STUB}/vm/$2"'
    run_script create-vm
    assert_status 5
    assert_says 'could not configure VM'
    assert_no_vm_of_ours
    assert_nothing_left
  done
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  rm "${PVE_STUB}/hook-after-set"
  # shellcheck disable=SC2016 # the hook's own variables
  hook after-create 'sed -i "/^net0: / s/: .*/: none/" "${PVE_STUB}/vm/$2"'
  IMAGE_DIR=${BATS_TEST_TMPDIR}/images run_script create-vm
  assert_status 5
  assert_says 'does not have the requested network: net0 none'
  assert_no_vm_of_ours
  assert_nothing_left
}

@test "an IPv6-only guest is found by its agent at once, by the address others reach" {
  guest_interfaces '{"name":"eth0","hardware-address":"bc:24:11:aa:aa:aa","ip-addresses":[
    {"ip-address":"fe80::1","ip-address-type":"ipv6"},{"ip-address":"::1","ip-address-type":"ipv6"}]}'
  export VM_IP_CONFIG=auto6 VM_READY_TIMEOUT=1
  run_script create-vm
  assert_status 6
  assert_says 'did not answer at ::1:'
  grep -q -- '--ipconfig0 ip6=auto ' "${PVE_STUB}/calls"
  [[ ${log} == *'has the address ::1'* ]]
}

@test "a guest without cloud-init, or done with warnings, is ready" {
  echo '{"exitcode":127,"exited":1}' >"${PVE_STUB}/guest/cloud-init"
  run_script create-vm
  assert_status 0
  [[ ${log} == *'no cloud-init to wait for'* ]]
  echo '{"exitcode":2,"exited":1}' >"${PVE_STUB}/guest/cloud-init"
  VM_NAME=another run_script create-vm
  assert_status 0
}

@test "a host key that cannot be read fails and is rolled back, unless first use is trusted" {
  echo '{"exitcode":1,"exited":1,"err-data":"Permission denied"}' >"${PVE_STUB}/guest/host-key"
  run_script create-vm
  assert_status 6
  assert_says 'LINUS_ERROR:the SSH host key'
  assert_says 'VM_TRUST_FIRST_USE=true'
  assert_no_vm_of_ours
  VM_TRUST_FIRST_USE=true run_script create-vm
  assert_status 0
  assert_says 'LINUS_WARNING:the SSH host key'
  refute_line_like LINUS_VM_HOST_KEY
  VM_TRUST_FIRST_USE=yes run_script create-vm
  assert_status 1
}

@test "another card at the VM's address fails, and is rolled back" {
  echo '127.0.0.1 dev vmbr0 lladdr bc:24:11:00:00:99 REACHABLE' >"${PVE_STUB}/neighbours"
  run_script create-vm
  assert_status 6
  assert_says 'is not what answers at 127.0.0.1: the card bc:24:11:00:00:99 answers'
  assert_says 'a second card of the guest in this network'
  assert_no_vm_of_ours
}

@test "what is behind a router is taken where a setting says so" {
  echo '127.0.0.1 via 10.0.0.254 dev vmbr0 src 10.0.0.1 uid 0' >"${PVE_STUB}/route"
  run_script create-vm
  assert_status 6
  assert_says 'VM_ROUTED=true'
  assert_no_vm_of_ours
  VM_ROUTED=true run_script create-vm
  assert_status 0
}

# --- signals (each at every step: faults.bats) ---

@test "INT to the whole group while waiting rolls back and exits 130" {
  # A background job of a shell ignores INT, so perl starts it as a terminal would.
  # shellcheck disable=SC2016 # the hook's own variables
  hook guest-cmd 'touch "${PVE_STUB}/waiting"; /bin/sleep 0.2; exit 1'
  perl -e '
    $SIG{INT} = "DEFAULT";
    my $pid = fork // die;
    if (!$pid) { setpgrp; open STDOUT, ">", $ARGV[1]; open STDERR, ">", $ARGV[2]; exec "bash", $ARGV[0] }
    select undef, undef, undef, 0.05 until -e "$ENV{PVE_STUB}/waiting";
    kill -2, $pid; waitpid $pid, 0; exit($? & 127 ? 99 : $? >> 8)' \
    "${host_scripts}/create-vm.sh" "${BATS_TEST_TMPDIR}/stdout" "${BATS_TEST_TMPDIR}/stderr" || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
  assert_status 130
  assert_line LINUS_RESULT:FAILURE
  assert_no_vm_of_ours
}

@test "a reader that goes away (stdout closed) rolls back too" {
  status=0
  # shellcheck disable=SC2312 # the script's status goes through a file
  { bash "${host_scripts}/create-vm.sh" 2>"${BATS_TEST_TMPDIR}/stderr" || echo "$?" >"${BATS_TEST_TMPDIR}/status"; } \
    | { while read -r line && [[ ${line} != *start_vm* ]]; do :; done; }
  [[ $(<"${BATS_TEST_TMPDIR}/status") -eq 141 ]]
  assert_called 'qm destroy.*'
  assert_no_vm_of_ours
}

@test "runs from bash -s with the script on stdin" {
  output=$(cd "${scripts_dir}/proxmox" && bash -s -- --help <create-vm.sh 2>&1) || status=$?
  [[ ${output} == *usage:* ]]
}

# Each test's end checks its qm command lines; these are the ones no other has.
@test "every option that a create can give is one of Proxmox VE 8.2 and 9.2" {
  export VM_VLAN_TAG=7 VM_NAMESERVERS='1.1.1.1 9.9.9.9' VM_CPU_TYPE=host
  sed -i '$ a protection: 1\nsockets: 2' "${PVE_STUB}/vm/9000"
  run_script create-vm
  assert_status 0
  read_vm_id
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  printf 'image' >"${BATS_TEST_TMPDIR}/disk"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *} IMAGE_DIR=${BATS_TEST_TMPDIR}/images
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  fault start 255 skip 'seen enough'
  run_script create-vm
  assert_status 5
  grep -q $'qm\x1fcreate\x1f' "${PVE_STUB}/argv"
}

@test "a qm command line that the real qm would refuse is found" {
  local line
  for line in 'frob 250' 'start' 'start 99' 'set 250 --nosuch 1' 'set 250 --ide9 a' 'set 250 --cores x' 'destroy 250 --purge maybe' \
    'clone 9000 250 --format zip' 'set 250 --scsi0 local:1,nosuch=1' 'set 250 --net0 virtio=BC:24:11:00:00:01,tag=5000'; do
    # shellcheck disable=SC2086 # a command line
    printf '%s\x1f' qm ${line} >"${BATS_TEST_TMPDIR}/argv"
    ! assert_fit_options "${BATS_TEST_TMPDIR}/argv" 2>/dev/null || fail "not found: ${line}"
  done
  printf '%s\x1f' qm set 250 --net0 virtio=BC:24:11:00:00:01,tag=4094 >"${BATS_TEST_TMPDIR}/argv"
  assert_fit_options "${BATS_TEST_TMPDIR}/argv"
}
