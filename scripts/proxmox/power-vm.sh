#!/usr/bin/env bash
# Starts, stops, suspends, resumes, snapshots or reverts one VM of ours on the
# Proxmox VE node this runs on. It touches nothing unless the VM's config, read in the same locked
# step, proves that it is the VM meant.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   ACTION                    start     and wait until it is usable
#                             stop      at once, as by cutting its power
#                             shutdown  by asking the guest; at once if it does not
#                             suspend   to disk: its memory goes to its storage, which
#                                       takes twice its size and 500 MB
#                             resume    where it was suspended, its clock set; start
#                                       does the same to a suspended VM
#                             snapshot  of its disks, running or not
#                             revert    to a snapshot, losing later changes; then start
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
# and optionally:
#   SNAPSHOT                  name, for snapshot and revert: required there
#   SNAPSHOT_MEMORY false     true: the snapshot has what runs in the VM as well, and a
#                             revert to it comes back running
#   SNAPSHOT_MAX 10           snapshots that a VM may have; 0: any number
#   STORAGE_RESERVE 5         GB of the VM's storages that stay free: a snapshot with
#                             memory is refused that would leave less
#   PROXMOX_NODE              default: this host's own
#   VM_SSH_USER               default: the VM's
#   VM_SSH_PORT 22
#   VM_NETWORK_TIMEOUT 300, VM_READY_TIMEOUT 600, VM_SHUTDOWN_TIMEOUT 60 (seconds)
#   VM_ROUTED false     true: this node reaches VMs through a router; accept addresses
#                       that guests report though it cannot see their cards
#   VM_TRUST_FIRST_USE false   true: accept a VM whose guest agent does not respond, by
#                       the neighbour table and without a host key to pin
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check the proof, print the commands, change nothing), --help
#
# Each can be run twice: a VM already in the wanted state is a success; only the name
# of a snapshot cannot be used again. After start, resume and revert the result has the
# address, user and host key, like create-vm's. The result is on stdout in LINUS_
# lines (lib/result.sh), the log on stderr.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration
# (also a storage without snapshots), 4 node offline, 5 refused or failed, 6
# network or SSH timeout, 129/130/141/143 signal. The VM is never destroyed.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/destroy.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/suspend.sh"

vm_locked=no
vm_resumed=no # its memory came back from a disk, and its clock is behind

usage() {
  printf '%s\n' \
    'usage: ACTION=start|stop|shutdown|suspend|resume|snapshot|revert VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=...' \
    '       [SNAPSHOT=... [SNAPSHOT_MEMORY=true]] power-vm.sh [--dry-run | --help]' \
    'Does that to the VM when its description proves it is ours; list-vms.sh shows' \
    'the values. Inputs and exit codes are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${ACTION:=}" "${SNAPSHOT:=}" "${SNAPSHOT_MEMORY:=false}" "${SNAPSHOT_MAX:=10}" "${STORAGE_RESERVE:=5}" "${PROXMOX_NODE:=}" "${VM_SHUTDOWN_TIMEOUT:=60}"
  boot_read_inputs
}

validate_environment() {
  validate_pattern ACTION "${ACTION}" 'start|stop|shutdown|suspend|resume|snapshot|revert' 'start, stop, shutdown, suspend, resume, snapshot or revert'
  vm_read_inputs
  fence_read_inputs
  if [[ ${ACTION} == snapshot || ${ACTION} == revert ]]; then
    validate_pattern SNAPSHOT "${SNAPSHOT}" '[A-Za-z][A-Za-z0-9_-]{1,39}' 'a name of 2 to 40 of A-Z a-z 0-9 _ -, beginning with a letter'
    if [[ ${SNAPSHOT} == current || ${SNAPSHOT} == pending ]]; then
      result_fail invalid "SNAPSHOT=${SNAPSHOT} is a name of Proxmox's own" 'choose another name'
    fi
  fi
  validate_pattern SNAPSHOT_MEMORY "${SNAPSHOT_MEMORY}" 'true|false' 'true or false'
  validate_number SNAPSHOT_MAX "${SNAPSHOT_MAX}" 0 1000
  validate_reserve "${STORAGE_RESERVE}"
  boot_validate_inputs
  validate_number VM_SHUTDOWN_TIMEOUT "${VM_SHUTDOWN_TIMEOUT}" 1 3600 seconds
  validate_node "${PROXMOX_NODE}"
  validate_tools qm pvesh perl timeout flock ip
  probe_cluster "${PROXMOX_NODE}"
  probe_require
}

