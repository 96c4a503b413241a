#!/usr/bin/env bats
# destroy-vm.sh as a whole: a process, on a stub of Proxmox that keeps state.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  export VM_ID=205
}

# The VM 205 is as it was, and nothing that changes anything was called.
assert_untouched() {
  refute_called 'qm \(stop\|destroy\|unlock\|set\).*'
  [[ -f ${PVE_STUB}/vm/205 && $(<"${PVE_STUB}/status/205") == running ]] || fail 'VM 205 was touched'
}

# A file where VM 205's lease of a job is, whatever is in it.
lease_of() { # <job>
  mkdir -p "${LINUS_HOST_DIR}/leases"
  echo lease >"${LINUS_HOST_DIR}/leases/205-$1"
}

@test "stops and destroys a VM proven ours, disks too" {
  add_our_vm 205
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_ID:205
  assert_called 'qm destroy 205 --purge 1'
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  # Each start of Proxmox's tools takes most of a second.
  assert_called_times 2 'qm .*'
  assert_nothing_left
}

# A volume of VM 205's ID on local-lvm, which pvesm frees.
volume_of_205() {
  printf '%s\n' 'Volid                      Format  Type      Size VMID' \
    'local-lvm:vm-205-disk-3    raw     images    4194304 205' >"${PVE_STUB}/volumes"
  # shellcheck disable=SC2016 # the hook's own variables
  hook free '[[ $2 == local-lvm:vm-205-disk-3 ]] && rm "${PVE_STUB}/volumes"'
}

@test "volumes that bear a VM's ID and are not its config's are never removed with it" {
  add_our_vm 205
  volume_of_205
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:destroyed
  refute_called '.*unreferenced.*'
  refute_called 'pvesm free.*'
  [[ -e ${LINUS_HOST_DIR}/quarantine/205 ]]
}

@test "a create that was killed has its volumes removed where its lease announced them, and there alone" {
  local text
  answer /nodes/pve/tasks '[]'
  for text in 'lock: clone' $'#'"linus-job=${job} linus-owner=${owner} linus-vm=205 linus-state=cloning"$'\nlock: clone\nname: '"${VM_NAME}"; do
    mkdir -p "${LINUS_HOST_DIR}/leases"
    printf 'clone %s %s pve local-lvm %(%s)T boot 999999 7 0 0\n' "${VM_NAME}" "${owner}" -1 >"${LINUS_HOST_DIR}/leases/205-${job}"
    add_vm 205 "${text}"
    echo stopped >"${PVE_STUB}/status/205"
    volume_of_205
    run_script destroy-vm
    assert_line LINUS_VM_OUTCOME:destroyed
    assert_called 'pvesm free local-lvm:vm-205-disk-3'
    refute_called '.*unreferenced.*'
    [[ ! -e ${LINUS_HOST_DIR}/quarantine/205 ]]
    rm "${PVE_STUB}/calls"
  done
  # Nobody has announced this one: the lease is of a VM that was made.
  printf 'none %s %s pve local-lvm %(%s)T boot 999999 7 1 1\n' "${VM_NAME}" "${owner}" -1 >"${LINUS_HOST_DIR}/leases/205-${job}"
  add_vm 205 "${text}"
  volume_of_205
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:destroyed
  refute_called 'pvesm free.*'
}

@test "a suspended VM is destroyed with its memory" {
  answer /nodes/pve/tasks '[]'
  add_our_vm 201 'lock: suspended' 'vmstate: nfs:201/vm-201-state-suspend-2026-11-22.raw'
  echo stopped >"${PVE_STUB}/status/201"
  VM_ID=201 run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  [[ ! -e ${PVE_STUB}/vm/201 ]]
  assert_called 'pvesm list nfs --vmid 201'
  assert_nothing_left
}

@test "a VM that does not exist is a success: it can be run twice" {
  add_our_vm 205
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_OUTCOME:gone
  [[ ${log} == *'already gone'* ]]
}

