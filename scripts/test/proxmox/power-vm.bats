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
  check_file
}

setup() {
  setup_stub
  add_our_vm 250 'ciuser: worker' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' 'ipconfig0: ip=dhcp'
  export VM_ID=250
}

stopped() {
  echo stopped >"${PVE_STUB}/status/250"
  rm -f "${LINUS_QEMU_DIR}/250.pid"
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

@test "a VM of the HA manager, which qm only asks, is waited for, and its manager named" {
  local action verb=stop
  for action in stop shutdown start; do
    if [[ ${action} == start ]]; then
      verb=start
      stopped
    fi
    fault "${action}" 0 skip "Requesting HA ${verb} for VM 250"
    power "${action}"
    assert_status 5
    assert_says "LINUS_ERROR:could not ${action/shutdown/shut down} VM 250 on node 'pve': the HA manager, whose resource it is, was asked to ${verb} it"
    assert_says 'ha-manager remove vm:250'
  done
  echo running >"${PVE_STUB}/status/250"
  fault stop 0 skip 'Requesting HA stop for VM 250'
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program sleep 'echo stopped >"${PVE_STUB}/status/250"; rm -f "${LINUS_QEMU_DIR}/250.pid"'
  power stop
  assert_status 0
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

@test "a VM has a bounded number of snapshots" {
  SNAPSHOT=one SNAPSHOT_MAX=1 power snapshot
  assert_status 0
  SNAPSHOT=two SNAPSHOT_MAX=1 power snapshot
  assert_status 3
  assert_says "has as many snapshots as it may: 1 (MAX_SNAPSHOTS)"
  assert_says 'remove one that is not needed; there are: one'
  SNAPSHOT=two SNAPSHOT_MAX=0 power snapshot
  assert_status 0
}

@test "a snapshot with memory leaves of the storage what is to stay free" {
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":5905580032,"type":"lvmthin"}'
  sed -i '/^memory:/d' "${PVE_STUB}/vm/250"
  echo 'memory: 1024' >>"${PVE_STUB}/vm/250"
  SNAPSHOT=live SNAPSHOT_MEMORY=true power snapshot
  assert_status 3
  assert_says "storage 'local-lvm' on node 'pve' has 5 GiB free, and 5 GiB are to stay free beside 1024 MiB of memory"
  assert_says 'LINUS_REMEDY:remove what is not needed'
  refute_called 'qm snapshot .*'
  SNAPSHOT=disk power snapshot
  assert_status 0
  SNAPSHOT=live SNAPSHOT_MEMORY=true STORAGE_RESERVE=4 power snapshot
  assert_status 0
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

@test "suspend puts the memory on the disk, and is read back from the config" {
  power suspend
  assert_status 0
  assert_called 'qm suspend 250 --todisk 1'
  refute_line_like LINUS_VM_IP
  [[ $(<"${PVE_STUB}/vm/250") == *'lock: suspended'* && $(<"${PVE_STUB}/status/250") == stopped ]]
  power suspend
  assert_status 0
  assert_called_times 1 'qm suspend .*'
  assert_nothing_left
}

@test "a suspend that lies is 5; a stopped VM has no memory to keep" {
  fault suspend 0 skip ''
  power suspend
  assert_status 5
  assert_says 'could not suspend VM 250'
  assert_says '(status: running)'
  stopped
  power suspend
  assert_status 5
  assert_says 'LINUS_REMEDY:start it first'
  assert_called_times 1 'qm suspend .*'
}

@test "what cannot be suspended is told with what to do instead" {
  fault suspend 255 skip 'Cannot suspend HA managed VM to disk'
  power suspend
  assert_status 3
  assert_says 'ha-manager remove vm:250'
  fault suspend 255 skip 'cannot suspend VM to disk due to passed-through PCI device(s), which lack the possibility to save/restore their internal state'
  power suspend
  assert_status 3
  assert_says 'LINUS_REMEDY:stop it instead'
  fault suspend 255 skip 'Cannot live-migrate, snapshot (with RAM), or hibernate a VM with: virtiofs'
  power suspend
  assert_status 3
}

@test "a suspend that fails lets go of its lock, and the VM runs on" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook suspend 'echo "lock: suspending" >>"${PVE_STUB}/vm/$2"'
  fault suspend 255 skip "query-savevm failed with error 'qemu_savevm_state_iterate error -28'"
  answer /nodes/pve/tasks '[]'
  power suspend
  assert_status 5
  assert_says 'qemu_savevm_state_iterate error -28'
  assert_says 'free some space on local-lvm'
  assert_says '(status: running)'
  assert_called 'qm unlock 250'
  assert_called 'qm resume 250'
  assert_called_times 1 'qm suspend .*'
  [[ $(<"${PVE_STUB}/vm/250") != *'lock:'* ]]
  assert_nothing_left
}

@test "a suspend that met a lock is tried again; one that has left its own is not" {
  fault suspend 255 skip "can't lock file '/var/lock/qemu-server/lock-250.conf' - got timeout"
  power suspend
  assert_status 0
  assert_called_times 2 'qm suspend .*'
  power start
  # shellcheck disable=SC2016 # the hook's own variables
  hook suspend 'echo "lock: suspending" >>"${PVE_STUB}/vm/$2"'
  fault suspend 255 skip "VM 250 qmp command 'savevm-start' failed - got timeout"
  answer /nodes/pve/tasks '[]'
  power suspend
  assert_status 5
  assert_says "qmp command 'savevm-start' failed - got timeout"
  assert_says 'room for twice its memory'
  assert_called_times 3 'qm suspend .*'
}

@test "resume goes on where it was, its clock set, its address and key asked for anew" {
  power suspend
  echo 86400 >"${PVE_STUB}/guest/clock-behind"
  power resume
  assert_status 0
  assert_called 'qm start 250'
  assert_called 'qm guest exec 250 --timeout 20 -- sh -c off=.*'
  assert_line LINUS_VM_IP:127.0.0.1
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  assert_says 'LINUS_STEP:5/5:output_result:'
  refute_called '.*cloud-init.*'
  [[ $(<"${PVE_STUB}/vm/250") != *state* && $(<"${PVE_STUB}/vm/250") != *'lock:'* ]]
  [[ ! -e ${PVE_STUB}/guest/clock-behind ]]
  assert_nothing_left
}

@test "resume of a VM that runs sets its clock; start of one that is suspended resumes it" {
  echo 3600 >"${PVE_STUB}/guest/clock-behind"
  power resume
  assert_status 0
  refute_called 'qm start.*'
  [[ ! -e ${PVE_STUB}/guest/clock-behind ]]
  power suspend
  echo 3600 >"${PVE_STUB}/guest/clock-behind"
  power start
  assert_status 0
  assert_called 'qm start 250'
  assert_line LINUS_VM_IP:127.0.0.1
  [[ ! -e ${PVE_STUB}/guest/clock-behind ]]
}

# On a host that is very busy.
@test "resume sets a clock to when the guest hears of it" {
  power suspend
  echo 15 >"${PVE_STUB}/guest/clock-late"
  power resume
  assert_status 0
}

@test "resume of a stopped VM is refused; one that does not start, or whose clock stays behind, fails" {
  stopped
  power resume
  assert_status 5
  assert_says 'is stopped, not suspended'
  refute_called 'qm start.*'
  echo running >"${PVE_STUB}/status/250"
  power suspend
  fault start 255 skip 'start failed: QEMU exited with code 1'
  power resume
  assert_status 5
  assert_says 'QEMU exited with code 1 (status: stopped); its state is as it was'
  [[ $(<"${PVE_STUB}/vm/250") == *'lock: suspended'* ]]
  echo 3600 >"${PVE_STUB}/guest/clock-behind"
  : >"${PVE_STUB}/guest/clock-fixed"
  power resume
  assert_status 5
  [[ ${output} =~ 'could not be set: it is 36'[0-9]{2}' s behind' ]] # a second more on a busy machine
  [[ -e ${PVE_STUB}/vm/250 ]]
}

@test "a resume whose worker was killed leaves no state for a later start" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook start 'echo running >"${PVE_STUB}/status/$2"'
  answer /nodes/pve/tasks '[]'
  power suspend
  fault start 255 skip 'got unexpected control message'
  power resume
  assert_status 0
  assert_called 'qm set 250 --delete vmstate'
  [[ $(<"${PVE_STUB}/vm/250") != *state* && $(<"${PVE_STUB}/vm/250") != *'lock:'* ]]
}

@test "what a killed suspend left goes before anything else is done, unless a task is at work" {
  printf '%s\n' 'lock: suspending' 'vmstate: local-lvm:vm-250-state-suspend-2026-11-22' >>"${PVE_STUB}/vm/250"
  answer /nodes/pve/tasks '[{"upid":"UPID:pve:1"}]'
  power shutdown
  assert_status 5
  assert_says 'is being suspended or resumed: VM is locked (suspending)'
  refute_called 'qm \(unlock\|set\|shutdown\|resume\) .*'
  answer /nodes/pve/tasks '[]'
  power shutdown --dry-run
  assert_status 5
  assert_says 'in the middle of a suspend'
  refute_called 'qm \(unlock\|set\|shutdown\|resume\) .*'
  power shutdown
  assert_status 0
  assert_called 'qm unlock 250'
  assert_called 'qm set 250 --delete vmstate'
  assert_called 'qm shutdown 250 .*'
  [[ $(<"${PVE_STUB}/vm/250") != *vmstate* ]]
}

@test "a VM whose revert did not come to its end is reverted, and keeps its snapshots and its lock until then" {
  local action
  answer /nodes/pve/tasks '[]'
  SNAPSHOT=one power snapshot
  assert_status 0
  echo 'lock: rollback' >>"${PVE_STUB}/vm/250"
  for action in snapshot delete-snapshot fork unfork; do
    SNAPSHOT=one power "${action}"
    assert_status 5
    assert_says 'a revert of it has not come to its end'
    refute_called 'qm \(unlock\|delsnapshot\) .*'
  done
  assert_called_times 1 'qm snapshot .*'
  SNAPSHOT=one power revert
  assert_status 0
  assert_called 'qm unlock 250'
  assert_called 'qm rollback 250 one'
}

@test "nothing but a resume is done to a suspended VM" {
  local action
  power suspend
  for action in stop shutdown snapshot revert delete-snapshot; do
    SNAPSHOT=clean power "${action}"
    assert_status 5
    assert_says 'is suspended: its memory is on the disk, and nothing was done to it'
    assert_says 'LINUS_REMEDY:resume it first'
  done
  refute_called 'qm \(stop\|shutdown\|snapshot\|rollback\|delsnapshot\|unlock\) .*'
  power resume --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm start 250'
  [[ $(<"${PVE_STUB}/vm/250") == *'lock: suspended'* ]]
}

@test "a snapshot with memory comes back running, its clock set" {
  SNAPSHOT=live SNAPSHOT_MEMORY=true power snapshot
  assert_status 0
  assert_called 'qm snapshot 250 live --vmstate 1'
  echo 3600 >"${PVE_STUB}/guest/clock-behind"
  SNAPSHOT=live power revert
  assert_status 0
  assert_called 'qm rollback 250 live'
  refute_called 'qm start.*'
  assert_line LINUS_VM_IP:127.0.0.1
  [[ ! -e ${PVE_STUB}/guest/clock-behind && $(<"${PVE_STUB}/status/250") == running ]]
  stopped
  SNAPSHOT=later SNAPSHOT_MEMORY=true power snapshot
  assert_status 5
  assert_says 'is stopped: it has no memory to save'
  assert_called_times 1 'qm snapshot .*'
}

@test "a snapshot that has no memory though it was asked for is told" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook snapshot 'echo stopped >"${PVE_STUB}/status/$2"'
  SNAPSHOT=live SNAPSHOT_MEMORY=true power snapshot
  assert_status 5
  assert_says 'was taken without its memory'
}

