# shellcheck shell=bash
# Copies of a running VM of linus. If its storage can clone a snapshot with memory, they continue
# from there (live), in exactly the machine that was saved. Otherwise each boots from a copy of its
# disk (disk). Both begin as the guest that was copied, and get their own identity before their link
# is up (lib/restore.sh).
#
# A saved guest has its link up, and Proxmox takes a copy's link down only a moment after the copy
# runs. So network rules (lib/egress.sh) close its card from before its start until it has its own
# identity.

source "${BASH_SOURCE[0]%/*}/probe.sh"
source "${BASH_SOURCE[0]%/*}/restore.sh"

fork_snapshot=linus-fork # of the VM that is copied, while it is copied (lib/fork-point.sh)

# Refuses a VM with anything that no copy can have, or that a copy would share with it.
fork_require_copyable() { # vm_config
  vm_find_uncopyable
  if [[ -n ${vm_uncopyable} ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has ${vm_uncopyable}, which no copy of it can have" 'take that from the VM, and start it anew'
  fi
}

fork_validate_inputs() {
  if [[ -z ${VM_FORK} ]]; then
    return 0
  fi
  validate_number VM_FORK "${VM_FORK}" 100 999999999
  validate_uuid VM_FORK_JOB "${VM_FORK_JOB}"
  validate_pattern VM_FORK_LIVE "${VM_FORK_LIVE}" 'true|false' 'true or false'
  if [[ -n ${VM_CHECKPOINT} ]]; then
    result_fail invalid 'VM_FORK and VM_CHECKPOINT are both given' 'give one of them'
  fi
}

fork_unfit() { # <why>
  result_fail config "VM ${VM_FORK} on node '${probe_node}' cannot be copied: $1" "look at: qm config ${VM_FORK}${2:+ --snapshot $2}"
}

fork_validate() {
  local snapshot=''
  if [[ ${VM_FORK_LIVE} == true ]]; then
    snapshot=${fork_snapshot}
  fi
  validate_tools od
  vm_read "${VM_FORK}" '' "${snapshot}"
  if [[ ${vm_state} != present ]]; then
    fork_unfit "it is not there${run_said:+: ${run_said}}"
  elif [[ ${vm_words} != *" linus-job=${VM_FORK_JOB} "* || ${vm_words} != *" linus-owner=${vm_owner} "* || ${vm_words} != *" linus-vm=${VM_FORK} "* ]]; then
    fork_unfit 'it is not proven to be the VM that is meant'
  elif [[ ${vm_config[template]:-0} != 0 ]]; then
    fork_unfit 'it is a template'
  elif [[ -n ${snapshot} && (-z ${vm_config[vmstate]:-} || -n ${vm_config[snapstate]:-} || -z ${vm_config[runningmachine]:-} || -z ${vm_config[runningcpu]:-}) ]]; then
    fork_unfit "it has no snapshot '${snapshot}' with its memory" "${snapshot}"
  fi
  local -r vm_id=${VM_FORK}
  fork_require_copyable
  fork_take_shape
  template_id=${VM_FORK} clone_source=${VM_FORK} clone_options=(--full 1) vm_alike=yes
  declare -gA checkpoint=([MAC]=${vm_mac,,})
  restore_boots=yes restore_patience=${VM_READY_TIMEOUT} restore_takes=300 # there is no boot to fall back on
  if [[ -n ${snapshot} ]]; then
    clone_options=(--snapname "${snapshot}" --full 0)
    restore_boots=no restore_patience=60
    vm_start_options=(--stateuri "${vm_config[vmstate]}" --machine "${vm_config[runningmachine]}" --force-cpu "${vm_config[runningcpu]}")
    if [[ -n ${vm_config["running-nets-host-mtu"]:-} ]]; then # Proxmox 8.x neither notes nor takes it
      vm_start_options+=(--nets-host-mtu "${vm_config["running-nets-host-mtu"]}")
    fi
    if [[ -z ${vm_egress} ]]; then
      egress_require_nft
      vm_egress=linus-egress=none restore_egress=${vm_egress}
    fi
  else
    create_seconds=10000 # all of its disks are copied
    vm_measure_disks
    probe_room "${vm_disks_mib}" 'of the copy'
  fi
}

# A copy has the size of its original, because a saved state can only be loaded into the same
# machine.
fork_take_shape() { # vm_config
  if [[ ! ${vm_config[memory]:-} =~ ^(current=)?([0-9]{1,6})$ ]]; then
    fork_unfit "its memory is '${vm_config[memory]:-}'"
  fi
  VM_RAM=${BASH_REMATCH[2]} VM_CPU=${vm_config[cores]:-1} VM_CPU_TYPE=''
  vm_find_boot_disk
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  VM_DISK=$((vm_kib / 1048576))
  if ((vm_kib == 0 || vm_kib % 1048576 != 0)); then
    fork_unfit "the size of its disk is no number of GB: ${vm_config[${vm_boot_disk:-scsi0}]:-none}"
  elif [[ ${vm_config[sockets]:-1} != 1 ]]; then
    fork_unfit "it has ${vm_config[sockets]} sockets"
  fi
  read_network
  vm_user=${vm_config[ciuser]:-}
}