@test "another job, owner or name, no marker, a template, a removed tag: refused, untouched" {
  local change
  for change in 's/linus-job=1/linus-job=2/' 's/linus-owner=9/linus-owner=8/' 's/linus-vm=205//' 's/linus-vm=205/&0/' 's/^name: .*/name: renamed/' \
    '/^#/d' '$ a template: 1' 's/^tags: .*/tags: keep/' 's/linus-job=/xlinus-job=/'; do
    add_our_vm 205
    sed -i "${change}" "${PVE_STUB}/vm/205"
    run_script destroy-vm
    assert_status 5
    assert_says "LINUS_ERROR:refused to destroy VM 205 on node 'pve'"
    assert_line LINUS_VM_OUTCOME:refused
    assert_untouched
  done
}

@test "name, job or owner alone are enough not to call it gone" {
  local line
  for line in "name: ${VM_NAME}" "#was linus-job=${job}." "#x linus-owner=${owner}" \
    'lock: destroyed' 'lock: clone'; do
    add_vm 205 'memory: 512' "${line}"
    [[ ${line} != lock:* ]] || add_vm 205 "${line}"
    run_script destroy-vm
    assert_status 5
    assert_line LINUS_VM_OUTCOME:refused
    assert_untouched
  done
}

@test "a config that nobody of Proxmox wrote says nothing of whose it is" {
  add_vm 205 '<<<<<<< lost'
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_untouched
}

@test "an ID that is another VM's by now says so: a stranger's, or another job's of ours" {
  local -r other=22222222-2222-4333-8444-555555555555
  local line
  for line in '#precious' "#linus-job=${other} linus-owner=${owner}" "#linus-job=${other} linus-owner=${other}"; do
    add_vm 205 'name: web' 'memory: 512' "${line}" 'tags: linus'
    lease_of "${job}"
    lease_of "${other}"
    run_script destroy-vm
    assert_status 5
    assert_says "LINUS_ERROR:refused to destroy VM 205 on node 'pve': it is another VM now"
    assert_line LINUS_VM_OUTCOME:foreign
    assert_untouched
    # Ours is gone, and what the host kept for it; the other's is the other's.
    [[ ! -e ${LINUS_HOST_DIR}/leases/205-${job} && -e ${LINUS_HOST_DIR}/leases/205-${other} ]]
  done
}

@test "the lease of a VM that is left alone, or was not destroyed, stays" {
  add_our_vm 205
  lease_of "${job}"
  sed -i '/^tags/d' "${PVE_STUB}/vm/205"
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:refused
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  add_our_vm 205
  lease_of "${job}"
  for _ in {1..10}; do
    fault stop 255 skip 'no'
  done
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:failed
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
}

@test "a VM that another node has is not gone, and is left alone" {
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  : >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says "node 'pve2' has a VM of that ID"
  echo 'name: web' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:foreign
  echo "#linus-job=${job} linus-owner=${owner}" >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  refute_called 'qm \(stop\|destroy\|unlock\|set\).*'
}

@test "a VM that goes to another node as it is destroyed is not destroyed" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook destroy 'mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"; cp "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
    rm "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/qemu-server/205.conf"'
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
}

@test "a VM that is not proven can be forgotten: its lease goes, it stays; a proven one is not" {
  add_vm 205 '#mine' "name: ${VM_NAME}" 'memory: 512' 'tags: linus'
  mkdir -p "${LINUS_HOST_DIR}/leases" "${LINUS_HOST_DIR}/addresses"
  : >"${LINUS_HOST_DIR}/leases/205-${job}"
  : >"${LINUS_HOST_DIR}/leases/205-${job}.left"
  printf '%s 1 1 boot 1\n' "${job}" >"${LINUS_HOST_DIR}/addresses/10.0.0.9"
  ACTION=forget run_script destroy-vm --dry-run
  assert_status 0
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  LINUS_PVE_DIR=/nonexistent ACTION=forget run_script destroy-vm
  assert_status 5
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  ACTION=forget run_script destroy-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  refute_line_like LINUS_WARNING
  assert_untouched
  assert_nothing_left
  add_vm 205 '#mine linus-egress=none' "name: ${VM_NAME}" 'memory: 512' 'tags: linus'
  ACTION=forget run_script destroy-vm
  assert_says 'LINUS_WARNING:VM 205 keeps its network rules as long as its notes have the word linus-egress=none'
  assert_untouched
  add_our_vm 205
  ACTION=forget run_script destroy-vm
  assert_status 5
  assert_says "refused to forget VM 205 on node 'pve': it is proven to be ${VM_NAME}"
  assert_untouched
  ACTION=drop run_script destroy-vm
  assert_status 1
}