@test "a snapshot is removed, and the VM is as it was" {
  SNAPSHOT=one power snapshot
  SNAPSHOT=two power snapshot
  SNAPSHOT=one power delete-snapshot
  assert_status 0
  assert_called 'qm delsnapshot 250 one'
  refute_line_like LINUS_VM_IP
  [[ ! -e ${PVE_STUB}/snapshots/250/one && -e ${PVE_STUB}/snapshots/250/two && $(<"${PVE_STUB}/status/250") == running ]]
  SNAPSHOT=one power delete-snapshot
  assert_status 5
  assert_says "has no snapshot 'one'"
  assert_says 'LINUS_REMEDY:there are: two'
  SNAPSHOT=two power delete-snapshot --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm delsnapshot 250 two'
  assert_called_times 1 'qm delsnapshot .*'
  assert_nothing_left
}

@test "a removal that lies or fails is told, and its lock does not stay; the rest goes by force" {
  SNAPSHOT=one power snapshot
  fault delsnapshot 0 skip ''
  SNAPSHOT=one power delete-snapshot
  assert_status 5
  assert_says "could not remove snapshot 'one'"
  answer /nodes/pve/tasks '[]'
  fault delsnapshot 255 skip 'lvremove failed'
  # shellcheck disable=SC2016 # the hook's own variables
  hook delsnapshot 'rm "$0"; echo "lock: snapshot-delete" >>"${PVE_STUB}/vm/$2"; echo "snapstate: delete" >>"${PVE_STUB}/snapshots/$2/$3"'
  SNAPSHOT=one power delete-snapshot
  assert_status 5
  assert_says 'Proxmox answered: lvremove failed'
  [[ $(<"${PVE_STUB}/vm/250") != *'lock:'* ]]
  echo 'lock: snapshot-delete' >>"${PVE_STUB}/vm/250" # as a killed one leaves it
  SNAPSHOT=one power delete-snapshot
  assert_status 0
  assert_called 'qm delsnapshot 250 one --force 1'
  [[ ! -e ${PVE_STUB}/snapshots/250/one && $(<"${PVE_STUB}/vm/250") != *'lock:'* ]]
}

