#!/usr/bin/env bats
# power-vm.sh as a whole: a process, on a stub of Proxmox that keeps state.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
}

setup() {
  setup_stub
  add_our_vm 250 'ciuser: worker' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' 'ipconfig0: ip=dhcp'
  export VM_ID=250
}

stopped() {
  echo stopped >"${PVE_STUB}/status/250"
}

power() { # <action> [<argument...>]
  ACTION=$1 run_script power-vm "${@:2}"
}

@test "start boots a stopped VM and answers where it can be worked in" {
  stopped
  power start
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_VM_ID:250
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_VM_IP:127.0.0.1
  assert_line LINUS_VM_USER:worker
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  assert_says 'LINUS_STEP:5/5:output_result:'
  [[ $(<"${PVE_STUB}/status/250") == running ]]
  assert_nothing_left
}

@test "start of a VM that runs starts nothing, and answers the same" {
  power start
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
  refute_called 'qm start.*'
}

@test "a start that lies, and an address that does not come, are 5 and 6; the VM stays" {
  stopped
  fault start 0 skip ''
  power start
  assert_status 5
  assert_says 'could not start VM 250'
  guest_interfaces ''
  VM_NETWORK_TIMEOUT=1 power start
  assert_status 6
  assert_says 'had no address after 1 s'
  [[ -e ${PVE_STUB}/vm/250 ]]
  refute_called 'qm \(destroy\|stop\).*'
  assert_nothing_left
}

@test "an address its config gives is the answer, without asking the guest" {
  sed -i 's|^ipconfig0: .*|ipconfig0: ip=127.0.0.1/8,gw=127.0.0.254|' "${PVE_STUB}/vm/250"
  power start
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
  refute_called 'qm guest cmd.*'
}

@test "an address that waited for the restart is the answer" {
  echo stopped >"${PVE_STUB}/status/250"
  printf '%s\n' '' '[PENDING]' 'ipconfig0: ip=127.0.0.1/8,gw=127.0.0.254' >>"${PVE_STUB}/vm/250"
  # shellcheck disable=SC2016 # the hook's own variables
  hook start 'sed -i -e "/^$/d" -e "/^.PENDING/d" "${PVE_STUB}/vm/$2"'
  power start
  assert_status 0
  assert_line LINUS_VM_IP:127.0.0.1
  refute_called 'qm guest cmd.*'
}

@test "stop pulls the plug, shutdown asks first; a stopped VM is a success" {
  power stop
  assert_status 0
  assert_called 'qm stop 250'
  refute_line_like LINUS_VM_IP
  echo running >"${PVE_STUB}/status/250"
  VM_SHUTDOWN_TIMEOUT=7 power shutdown
  assert_status 0
  assert_called 'qm shutdown 250 --timeout 7 --forceStop 1'
  [[ $(<"${PVE_STUB}/status/250") == stopped ]]
  power shutdown
  assert_status 0
  assert_called_times 1 'qm shutdown .*'
  assert_nothing_left
}

@test "a stop that lies is exit 5" {
  fault stop 0 skip ''
  power stop
  assert_status 5
  assert_says '(status: running)'
}

@test "a snapshot is taken once under a name" {
  SNAPSHOT=clean power snapshot
  assert_status 0
  assert_called 'qm snapshot 250 clean'
  SNAPSHOT=clean power snapshot
  assert_status 5
  assert_says "has a snapshot 'clean' already"
  assert_called_times 1 'qm snapshot .*'
  assert_nothing_left
}

@test "a snapshot that lies, and a storage without snapshots" {
  fault snapshot 0 skip ''
  SNAPSHOT=clean power snapshot
  assert_status 5
  fault snapshot 255 skip 'snapshot feature is not available'
  SNAPSHOT=clean power snapshot
  assert_status 3
  assert_says 'LINUS_REMEDY:use a storage that has snapshots'
}

@test "what a killed snapshot left is removed first, its lock when no task is at work" {
  mkdir -p "${PVE_STUB}/snapshots/250"
  echo 'snapstate: prepare' >"${PVE_STUB}/snapshots/250/clean"
  echo 'lock: snapshot' >>"${PVE_STUB}/vm/250"
  answer /nodes/pve/tasks '[]'
  SNAPSHOT=clean power snapshot
  assert_status 0
  assert_called 'qm unlock 250'
  assert_called 'qm delsnapshot 250 clean --force 1'
}

@test "a lock of a backup or of a task at work is not broken" {
  echo 'lock: backup' >>"${PVE_STUB}/vm/250"
  answer /nodes/pve/tasks '[]'
  SNAPSHOT=clean power snapshot
  refute_called 'qm unlock.*'
  sed -i 's/^lock: .*/lock: snapshot/' "${PVE_STUB}/vm/250"
  answer /nodes/pve/tasks '[{"upid":"UPID:pve:1"}]'
  SNAPSHOT=clean2 power snapshot
  refute_called 'qm unlock.*'
}

@test "revert brings the config of the snapshot back, and starts" {
  SNAPSHOT=clean power snapshot
  echo 'cores: 7' >>"${PVE_STUB}/vm/250"
  SNAPSHOT=clean power revert
  assert_status 0
  assert_called 'qm rollback 250 clean'
  assert_called 'qm start 250'
  assert_line LINUS_VM_IP:127.0.0.1
  [[ $(<"${PVE_STUB}/vm/250") != *'cores: 7'* ]]
  [[ $(<"${PVE_STUB}/status/250") == running ]]
  SNAPSHOT=clean power revert
  assert_status 0
}