@test "where the cluster's configs cannot be seen, nothing is gone" {
  LINUS_PVE_DIR=/nonexistent run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
}

@test "a clone that never got its tags is ours by its description" {
  add_vm 205 "#linus-job=${job} linus-owner=${owner} linus-vm=205 linus-state=cloning" "name: ${VM_NAME}"
  run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]]
}

@test "notes an operator added to the description do not hide the marker" {
  add_our_vm 205
  sed -i 's/^#.*/#100%25 mine%3A \\x41 100% %zz\n& since/' "${PVE_STUB}/vm/205"
  run_script destroy-vm
  assert_status 0
}

@test "a VM that changes hands between stop and destroy is not destroyed" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'sed -i "s/^name: .*/name: somebody/" "${PVE_STUB}/vm/$2"'
  run_script destroy-vm
  assert_status 5
  refute_called 'qm destroy.*'
  [[ -f ${PVE_STUB}/vm/205 ]]
}

# VM 205, cloned of a protected template and not configured yet.
add_protected_clone() { # <line of the config...>
  add_our_vm 205 'protection: 1' "$@"
  sed -i 's/^#linus-job.*/& linus-state=cloning/' "${PVE_STUB}/vm/205"
}

@test "a VM that changes hands as its protection goes is not destroyed" {
  add_protected_clone
  # shellcheck disable=SC2016 # the hook's own variables
  hook after-set 'sed -i "s/^name: .*/name: somebody/" "${PVE_STUB}/vm/$2"'
  run_script destroy-vm
  assert_status 5
  assert_called 'qm set 205 --protection 0'
  refute_called 'qm destroy.*'
  [[ -f ${PVE_STUB}/vm/205 ]]
}

@test "a config that cannot be read is a failure, not a success" {
  add_our_vm 205
  spoil_config 205
  run_script destroy-vm
  assert_status 5
  assert_says 'the config of VM 205 could not be read: '
  assert_line LINUS_VM_OUTCOME:failed
  assert_untouched
  # Not mounted, and nothing but a directory of that name.
  rm "${LINUS_PVE_DIR}/qemu-server/205.conf" "${LINUS_PVE_DIR}/.members"
  run_script destroy-vm
  assert_status 5
  assert_says 'it is not mounted'
  assert_untouched
}

@test "what waits for a restart, and what a snapshot has, proves nothing" {
  add_our_vm 205
  sed -i '/^#/d' "${PVE_STUB}/vm/205"
  printf '%s\n' '' '[PENDING]' "#linus-job=${job} linus-owner=${owner} linus-vm=205" '' '[one]' "#linus-job=${job} linus-owner=${owner} linus-vm=205" \
    >>"${PVE_STUB}/vm/205"
  run_script destroy-vm
  assert_status 5
  assert_untouched
}

@test "a destroy that fails late, again and again: its lock is broken each time, until the VM is gone" {
  add_our_vm 205
  answer /nodes/pve/tasks '[]'
  local -r text="access permissions cleanup for VM 205 failed: cfs-lock 'file-user_cfg' error: got lock request timeout"
  fault destroy 255 late "${text}"
  fault destroy 255 late "${text}"
  run_script destroy-vm
  assert_status 0
  assert_called_times 3 'qm destroy.*'
  assert_called_times 2 'qm unlock 205'
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  assert_nothing_left
}