@test "no action touches a VM that does not prove to be the one meant" {
  local action change
  for action in start stop shutdown suspend resume snapshot revert delete-snapshot; do
    for change in LINUS_JOB=aaaaaaaa-2222-4333-8444-555555555555 LINUS_OWNER=aaaaaaaa-2222-4333-8444-555555555555 VM_NAME=another VM_ID=101 VM_ID=9000; do
      status=0
      output=$(env "${change}" ACTION="${action}" SNAPSHOT=clean bash "${host_scripts}/power-vm.sh" 2>/dev/null) || status=$?
      assert_status 5
      assert_says 'LINUS_ERROR:refused to'
    done
    VM_ID=299 SNAPSHOT=clean power "${action}"
    assert_status 5
    assert_says 'VM 299 does not exist'
  done
  refute_called 'qm \(start\|stop\|shutdown\|suspend\|resume\|snapshot\|rollback\|delsnapshot\|unlock\).*'
  assert_foreign_untouched
  assert_nothing_left
}

@test "no second try is made on a VM that another has replaced" {
  local action verb
  for action in start stop shutdown suspend snapshot revert delete-snapshot; do
    verb=${action/revert/rollback}
    verb=${verb/delete-snapshot/delsnapshot}
    add_our_vm 250 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
    [[ ${action} != start ]] || stopped
    mkdir -p "${PVE_STUB}/snapshots/250"
    [[ ${action} != @(revert|delete-snapshot) ]] || cp "${PVE_STUB}/vm/250" "${PVE_STUB}/snapshots/250/first"
    # shellcheck disable=SC2016 # the hook's own variables
    hook "${verb}" 'rm "$0"; echo "name: somebody" >"${PVE_STUB}/vm/$2"'
    fault "${verb}" 255 skip 'VM is locked (backup)'
    SNAPSHOT=first power "${action}"
    assert_status 5
    assert_says "refused to ${action} VM 250 on node 'pve': its description does not carry"
    assert_called_times 1 "qm ${verb} 250.*"
  done
}

