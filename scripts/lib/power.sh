# shellcheck shell=bash
# Start, resume, suspend, stop, shutdown and the network of VM vm_id, as power-vm.sh's inputs ask;
# and what comes before any work on a VM: its lock (power_hold), the proof that it is linus's, and
# the cleanup of work that was cut short. vm_config, vm_status and vm_suspended are the VM's. ACTION
# is what is done to it, in words for people.

source "${BASH_SOURCE[0]%/*}/destroy.sh"
source "${BASH_SOURCE[0]%/*}/suspend.sh"

vm_resumed=no           # its memory came back from a disk, so its clock is behind
power_checkpoints=false # true: the VM may be a checkpoint
power_work=''           # what is done to it, if ACTION does not say that
power_sees=no           # yes: its address must be seen before its network opens

# Only one script at a time works on the VM, and none for an engine that others have taken for dead.
power_hold() { # <VM, or volume> <its vmid>
  if [[ ${dry_run} == yes ]]; then
    return 0
  fi
  vm_lock "$2"
  if [[ ${vm_locked} != yes ]]; then
    result_fail vm "${vm_reason}" 'wait for it to end, then try again'
  fi
  fence_look
  if [[ ${fence_up} == yes ]]; then
    result_line VM_OUTCOME fenced
    fence_fail "${ACTION} $1 $2 on node '${probe_node}'"
  fi
}

power_let_go() {
  if [[ ${vm_locked} == yes ]]; then
    vm_unlock
  fi
}

# Call it before each change, and before each further try of one.
power_require_proof() {
  vm_read "${vm_id}"
  vm_prove
  if [[ ${vm_state} == absent ]]; then
    result_fail vm "VM ${vm_id} does not exist on node '${probe_node}'" 'list-vms.sh shows those that do'
  elif [[ ${vm_state} == unknown ]]; then
    result_fail vm "could not read the config of VM ${vm_id} on node '${probe_node}': ${run_said}" "look at: qm config ${vm_id}"
  elif [[ -z ${vm_doubt} && ${vm_words} == *' linus-checkpoint='* && ${power_checkpoints} == false ]]; then
    result_fail vm "refused to ${power_work:-${ACTION}} VM ${vm_id} on node '${probe_node}': it is a checkpoint; nothing was touched" 'create-vm.sh makes VMs of it (VM_CHECKPOINT)'
  elif [[ -n ${vm_doubt} ]]; then
    if [[ ${vm_state} == moved ]]; then
      result_line VM_MOVED "${vm_moved_to}"
    fi
    result_fail vm "refused to ${power_work:-${ACTION}} VM ${vm_id} on node '${probe_node}': ${vm_doubt}; nothing was touched" \
      'check VM_ID, VM_NAME, LINUS_JOB and LINUS_OWNER against list-vms.sh; a VM that is not ours is left to its owner'
  fi
}

# Clears what a killed suspend or resume has left. vm_status, vm_suspended: the state after that.
power_clear_half() {
  suspend_find_half
  if [[ ${suspend_half} == yes && ${dry_run} == yes ]]; then
    result_fail vm "could not ${ACTION} VM ${vm_id} on node '${probe_node}' now: it was left in the middle of a suspend or a resume" 'a real run lets go of what that left, unless it is still at work'
  elif [[ ${suspend_half} == yes ]]; then
    suspend_clear_half "${probe_node}"
    power_require_proof
    vm_read_status "${vm_id}"
  fi
  vm_find_suspended "${vm_status}"
}

# Runs the command, or prints it in a dry run. The function sets retry_landed.
power_change() { # <function> <seconds> <command...>
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "${*:3}"
    retry_landed=yes
  else
    retry_change "$@"
  fi
}

power_start() {
  if [[ ${vm_status} == running ]]; then
    log_info "VM ${vm_id} runs already"
  elif [[ ${dry_run} == yes ]]; then
    result_text PLAN "qm start ${vm_id}"
  elif [[ ${vm_suspended} == yes ]]; then
    suspend_resume "${probe_node}"
    power_require_proof
    vm_resumed=yes
  else
    start_vm
    # Changes that waited for a restart apply now: card and address may be others.
    power_require_proof
  fi
}

