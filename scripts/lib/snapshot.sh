# shellcheck shell=bash
# Snapshots of VM vm_id, as power-vm.sh's inputs ask: takes or removes one, or reverts the VM to
# one.

source "${BASH_SOURCE[0]%/*}/power.sh"
source "${BASH_SOURCE[0]%/*}/probe.sh"

snapshot_take() {
  snapshot_find
  snapshot_require_free_name
  if [[ ${SNAPSHOT_MEMORY} == true && ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is stopped: it has no memory to save" 'start it first, or take the snapshot without its memory'
  fi
  snapshot_clear_killed
  snapshot_require_free_name
  snapshot_require_room
  snapshot_plan
  if [[ ${SNAPSHOT_MEMORY} == true ]]; then
    power_change snapshot_has_landed 3600 qm snapshot "${vm_id}" "${SNAPSHOT}" --vmstate 1
  else
    power_change snapshot_has_landed 900 qm snapshot "${vm_id}" "${SNAPSHOT}"
  fi
  if [[ ${retry_landed} != yes ]]; then
    snapshot_fail
  elif [[ ${SNAPSHOT_MEMORY} == true && ${dry_run} == no ]]; then
    snapshot_require_memory
  fi
}

snapshot_require_free_name() {
  if [[ ${snapshot_state} == whole ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has a snapshot '${SNAPSHOT}' already" "choose another name; there are: ${snapshot_names}"
  fi
}

# Snapshots take space as the disk changes, and those with memory take it at once.
snapshot_require_room() {
  if ((SNAPSHOT_MAX > 0 && snapshot_count >= SNAPSHOT_MAX)); then
    result_fail config "VM ${vm_id} on node '${probe_node}' has as many snapshots as it may: ${SNAPSHOT_MAX} (MAX_SNAPSHOTS)" \
      "remove one that is not needed; there are: ${snapshot_names}"
  elif [[ ${SNAPSHOT_MEMORY} != true ]]; then
    return 0
  fi
  local memory=512
  if [[ ${vm_config[memory]:-} =~ [0-9]{1,9} ]]; then
    memory=${BASH_REMATCH[0]}
  fi
  probe_room "${memory}"
}

# Tells in a dry run whether the VM's disks have snapshots, as Proxmox asks before it takes one.
snapshot_plan() {
  if [[ ${dry_run} == no ]]; then
    return 0
  fi
  run_read 60 pvesh get "/nodes/${probe_node}/qemu/${vm_id}/feature" --feature snapshot --output-format json
  json_rows read hasFeature
  if ((run_rc != 0 || json_rc != 0)); then
    result_fail vm "could not ask whether VM ${vm_id} on node '${probe_node}' can have snapshots: ${run_said}" "look at: qm config ${vm_id}"
  elif [[ ${json_lines[0]:-0} != 1 ]]; then
    run_said='snapshot feature is not available'
    snapshot_fail
  fi
}

snapshot_has_landed() {
  vm_read "${vm_id}"
  if [[ ${vm_config[parent]:-} == "${SNAPSHOT}" && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

snapshot_fail() { # run_said: why
  local -r failure="could not take snapshot '${SNAPSHOT}' of VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing}"
  if [[ ${run_said} == *'snapshot feature is not available'* ]]; then
    result_fail config "${failure}" 'use a storage that has snapshots (lvmthin, zfs, rbd, or qcow2 files on a directory): PROXMOX_STORAGE'
  fi
  retry_fail "${failure}" "look at: qm listsnapshot ${vm_id}, and the free space of its storage (pvesm status)"
}

# If the VM stopped meanwhile, the snapshot has only its disks.
snapshot_require_memory() {
  snapshot_find
  if [[ ${snapshot_state} != whole || ${snapshot_memory} != yes ]]; then
    result_fail vm "snapshot '${SNAPSHOT}' of VM ${vm_id} on node '${probe_node}' was taken without its memory" "remove it (qm delsnapshot ${vm_id} ${SNAPSHOT}), and take it again while the VM runs"
  fi
}

# --- revert ---

# Proxmox's rollback itself stops the VM hard, and starts it if the snapshot has its memory. It also
# restores the config of that time (but not the description), so the proof is repeated before the
# start.
snapshot_revert() {
  snapshot_find
  snapshot_require
  snapshot_clear_killed
  if [[ ${dry_run} == no ]]; then
    egress_prepare "${vm_id}" # the roll-back may start it
  fi
  retry_by=guard power_change snapshot_is_back 900 qm rollback "${vm_id}" "${SNAPSHOT}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not revert VM ${vm_id} on node '${probe_node}' to snapshot '${SNAPSHOT}': Proxmox answered: ${run_said:-nothing}" \
      "look at: qm config ${vm_id}, and the task log of node '${probe_node}'; the VM may be stopped"
  fi
  power_require_proof
  vm_read_status "${vm_id}"
  if [[ ${dry_run} == yes && ${snapshot_memory} == no ]]; then
    vm_status=stopped
  elif [[ ${vm_status} == running ]]; then
    vm_resumed=yes
  fi
  power_start
}

# The config looks the same before and after, so the exit code counts here.
snapshot_is_back() {
  local -r code=${run_rc}
  vm_read "${vm_id}"
  if ((code == 0)) && [[ ${vm_config[parent]:-} == "${SNAPSHOT}" && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

# --- removal ---

# Removes a snapshot. Nothing of the VM itself changes, and it may run. A half-made snapshot is
# removed, too.
snapshot_delete() {
  snapshot_find
  if [[ ${snapshot_state} != half ]]; then
    snapshot_require
  fi
  retry_landed=no
  snapshot_clear_killed
  if [[ ${snapshot_state} == whole ]]; then
    power_change snapshot_is_gone 3600 qm delsnapshot "${vm_id}" "${SNAPSHOT}"
  fi
  if [[ ${retry_landed} != yes ]]; then
    snapshot_fail_delete
  fi
}

# A failed removal leaves its lock, with which the VM could not be started any more.
snapshot_fail_delete() { # run_said: why
  local -r said=${run_said:-nothing}
  power_require_proof
  if [[ ${vm_config[lock]:-} == snapshot-delete ]]; then
    vm_break_lock "${vm_id}" "${probe_node}"
  fi
  result_fail vm "could not remove snapshot '${SNAPSHOT}' of VM ${vm_id} on node '${probe_node}': Proxmox answered: ${said}" \
    "look at: qm listsnapshot ${vm_id}, and the task log of node '${probe_node}'; then try again"
}

# --- what there is ---

snapshot_require() {
  if [[ ${snapshot_state} != whole ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no snapshot '${SNAPSHOT}'" "there are: ${snapshot_names:-none}"
  fi
}

# snapshot_state: absent, whole, or half (its making was killed); snapshot_memory: yes if it has the
# VM's memory; snapshot_names: all there are, snapshot_count of them.
snapshot_find() {
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

# A killed worker leaves its lock, and an unfinished snapshot.
snapshot_clear_killed() {
  if [[ ${vm_config[lock]:-} =~ ^(snapshot|snapshot-delete|rollback)$ && ${dry_run} == no ]]; then
    vm_break_lock "${vm_id}" "${probe_node}"
  fi
  if [[ ${snapshot_state} == half ]]; then
    log_warn "snapshot '${SNAPSHOT}' of VM ${vm_id} was never finished: removing what there is of it"
    local retry_clear=snapshot_clear_half
    power_change snapshot_is_gone 600 qm delsnapshot "${vm_id}" "${SNAPSHOT}" --force 1
  fi
}

# If its worker was not killed, but still at work, the snapshot is complete now.
snapshot_clear_half() {
  power_require_proof
  snapshot_find
  if [[ ${snapshot_state} != half ]]; then
    retry_landed=hopeless
  fi
}

snapshot_is_gone() {
  snapshot_find
  if [[ ${snapshot_state} == absent ]]; then
    retry_landed=yes
  fi
}