@test "a VM that changes hands between its proof and what it loses something by is not touched where the tool server does it" {
  local action verb
  start_tool_server
  mkdir -p "${PVE_STUB}/snapshots/250"
  for action in stop shutdown suspend revert; do
    verb=${action/revert/rollback}
    add_our_vm 250 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
    if [[ ${action} == revert ]]; then
      cp "${PVE_STUB}/vm/250" "${PVE_STUB}/snapshots/250/first"
      hook after-get "[[ \$* != */snapshot* ]] || kill -STOP ${tool_server}"
    else
      kill -STOP "${tool_server}"
    fi
    take_waiting "${verb}" 250
    SNAPSHOT=first power "${action}"
    wait "$!"
    assert_status 5
    assert_says "refused to ${action} VM 250 on node 'pve': its description does not carry"
    refute_called "qm ${verb} 250.*"
  done
  kill -KILL "${tool_server}"
}

@test "a snapshot that is whole by the time is not removed as the rest of a killed one" {
  mkdir -p "${PVE_STUB}/snapshots/250"
  echo 'snapstate: prepare' >"${PVE_STUB}/snapshots/250/first"
  # An operator's is at work, and comes to its end.
  # shellcheck disable=SC2016 # the hook's own variables
  hook delsnapshot 'rm "$0"; echo "memory: 512" >"${PVE_STUB}/snapshots/250/first"'
  fault delsnapshot 255 skip 'VM is locked (snapshot)'
  SNAPSHOT=first power snapshot
  assert_status 5
  assert_says "has a snapshot 'first' already"
  assert_called_times 1 'qm delsnapshot.*'
  refute_called 'qm snapshot.*'
}