# --- power_vm: proof and change in one locked step ---

power_vm() {
  if [[ ${dry_run} == no ]]; then
    vm_lock "${vm_id}"
    if [[ ${vm_locked} != yes ]]; then
      result_fail vm "${vm_reason}" 'wait for it to end, then try again'
    fi
    require_no_fence
  fi
  require_proof
  local retry_clear=require_proof # by the next try, the ID may be another VM's
  local expected=running
  if [[ ${ACTION} == start || ${ACTION} == resume ]]; then
    expected=stopped
  fi
  vm_expect_status "${vm_id}" "${expected}"
  clear_half_suspend
  plan_lock
  "do_${ACTION}"
  let_go
}

require_no_fence() {
  fence_look
  if [[ ${fence_up} == yes ]]; then
    result_line VM_OUTCOME fenced
    result_fail vm "refused to ${ACTION} VM ${vm_id} on node '${probe_node}' for engine ${fence_engine}: others have taken it for dead, and its jobs over" \
      'restart that engine: it joins the others as a new one'
  fi
}

# What a killed suspend or resume has left goes first. A suspended VM is resumed, or
# destroyed: nothing else is done to it.
clear_half_suspend() {
  suspend_find_half
  if [[ ${suspend_half} == yes && ${dry_run} == yes ]]; then
    result_fail vm "could not ${ACTION} VM ${vm_id} on node '${probe_node}' now: it was left in the middle of a suspend or a resume" 'a real run lets go of what that left, unless it is still at work'
  elif [[ ${suspend_half} == yes ]]; then
    suspend_clear_half "${probe_node}"
    require_proof
    vm_read_status "${vm_id}"
  fi
  vm_find_suspended "${vm_status}"
  if [[ ${vm_suspended} == yes && ${ACTION} =~ ^(stop|shutdown|snapshot|revert)$ ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is suspended: its memory is on the disk, and nothing was done to it" 'resume it first'
  fi
}

# What a real run would come to, where the config is locked by other work. Locks
# that a killed snapshot has left it breaks (clear_killed_work).
plan_lock() {
  local -r lock=${vm_config[lock]:-}
  if [[ ${dry_run} == no || -z ${lock} || ${vm_suspended} == yes ]]; then
    return 0
  elif [[ ${ACTION} != snapshot && ${ACTION} != revert || ! ${lock} =~ ^(snapshot|snapshot-delete|rollback)$ ]]; then
    result_fail vm "could not ${ACTION} VM ${vm_id} on node '${probe_node}' now: VM is locked (${lock})" 'wait for the work that holds the lock to end, then try again'
  fi
  result_text PLAN "qm unlock ${vm_id}"
}

let_go() {
  if [[ ${vm_locked} == yes ]]; then
    vm_locked=no
    vm_unlock
  fi
}

require_proof() {
  vm_read "${vm_id}"
  vm_prove
  if [[ ${vm_state} == absent ]]; then
    result_fail vm "VM ${vm_id} does not exist on node '${probe_node}'" 'list-vms.sh shows those that do'
  elif [[ ${vm_state} == unknown ]]; then
    result_fail vm "could not read the config of VM ${vm_id} on node '${probe_node}': ${run_said}" "look at: qm config ${vm_id}"
  elif [[ -n ${vm_doubt} ]]; then
    if [[ ${vm_state} == moved ]]; then
      result_line VM_MOVED "${vm_moved_to}"
    fi
    result_fail vm "refused to ${ACTION} VM ${vm_id} on node '${probe_node}': ${vm_doubt}; nothing was touched" \
      'check VM_ID, VM_NAME, LINUS_JOB and LINUS_OWNER against list-vms.sh; a VM that is not ours is left to its owner'
  fi
}

# Runs the command, or tells it. The function sets retry_landed.
change_vm() { # <function> <seconds> <command...>
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "${*:3}"
    retry_landed=yes
  else
    retry_change "$@"
  fi
}

do_start() {
  if [[ ${vm_status} == running ]]; then
    log_info "VM ${vm_id} runs already"
  elif [[ ${dry_run} == yes ]]; then
    result_text PLAN "qm start ${vm_id}"
  elif [[ ${vm_suspended} == yes ]]; then
    suspend_resume "${probe_node}"
    require_proof
    vm_resumed=yes
  else
    start_vm
    # What waited for a restart counts now: card and address may be others.
    require_proof
  fi
}

# One that runs may be so by a resume that was killed before it set the clock.
do_resume() {
  if [[ ${vm_status} == stopped && ${vm_suspended} == no ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped, not suspended" 'start it'
  fi
  do_start
  vm_resumed=yes
}

clear_suspend() {
  require_proof
  suspend_give_up
}

do_suspend() {
  if [[ ${vm_suspended} == yes ]]; then
    log_info "VM ${vm_id} is suspended already"
    return 0
  elif [[ ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped: it has no memory to keep" 'start it first, or leave it stopped'
  fi
  local retry_clear=clear_suspend
  change_vm suspend_has_landed 3600 qm suspend "${vm_id}" --todisk 1
  if [[ ${retry_landed} != yes ]]; then
    suspend_fail "${probe_node}"
  fi
}

do_stop() {
  change_vm stop_has_landed 120 qm stop "${vm_id}"
  require_stopped stop
}

do_shutdown() {
  if [[ ${vm_status} == stopped ]]; then
    log_info "VM ${vm_id} is stopped already"
    return 0
  fi
  change_vm stop_has_landed "$((VM_SHUTDOWN_TIMEOUT + 120))" qm shutdown "${vm_id}" --timeout "${VM_SHUTDOWN_TIMEOUT}" --forceStop 1
  require_stopped 'shut down'
}

require_stopped() { # <what was to be done>
  if [[ ${retry_landed} != yes && ${vm_ha} == yes ]]; then
    vm_blame_ha "${vm_id}" stop
    result_fail vm "could not $1 VM ${vm_id} on node '${probe_node}': ${vm_ha_failure}" "${vm_ha_remedy}"
  elif [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not $1 VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing} (status: ${vm_status})" \
      "look at: qm status ${vm_id} --verbose 1, and the task log of node '${probe_node}'"
  fi
}

# --- snapshots ---

# snapshot_state: absent, whole, or half (its making was killed); snapshot_memory:
# yes where it has what ran in the VM; snapshot_names: all there are, snapshot_count of them.
find_snapshot() {
  local line name state memory
  snapshot_state=absent
  snapshot_memory=no
  snapshot_names=''
  snapshot_count=0
  run_ask pvesh get "/nodes/${probe_node}/qemu/${vm_id}/snapshot" --output-format json
  json_rows read name snapstate vmstate
  if ((run_rc != 0 || json_rc != 0)); then
    result_fail vm "could not list the snapshots of VM ${vm_id} on node '${probe_node}': ${run_said}" "look at: qm listsnapshot ${vm_id}"
  fi
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r name state memory <<<"${line}"
    if [[ ${name} == "${SNAPSHOT}" && ${memory} == 1 ]]; then
      snapshot_memory=yes
    fi
    if [[ ${name} == "${SNAPSHOT}" && -n ${state} ]]; then
      snapshot_state=half
    elif [[ ${name} == "${SNAPSHOT}" ]]; then
      snapshot_state=whole
    fi
    if [[ ${name} != current ]]; then
      snapshot_names+="${snapshot_names:+, }${name}"
      ((snapshot_count += 1))
    fi
  done
}

# A worker that was killed leaves its lock, and a snapshot that is none.
clear_killed_work() {
  if [[ ${vm_config[lock]:-} =~ ^(snapshot|snapshot-delete|rollback)$ && ${dry_run} == no ]]; then
    vm_break_lock "${vm_id}" "${probe_node}"
  fi
  if [[ ${snapshot_state} == half ]]; then
    log_warn "snapshot '${SNAPSHOT}' of VM ${vm_id} was never finished: removing what there is of it"
    local retry_clear=clear_half_snapshot
    change_vm snapshot_is_gone 600 qm delsnapshot "${vm_id}" "${SNAPSHOT}" --force 1
  fi
}

# One that was not killed, but at work, is whole by now.
clear_half_snapshot() {
  require_proof
  find_snapshot
  if [[ ${snapshot_state} != half ]]; then
    retry_landed=hopeless
  fi
}

snapshot_is_gone() {
  find_snapshot
  if [[ ${snapshot_state} == absent ]]; then
    retry_landed=yes
  fi
}

do_snapshot() {
  find_snapshot
  require_free_name
  if [[ ${SNAPSHOT_MEMORY} == true && ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped: it has no memory to save" 'start it first, or take the snapshot without its memory'
  fi
  clear_killed_work
  require_free_name
  require_snapshot_room
  plan_snapshot
  if [[ ${SNAPSHOT_MEMORY} == true ]]; then
    change_vm snapshot_has_landed 3600 qm snapshot "${vm_id}" "${SNAPSHOT}" --vmstate 1
  else
    change_vm snapshot_has_landed 900 qm snapshot "${vm_id}" "${SNAPSHOT}"
  fi
  if [[ ${retry_landed} != yes ]]; then
    fail_snapshot
  elif [[ ${SNAPSHOT_MEMORY} == true && ${dry_run} == no ]]; then
    require_memory
  fi
}

require_free_name() {
  if [[ ${snapshot_state} == whole ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has a snapshot '${SNAPSHOT}' already" "choose another name; there are: ${snapshot_names}"
  fi
}

# Snapshots take space as the disk changes, and those with memory at once.
require_snapshot_room() {
  if ((SNAPSHOT_MAX > 0 && snapshot_count >= SNAPSHOT_MAX)); then
    result_fail config "VM ${vm_id} on node '${probe_node}' has as many snapshots as it may: ${SNAPSHOT_MAX} (MAX_SNAPSHOTS)" \
      "have one removed on the node (qm delsnapshot ${vm_id} NAME); there are: ${snapshot_names}"
  elif [[ ${SNAPSHOT_MEMORY} != true ]]; then
    return 0
  fi
  local storage memory=512
  if [[ ${vm_config[memory]:-} =~ [0-9]{1,9} ]]; then
    memory=${BASH_REMATCH[0]}
  fi
  vm_find_storages
  for storage in ${vm_storages}; do
    probe_start "${storage}"
    probe_storage "${storage}"
    probe_require
    probe_reserve "${storage}" "${memory}"
    probe_require
  done
}

# A VM that stopped meanwhile has a snapshot of its disks alone.
require_memory() {
  find_snapshot
  if [[ ${snapshot_state} != whole || ${snapshot_memory} != yes ]]; then
    result_fail vm "snapshot '${SNAPSHOT}' of VM ${vm_id} on node '${probe_node}' was taken without its memory" "remove it (qm delsnapshot ${vm_id} ${SNAPSHOT}), and take it again while the VM runs"
  fi
}

fail_snapshot() { # run_said: why
  local -r failure="could not take snapshot '${SNAPSHOT}' of VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing}"
  if [[ ${run_said} == *'snapshot feature is not available'* ]]; then
    result_fail config "${failure}" 'use a storage that has snapshots (lvmthin, zfs, rbd, or qcow2 files on a directory): PROXMOX_STORAGE'
  fi
  result_fail vm "${failure}" "look at: qm listsnapshot ${vm_id}, and the free space of its storage (pvesm status)"
}

# Whether the VM's disks have snapshots, as Proxmox asks before it takes one.
plan_snapshot() {
  if [[ ${dry_run} == no ]]; then
    return 0
  fi
  run_read 60 pvesh get "/nodes/${probe_node}/qemu/${vm_id}/feature" --feature snapshot --output-format json
  json_rows read hasFeature
  if ((run_rc != 0 || json_rc != 0)); then
    result_fail vm "could not ask whether VM ${vm_id} on node '${probe_node}' can have snapshots: ${run_said}" "look at: qm config ${vm_id}"
  elif [[ ${json_lines[0]:-0} != 1 ]]; then
    run_said='snapshot feature is not available'
    fail_snapshot
  fi
}

snapshot_has_landed() {
  vm_read "${vm_id}"
  if [[ ${vm_config[parent]:-} == "${SNAPSHOT}" && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

# A roll-back pulls the plug by itself, and starts the VM where the snapshot has its
# memory. It gives the config of its day back, too
# (but the description), so that the proof comes again before the start.
do_revert() {
  find_snapshot
  if [[ ${snapshot_state} != whole ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no snapshot '${SNAPSHOT}'" "there are: ${snapshot_names:-none}"
  fi
  clear_killed_work
  if [[ ${dry_run} == no ]]; then
    egress_prepare "${vm_id}" # the roll-back may start it
  fi
  change_vm rollback_has_landed 900 qm rollback "${vm_id}" "${SNAPSHOT}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not revert VM ${vm_id} on node '${probe_node}' to snapshot '${SNAPSHOT}': Proxmox answered: ${run_said:-nothing}" \
      "look at: qm config ${vm_id}, and the task log of node '${probe_node}'; the VM may be stopped"
  fi
  require_proof
  vm_read_status "${vm_id}"
  if [[ ${dry_run} == yes && ${snapshot_memory} == no ]]; then
    vm_status=stopped
  elif [[ ${vm_status} == running ]]; then
    vm_resumed=yes
  fi
  do_start
}

# The config looks the same before and after, so that here the exit code counts.
rollback_has_landed() {
  local -r code=${run_rc}
  vm_read "${vm_id}"
  if ((code == 0)) && [[ ${vm_config[parent]:-} == "${SNAPSHOT}" && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

# --- output_result ---

output_result() {
  result_line VM_ID "${vm_id}"
  result_line VM_NAME "${vm_name}"
  result_line VM_NODE "${probe_node}"
  if [[ -n ${vm_ip} ]]; then
    result_line VM_IP "${vm_ip}"
    result_line VM_USER "${VM_SSH_USER:-${vm_config[ciuser]:-root}}"
    if [[ -n ${vm_host_key} ]]; then
      result_line VM_HOST_KEY "${vm_host_key}"
    fi
  fi
  result_line RESULT SUCCESS
}

# Nothing is undone: the VM is another's work, not this run's.
finish() {
  let_go
  : "${result_remedy:=look at: qm status ${vm_id}; then run it again}"
}

main() {
  if [[ ${1:-} == --help ]]; then
    usage
    return 0
  fi
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local waits=no steps=3
  if [[ ${ACTION:-} =~ ^(start|resume|revert)$ ]]; then
    waits=yes steps=5
  fi
  script_begin "${steps}" finish
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step power_vm "${ACTION} of the VM"
  if [[ ${vm_resumed} == yes && ${dry_run} == no ]]; then
    suspend_set_clock "${probe_node}"
    result_run_step wait_for_network 'asking for its address'
    result_run_step suspend_verify_ready 'waiting until it can be reached'
  elif [[ ${waits} == yes && ${dry_run} == no ]]; then
    result_run_step wait_for_network 'waiting for its address'
    result_run_step verify_ssh_ready 'waiting until it is ready'
  fi
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then main "$@"; fi