@test "a destroy that fails late to the end is told, listed, shown, and finished by the next" {
  add_our_vm 205
  answer /nodes/pve/tasks '[]'
  for _ in 1 2 3 4 5 6; do
    fault destroy 255 late "access permissions cleanup for VM 205 failed: cfs-lock 'file-user_cfg' error: got lock request timeout"
  done
  run_script destroy-vm
  assert_status 5
  assert_says 'qm destroy 205 did not remove it: access permissions cleanup'
  assert_destroyed_half 205
  run_script show-vm
  assert_status 0
  assert_line LINUS_VM_STATUS:stopped
  run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  assert_nothing_left
}

@test "a VM that is another's after a try to destroy it is not destroyed" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook destroy 'rm "$0"; echo "name: somebody" >"${PVE_STUB}/vm/$2"'
  fault destroy 255 skip 'got timeout'
  run_script destroy-vm
  assert_status 5
  assert_called_times 1 'qm destroy.*'
  [[ $(<"${PVE_STUB}/vm/205") == 'name: somebody' ]]
}

@test "a VM that somebody has protected is left alone until the protection is off" {
  add_our_vm 205 'protection: 1'
  lease_of "${job}"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says "refused to destroy VM 205 on node 'pve': it is protected"
  assert_says 'LINUS_REMEDY:take the protection off (qm set 205 --protection 0)'
  assert_untouched
  run_script destroy-vm --dry-run
  assert_status 5
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  ACTION=forget run_script destroy-vm
  assert_status 0
  [[ ! -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  assert_untouched
  sed -i 's/^protection: 1/protection: 0/' "${PVE_STUB}/vm/205"
  run_script destroy-vm
  assert_line LINUS_VM_OUTCOME:destroyed
}

@test "a VM that is protected as it is stopped, or destroyed, is left alone" {
  local verb
  for verb in stop destroy; do
    add_our_vm 205
    # shellcheck disable=SC2016 # the hook's own variables
    hook "${verb}" 'echo "protection: 1" >>"${PVE_STUB}/vm/$2"'
    run_script destroy-vm
    assert_line LINUS_VM_OUTCOME:refused
    refute_called 'qm set.*'
    [[ -f ${PVE_STUB}/vm/205 ]]
    rm -f "${PVE_STUB}/hook-${verb}"
  done
}

@test "the protection that a clone has of its template is taken off, its lock broken first" {
  local lock
  answer /nodes/pve/tasks '[]'
  for lock in '' 'lock: clone'; do
    add_protected_clone ${lock:+"${lock}"}
    run_script destroy-vm
    assert_status 0
    assert_called 'qm set 205 --protection 0'
    [[ ! -e ${PVE_STUB}/vm/205 ]]
  done
}

@test "a protection that stays is told, and nothing is destroyed" {
  add_protected_clone
  fault set 0 skip ''
  run_script destroy-vm
  assert_status 5
  assert_says 'did not take its protection off'
  refute_called 'qm destroy.*'
}

@test "the lock of a backup that is at work is left alone" {
  add_our_vm 205 'lock: backup'
  local start
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  answer /nodes/pve/tasks "[{\"upid\":\"$(printf 'UPID:pve:%08X:%08X:0000:vzdump::root@pam:' "$$" "${start}")\"}]"
  fault stop 255 skip 'VM is locked (backup)'
  fault stop 255 skip 'VM is locked (backup)'
  fault stop 255 skip 'something else'
  run_script destroy-vm
  assert_status 5
  refute_called 'qm \(unlock\|destroy\).*'
}

@test "a lock is left alone where nobody tells what is at work" {
  add_our_vm 205 'lock: clone'
  fault stop 255 skip 'VM is locked (clone)'
  fault stop 255 skip 'something else'
  run_script destroy-vm # there is no answer to the question for tasks
  assert_status 5
  refute_called 'qm \(unlock\|destroy\).*'
  answer /nodes/pve/tasks '[{"upid":"what is this"}]'
  fault stop 255 skip 'VM is locked (clone)'
  fault stop 255 skip 'something else'
  run_script destroy-vm
  assert_status 5
  refute_called 'qm \(unlock\|destroy\).*'
}

@test "a lock is left alone whatever else is at work on the node" {
  add_our_vm 205 'lock: backup'
  local start id tasks=''
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  for id in {301..360} 205; do
    tasks+=$(printf ',{"upid":"UPID:pve:%08X:%08X:0000:vzdump:%d:root@pam:"}' "$$" "${start}" "${id}")
  done
  answer /nodes/pve/tasks "[${tasks:1}]"
  fault stop 255 skip 'something else'
  run_script destroy-vm
  assert_status 5
  refute_called 'qm \(unlock\|destroy\).*'
}

@test "a VM that becomes another's while its lock is broken is neither stopped nor destroyed" {
  answer /nodes/pve/tasks '[]'
  add_our_vm 205 'lock: clone'
  take_during after-unlock 1 205
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  refute_called 'qm \(stop\|destroy\).*'
}

# A task as Proxmox lists it, of a process of ours.
task_of() { # <type> <VM ID> <added to the start of the process>
  local start
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  answer /nodes/pve/tasks "[{\"upid\":\"$(printf 'UPID:pve:%08X:%08X:0000:%s:%s:root@pam:' "$$" "$((start + $3))" "$1" "$2")\"}]"
}

@test "a lock is left alone while any clone is at work, and broken when its task is another VM's, or gone" {
  local task
  for task in 'qmclone 9000 0' 'qmclone 205 0' 'qmdestroy 205 0'; do
    add_our_vm 205 'lock: clone'
    # shellcheck disable=SC2086 # words
    task_of ${task}
    fault stop 255 skip 'VM is locked (clone)'
    fault stop 255 skip 'something else'
    run_script destroy-vm
    assert_status 5
    refute_called 'qm \(unlock\|destroy\).*'
  done
  for task in 'qmclone 9000 1' 'qmdestroy 205 1' 'qmdestroy 206 0' 'vzdump 206 0'; do
    add_our_vm 205 'lock: clone'
    # shellcheck disable=SC2086 # words
    task_of ${task}
    run_script destroy-vm
    assert_status 0
    assert_called 'qm unlock 205'
    [[ ! -e ${PVE_STUB}/vm/205 ]]
    rm "${PVE_STUB}/calls"
  done
}

@test "a VM of the HA manager is waited for: qm stop only asks for it" {
  add_our_vm 205
  fault stop 0 skip 'Requesting HA stop for VM 205'
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program sleep 'echo >>"${PVE_STUB}/pauses"; [[ $(wc -l <"${PVE_STUB}/pauses") -lt 3 ]] || { echo stopped >"${PVE_STUB}/status/205"; rm -f "${LINUS_QEMU_DIR}/205.pid"; }'
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  assert_called_times 1 'qm stop 205'
}

@test "a VM that the HA manager does not stop is told of with its name, and not destroyed" {
  add_our_vm 205
  fault stop 0 skip 'Requesting HA stop for VM 205'
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
  assert_says 'the HA manager, whose resource it is, was asked to stop it, and has not done so in three minutes'
  assert_says 'ha-manager remove vm:205'
  refute_called 'qm destroy.*'
}

@test "a stop that lies is a failure and nothing is destroyed" {
  add_our_vm 205
  fault stop 0 skip ''
  run_script destroy-vm
  assert_status 5
  assert_says 'did not stop it (status running)'
  refute_called 'qm destroy.*'
}

@test "a destroy that lies is a failure" {
  add_our_vm 205
  fault destroy 0 skip ''
  run_script destroy-vm
  assert_status 5
  assert_says 'did not remove it'
}

@test "a lock time-out is tried again, and one that hid success is believed" {
  add_our_vm 205
  fault stop 255 skip "can't lock file '/var/lock/qemu-server/lock-205.conf' - got timeout"
  fault destroy 255 'do' 'got timeout'
  run_script destroy-vm
  assert_status 0
  assert_called_times 2 'qm stop.*'
  assert_called_times 1 'qm destroy.*'
}

@test "a volume that stays is a warning with its name" {
  add_our_vm 205
  printf '%s\n' 'Volid                      Format  Type      Size VMID' \
    'local-lvm:vm-205-disk-3    raw     images    4194304 205' >"${PVE_STUB}/volumes"
  run_script destroy-vm
  assert_status 0
  assert_says 'LINUS_WARNING:VM 205 is gone, but volumes of it were left on the storage: local-lvm:vm-205-disk-3'
}

@test "volumes on a storage that cannot be listed are not said to be gone, and their ID is not used" {
  add_our_vm 205 'scsi2: local-lvm:vm-900-disk-0,size=5G'
  sed -i 's/vm-disk-0/vm-205-disk-0/' "${PVE_STUB}/vm/205"
  fault list 255 skip 'vgs: command failed'
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  assert_says 'is not known, for their storage could not be listed: local-lvm:vm-205-disk-0'
  [[ $(<"${LINUS_HOST_DIR}/quarantine/205") == local-lvm:vm-205-disk-0 ]]
  add_our_vm 206
  sed -i 's/vm-disk-0/vm-206-disk-0/' "${PVE_STUB}/vm/206"
  fault list 255 skip "storage 'local-lvm' does not exist" # never to answer again
  VM_ID=206 run_script destroy-vm
  assert_status 0
  refute_line_like LINUS_WARNING
}

@test "two runs at once: one destroys, the other finds it gone" {
  add_our_vm 205
  hook stop '/bin/sleep 0.3'
  bash "${host_scripts}/destroy-vm.sh" >/dev/null 2>&1 3>&- &
  local -r first=$!
  run_script destroy-vm
  assert_status 0
  wait "${first}"
  assert_called_times 1 'qm destroy.*'
  assert_nothing_left
}

@test "dry run proves and prints, and changes nothing; it refuses what it would refuse" {
  add_our_vm 205
  run_script destroy-vm --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm destroy 205 --purge 1'
  assert_untouched
  LINUS_OWNER=${job} run_script destroy-vm --dry-run
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  refute_line_like LINUS_PLAN
}

@test "inputs that are missing or not valid are exit 1, by name" {
  refuses destroy-vm VM_ID= VM_ID=99 'VM_ID=205;x' VM_ID=--all VM_NAME= VM_NAME=$'a\nb' LINUS_JOB= LINUS_JOB=x LINUS_OWNER= 'LINUS_OWNER=.*'
}

@test "TERM during the stop: the stop ends, the proof is not skipped, exit 143" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'touch "${PVE_STUB}/stopping"; /bin/sleep 0.3'
  bash "${host_scripts}/destroy-vm.sh" >"${BATS_TEST_TMPDIR}/stdout" 2>/dev/null 3>&- &
  local -r pid=$!
  until [[ -e ${PVE_STUB}/stopping ]]; do command sleep 0.05; done
  kill -TERM "${pid}"
  status=0
  wait "${pid}" || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  assert_status 143
  assert_line LINUS_RESULT:FAILURE
  [[ $(<"${PVE_STUB}/status/205") == stopped ]]
  refute_called 'qm destroy.*'
}

@test "a VM that changes hands between its proof and its stop, or its destroy, is not touched where the tool server does it" {
  local verb
  start_tool_server
  for verb in stop destroy; do
    add_our_vm 205
    [[ ${verb} == stop ]] || printf 'stopped\n' >"${PVE_STUB}/status/205"
    : >"${PVE_STUB}/calls"
    if [[ ${verb} == stop ]]; then
      kill -STOP "${tool_server}"
    else
      hook after-stop "kill -STOP ${tool_server}" # before the request to destroy can be taken
    fi
    take_waiting "${verb}" 205
    VM_ID=205 run_script destroy-vm
    wait "$!"
    assert_status 5
    refute_called "qm ${verb} 205.*"
    [[ -e ${PVE_STUB}/vm/205 ]] || fail 'it was destroyed'
  done
  kill -KILL "${tool_server}"
}