@test "a revert to no snapshot names those there are; one that failed starts nothing" {
  SNAPSHOT=clean power snapshot
  SNAPSHOT=other power revert
  assert_status 5
  assert_says 'LINUS_REMEDY:there are: clean'
  refute_called 'qm rollback.*'
  fault rollback 255 skip 'can not roll back'
  SNAPSHOT=clean power revert
  assert_status 5
  assert_says 'can not roll back'
  refute_called 'qm start.*'
}

@test "a revert after which the VM proves no more is not started" {
  SNAPSHOT=clean power snapshot
  sed -i 's/^tags: linus/tags: theirs/' "${PVE_STUB}/snapshots/250/clean"
  SNAPSHOT=clean power revert
  assert_status 5
  assert_says "does not carry the tag 'linus'"
  refute_called 'qm start.*'
}

@test "no action touches a VM that does not prove to be the one meant" {
  local action change
  for action in start stop shutdown snapshot revert; do
    for change in LINUS_JOB=aaaaaaaa-2222-4333-8444-555555555555 LINUS_OWNER=aaaaaaaa-2222-4333-8444-555555555555 VM_NAME=another VM_ID=101 VM_ID=9000; do
      status=0
      output=$(env "${change}" ACTION="${action}" SNAPSHOT=clean bash "${scripts_dir}/proxmox/power-vm.sh" 2>/dev/null) || status=$?
      assert_status 5
      assert_says 'LINUS_ERROR:refused to'
    done
    VM_ID=299 SNAPSHOT=clean power "${action}"
    assert_status 5
    assert_says 'VM 299 does not exist'
  done
  refute_called 'qm \(start\|stop\|shutdown\|snapshot\|rollback\|delsnapshot\|unlock\).*'
  assert_foreign_untouched
  assert_nothing_left
}

@test "proof and change are one locked step: a destroy waits for it" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'flock -n "${LINUS_LOCK_DIR}/linus-vm-250.lock" true && touch "${PVE_STUB}/not-locked" || :'
  power stop
  assert_status 0
  [[ ! -e ${PVE_STUB}/not-locked ]]
  assert_nothing_left
}

@test "a signal in the middle lets the lock go" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'limit=$(ps -o ppid= -p "${PPID}"); kill -TERM $(ps -o ppid= -p ${limit}); /bin/sleep 0.1'
  power stop
  assert_status 143
  assert_line LINUS_RESULT:FAILURE
  assert_nothing_left
}

@test "inputs are refused by name, before any program is started" {
  local setting
  for setting in ACTION= ACTION=reboot ACTION=$'stop\nx' VM_ID=99 VM_ID=x VM_NAME=a_b LINUS_JOB=x LINUS_OWNER=x VM_SSH_USER='a b' VM_SSH_PORT=0 \
    VM_SHUTDOWN_TIMEOUT=0 PROXMOX_NODE='--x'; do
    status=0
    output=$(env ACTION=stop "${setting}" bash "${scripts_dir}/proxmox/power-vm.sh" 2>/dev/null) || status=$?
    assert_status 1
    assert_says "LINUS_ERROR:${setting%%=*}="
  done
  for setting in '' a current pending 'a b' a.b 1st --force "$(printf 'a%.0s' {1..41})"; do
    SNAPSHOT=${setting} power revert
    assert_status 1
  done
  [[ ! -e ${PVE_STUB}/calls ]]
}

@test "dry run proves, prints the commands and changes nothing" {
  stopped
  power start --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm start 250'
  answer /nodes/pve/qemu/250/feature '{"hasFeature":1,"nodes":["pve"]}'
  SNAPSHOT=clean power snapshot --dry-run
  assert_line 'LINUS_PLAN:qm snapshot 250 clean'
  LINUS_OWNER=${job} power stop --dry-run
  assert_status 5
  refute_called 'qm \(start\|stop\|snapshot\).*'
  assert_nothing_left
}

@test "dry run says what a real run would: no snapshots on raw files, a lock of other work" {
  answer /nodes/pve/qemu/250/feature '{"hasFeature":0,"nodes":["pve"]}'
  SNAPSHOT=clean power snapshot --dry-run
  assert_status 3
  assert_says 'Proxmox answered: snapshot feature is not available'
  assert_says 'LINUS_REMEDY:use a storage that has snapshots'
  refute_line_like LINUS_PLAN
  echo 'lock: backup' >>"${PVE_STUB}/vm/250"
  local action
  for action in stop shutdown snapshot; do
    SNAPSHOT=clean power "${action}" --dry-run
    assert_status 5
    assert_says 'VM is locked (backup)'
    refute_line_like LINUS_PLAN
  done
  sed -i 's/^lock: .*/lock: snapshot/' "${PVE_STUB}/vm/250"
  answer /nodes/pve/qemu/250/feature '{"hasFeature":1,"nodes":["pve"]}'
  SNAPSHOT=clean power snapshot --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm unlock 250'
  assert_line 'LINUS_PLAN:qm snapshot 250 clean'
  refute_called 'qm \(unlock\|stop\|shutdown\|snapshot\).*'
}