# A running VM may have been resumed by a script that was killed before it set the clock.
power_resume() {
  if [[ ${vm_status} == stopped && ${vm_suspended} == no ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped, not suspended" 'start it'
  fi
  power_start
  vm_resumed=yes
}

power_suspend() {
  if [[ ${vm_suspended} == yes ]]; then
    log_info "VM ${vm_id} is suspended already"
    return 0
  elif [[ ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped: it has no memory to keep" 'start it first, or leave it stopped'
  fi
  local retry_clear=power_give_up_suspend
  retry_by=guard power_change suspend_has_landed 3600 qm suspend "${vm_id}" --todisk 1
  if [[ ${retry_landed} != yes ]]; then
    suspend_fail "${probe_node}"
  fi
}

power_give_up_suspend() {
  power_require_proof
  suspend_give_up
}

# Sets where the VM's packets may go from now on. Its config is changed first, because all rules are
# made from configs. A running VM that was on the LAN is closed until its address was seen.
power_network() {
  egress_read_word
  local -r was=${egress_word}
  if [[ -n ${vm_egress} ]]; then
    egress_require_bridge "${vm_id}"
  fi
  if [[ ${egress_word} != "${vm_egress}" ]]; then
    egress_reword "${vm_id}" "${vm_egress}"
    if ((run_rc != 0)); then
      result_fail vm "could not read the notes of VM ${vm_id} on node '${probe_node}': ${run_said}" "look at: qm config ${vm_id}"
    fi
    local -a change=(--description "${egress_notes}")
    if [[ -n ${vm_egress} && ${vm_config[onboot]:-0} != 0 ]]; then # only a start by these scripts sees to its rules
      change+=(--onboot 0)
    fi
    local -a tool=(qm)
    if [[ ${egress_notes} == *[^[:ascii:]]* ]]; then # Proxmox reads its arguments by the locale, and loses these in C
      tool=(env LC_ALL=C.UTF-8 qm)
    fi
    local retry_clear=network_again
    retry_by=digest power_change network_has_landed 120 "${tool[@]}" set "${vm_id}" "${change[@]}"
    if [[ ${retry_landed} != yes ]]; then
      retry_fail "the network of VM ${vm_id} on node '${probe_node}' could not be changed: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
    fi
  fi
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "nft -f ${LINUS_LOCK_DIR:-/run/linus}/egress.rules, with egress ${VM_EGRESS} for tap${vm_id}i0"
  elif [[ -z ${vm_egress} || ${vm_status} != running ]]; then
    egress_sync
    if [[ -n ${egress_reason} ]]; then
      result_fail config "the network rules of VM ${vm_id} on ${HOSTNAME} could not be changed: ${egress_reason}" 'look at: nft list table bridge linus; then run it again'
    fi
  elif [[ -z ${was} ]]; then
    egress_prepare "${vm_id}"
    power_sees=yes
  else
    egress_must_have "${vm_id}"
  fi
}

# Notes that somebody has changed meanwhile are not overwritten.
network_again() {
  local -r notes=${egress_notes}
  power_require_proof
  egress_reword "${vm_id}" "${vm_egress}"
  if ((run_rc != 0)) || [[ ${egress_notes} != "${notes}" ]]; then
    retry_landed=hopeless
  fi
}

network_has_landed() {
  vm_read "${vm_id}"
  vm_prove
  egress_read_word
  if [[ -z ${vm_doubt} && ${egress_word} == "${vm_egress}" && (-z ${vm_egress} || ${vm_config[onboot]:-0} == 0) ]]; then
    retry_landed=yes
  fi
}

power_stop() {
  retry_by=guard power_change stop_has_landed 120 qm stop "${vm_id}"
  power_require_stopped stop
}

power_shutdown() {
  if [[ ${vm_status} == stopped ]]; then
    log_info "VM ${vm_id} is stopped already"
    return 0
  fi
  retry_by=guard power_change stop_has_landed "$((VM_SHUTDOWN_TIMEOUT + 120))" qm shutdown "${vm_id}" --timeout "${VM_SHUTDOWN_TIMEOUT}" --forceStop 1
  power_require_stopped 'shut down'
}

power_require_stopped() { # <what was to be done>
  if [[ ${retry_landed} != yes && ${vm_ha} == yes ]]; then
    vm_blame_ha "${vm_id}" stop
    result_fail vm "could not $1 VM ${vm_id} on node '${probe_node}': ${vm_ha_failure}" "${vm_ha_remedy}"
  elif [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not $1 VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing} (status: ${vm_status})" \
      "look at: qm status ${vm_id} --verbose 1, and the task log of node '${probe_node}'"
  fi
}
