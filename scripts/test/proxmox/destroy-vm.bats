#!/usr/bin/env bats
# destroy-vm.sh as a whole: a process, on a stub of Proxmox that keeps state.

# shellcheck source=../helper/common.bash
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

@test "stops and destroys a VM proven ours, disks too, reading the proof before each" {
  add_our_vm 205
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_ID:205
  assert_called 'qm destroy 205 --purge 1 --destroy-unreferenced-disks 1'
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  local calls
  calls=$(grep -x 'qm \(config\|stop\|destroy\) 205.*' "${PVE_STUB}/calls")
  [[ ${calls} == *'qm config 205'*'qm stop 205'*'qm config 205'*'qm destroy 205'*'qm config 205' ]]
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
  for change in 's/linus-job%3D1/linus-job%3D2/' 's/linus-owner%3D9/linus-owner%3D8/' 's/^name: .*/name: renamed/' \
    '/^description: /d' '$ a template: 1' 's/^tags: .*/tags: keep/' 's/linus-job%3D/xlinus-job%3D/'; do
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
  for line in "name: ${VM_NAME}" "description: was linus-job%3D${job}." "description: x linus-owner%3D${owner}" \
    'lock: destroyed' 'lock: clone'; do
    add_vm 205 'memory: 512' "${line}"
    [[ ${line} != lock:* ]] || add_vm 205 "${line}"
    run_script destroy-vm
    assert_status 5
    assert_line LINUS_VM_OUTCOME:refused
    assert_untouched
  done
}

@test "an ID that is another VM's by now says so: a stranger's, or another job's of ours" {
  local -r other=22222222-2222-4333-8444-555555555555
  local line
  for line in 'description: precious%0A' "description: linus-job%3D${other} linus-owner%3D${owner}" \
    "description: linus-job%3D${other} linus-owner%3D${other}"; do
    add_vm 205 'name: web' 'memory: 512' "${line}" 'tags: linus'
    run_script destroy-vm
    assert_status 5
    assert_says "LINUS_ERROR:refused to destroy VM 205 on node 'pve': it is another VM by now"
    assert_line LINUS_VM_OUTCOME:foreign
    assert_untouched
  done
}

@test "a VM that another node has is not gone, and is left alone" {
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  : >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says "node 'pve2' has a VM of that ID"
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
  add_our_vm 205 'description: mine'
  mkdir -p "${LINUS_HOST_DIR}/leases" "${LINUS_HOST_DIR}/addresses"
  : >"${LINUS_HOST_DIR}/leases/205-${job}"
  : >"${LINUS_HOST_DIR}/leases/205-${job}.left"
  printf '%s 1 1 boot 1\n' "${job}" >"${LINUS_HOST_DIR}/addresses/10.0.0.9"
  sed -i '/^description: linus/d' "${PVE_STUB}/vm/205"
  ACTION=forget run_script destroy-vm --dry-run
  assert_status 0
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  fault config 255 skip 'cluster not ready - no quorum?'
  ACTION=forget run_script destroy-vm
  assert_status 5
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  ACTION=forget run_script destroy-vm
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_untouched
  assert_nothing_left
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
  add_vm 205 "name: ${VM_NAME}" "description: linus-job%3D${job} linus-owner%3D${owner} linus-state%3Dcloning"
  run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]]
}

@test "notes an operator added to the description do not hide the marker" {
  add_our_vm 205
  sed -i 's/^description: \(.*\)/description: 100%25 mine%3A \\x41%0A\1 since%0A/' "${PVE_STUB}/vm/205"
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

@test "a config that cannot be read is a failure, not a success" {
  add_our_vm 205
  fault config 255 skip 'cluster not ready - no quorum?'
  run_script destroy-vm
  assert_status 5
  assert_says 'no quorum'
  assert_line LINUS_VM_OUTCOME:failed
  assert_untouched
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

@test "two runs at once: one destroys, the other finds it gone" {
  add_our_vm 205
  hook stop '/bin/sleep 0.3'
  bash "${scripts_dir}/proxmox/destroy-vm.sh" >/dev/null 2>&1 3>&- &
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
  assert_line 'LINUS_PLAN:qm destroy 205 --purge 1 --destroy-unreferenced-disks 1'
  assert_untouched
  LINUS_OWNER=${job} run_script destroy-vm --dry-run
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  refute_line_like LINUS_PLAN
}

@test "inputs that are missing or not valid are exit 1, by name" {
  local setting
  for setting in VM_ID= VM_ID=99 'VM_ID=205;x' VM_ID=--all VM_NAME= VM_NAME=$'a\nb' LINUS_JOB= LINUS_JOB=x LINUS_OWNER= LINUS_OWNER=.*; do
    status=0
    output=$(env "${setting}" bash "${scripts_dir}/proxmox/destroy-vm.sh" 2>/dev/null) || status=$?
    assert_status 1
    assert_says "LINUS_ERROR:${setting%%=*}="
  done
  [[ ! -e ${PVE_STUB}/calls ]]
}

@test "TERM during the stop: the stop ends, the proof is not skipped, exit 143" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'touch "${PVE_STUB}/stopping"; /bin/sleep 0.3'
  bash "${scripts_dir}/proxmox/destroy-vm.sh" >"${BATS_TEST_TMPDIR}/stdout" 2>/dev/null 3>&- &
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