@test "proof and change are one locked step: a destroy waits for it" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook stop 'flock -n "${LINUS_LOCK_DIR}/linus-vm-250.lock" true && touch "${PVE_STUB}/not-locked" || :'
  # shellcheck disable=SC2016 # the hook's own variables
  hook suspend 'flock -n "${LINUS_LOCK_DIR}/linus-vm-250.lock" true && touch "${PVE_STUB}/not-locked" || :'
  power suspend
  assert_status 0
  power start
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
  ACTION=stop refuses power-vm ACTION= ACTION=reboot ACTION=$'stop\nx' VM_ID=99 VM_ID=x VM_NAME=a_b LINUS_JOB=x LINUS_OWNER=x VM_SSH_USER='a b' VM_SSH_PORT=0 \
    VM_SHUTDOWN_TIMEOUT=0 SNAPSHOT_MEMORY=yes PROXMOX_NODE='--x'
  ACTION=revert refuses power-vm SNAPSHOT={,a,current,pending,'a b',a.b,1st,--force,"$(printf 'a%.0s' {1..41})"}
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

# Template 260 of ours, called built-next.
a_template() {
  add_vm 260 "#linus-job=${job} linus-owner=${owner} linus-vm=260 linus-template=1" 'boot: order=scsi0' 'name: built-next' \
    'scsi0: local-lvm:base-260-disk-0,size=10G' 'tags: linus' 'template: 1'
  export VM_ID=260 VM_NAME=built-next NEW_NAME=built
}

@test "rename gives a template of ours another name, and says so again" {
  a_template
  power rename --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm set 260 --name built'
  for _ in 1 2; do
    power rename
    assert_status 0
    assert_line LINUS_VM_ID:260
    assert_line LINUS_VM_NAME:built
    grep -qx 'name: built' "${PVE_STUB}/vm/260"
  done
  assert_called_times 1 'qm set 260 --name built'
  assert_nothing_left
}

@test "rename touches no VM, nothing that is not proven, and takes nobody's name" {
  local change
  a_template
  cp "${PVE_STUB}/vm/260" "${BATS_TEST_TMPDIR}/whole"
  for change in 's/linus-job=1/linus-job=2/' 's/linus-owner=9/linus-owner=8/' 's/linus-vm=260//' 's/^name: .*/name: renamed/' \
    's/ linus-template=1//' '/^template: 1/d'; do
    sed "${change}" "${BATS_TEST_TMPDIR}/whole" >"${PVE_STUB}/vm/260"
    power rename
    assert_status 5
    assert_says 'refused to rename VM 260'
  done
  cp "${BATS_TEST_TMPDIR}/whole" "${PVE_STUB}/vm/260"
  add_vm 261 'name: built'
  power rename
  assert_status 5
  assert_line LINUS_VM_OUTCOME:exists
  NEW_NAME='' power rename
  assert_status 1
  refute_called 'qm set.*'
}

@test "a rename that lies is a failure" {
  a_template
  fault set 0 skip ''
  power rename
  assert_status 5
  assert_says "template 260 on node 'pve' could not be renamed"
}
