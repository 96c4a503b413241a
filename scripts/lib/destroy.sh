# shellcheck shell=bash
# Stops and destroys one VM on this node after proof (lib/vm.sh), one at a time, and clears what
# stands in the way: locks of Proxmox, its tasks, and the protection that a clone has from its
# template. vm_job, vm_owner and vm_name say whose VM is meant.

source "${BASH_SOURCE[0]%/*}/checkpoint.sh"
source "${BASH_SOURCE[0]%/*}/egress.sh"
source "${BASH_SOURCE[0]%/*}/fence.sh"
source "${BASH_SOURCE[0]%/*}/left.sh"
source "${BASH_SOURCE[0]%/*}/quarantine.sh"
source "${BASH_SOURCE[0]%/*}/retry.sh"
source "${BASH_SOURCE[0]%/*}/volume.sh"

vm_locked=no

# Only one run at a time may stop and destroy a VM, so that no other script of linus gets in between
# proof and destroy. The lock file is removed with the lock, so none is left behind. A run that
# waited on a removed file takes the lock on its successor.
vm_lock() { # <vmid>; vm_locked: yes or no, and vm_reason why not
  local -r dir=${LINUS_LOCK_DIR:-/run/linus}
  vm_lock_file=${dir}/linus-vm-$1.lock
  local -r deadline=$((SECONDS + 120))
  vm_locked=no
  vm_check_lock_dir "${dir}"
  if [[ -n ${vm_reason} ]]; then
    return 0
  fi
  vm_reason="could not take the lock ${vm_lock_file}: another run holds it, or it cannot be written"
  while ((SECONDS < deadline)); do
    if ! { exec 9>>"${vm_lock_file}"; } 2>/dev/null; then
      return 0
    fi
    if flock -w 1 9 && [[ ${vm_lock_file} -ef /proc/self/fd/9 ]]; then
      vm_locked=yes
      vm_reason=''
      return 0
    fi
    exec 9>&-
    run_exit_if_stopped
  done
}

vm_unlock() {
  vm_locked=no
  rm -f -- "${vm_lock_file}"
  exec 9>&-
}

# Stops and destroys the VM that is meant, if its config proves that it is linus's.
# vm_outcome:
#   destroyed  it is gone, by this run
#   gone       the cluster has no VM of that ID
#   foreign    another VM has that ID now (lib/left.sh), and is untouched: the VM meant is gone
#   refused    it is not proven and yet not gone, or somebody has protected it: untouched
#   failed     tried and not done, or not known: to be tried again
#   fenced     others have taken the engine that asks for dead (lib/fence.sh): untouched
# vm_reason says why. vm_leftovers lists volumes that stayed on the storage, vm_unseen those for
# which that is not known; the ID is then in quarantine. The VM's lease, the address reserved for
# it, its network rules and a checkpoint's memory are removed once it is gone, not before. Never
# ends the script, because the roll-back calls it too.
vm_destroy() { # <vmid> <node>
  vm_outcome=failed
  vm_reason=''
  vm_leftovers='' vm_unseen=''
  vm_lock "$1"
  if [[ ${vm_locked} != yes ]]; then
    return 0
  fi
  fence_look
  if [[ ${fence_up} == yes ]]; then
    vm_outcome=fenced
    vm_unlock
    return 0
  fi
  vm_destroy_locked "$1" "$2"
  if [[ ${vm_outcome} == @(destroyed|gone|foreign) ]]; then
    lease_drop "$1" "${vm_job}"
    address_drop "${vm_job}"
    egress_clear "$1"
    checkpoint_drop "$1" "${vm_job}"
  fi
  vm_unlock
}

# Destroys, in a roll-back, the VM that this run has made or used up, and says what stays. A worker
# killed before it wrote the description leaves a VM that only its lease can prove, and only if
# nothing speaks against it.
vm_undo() { # <vmid> <node>; as vm_destroy
  log_info "rolling back VM $1"
  vm_destroy "$1" "$2"
  case ${vm_outcome} in
    destroyed) log_info "VM $1 is destroyed" ;;
    gone) log_info "VM $1 does not exist: nothing to undo" ;;
    foreign) log_info "VM $1 is another's: nothing to undo" ;;
    refused) result_warning "VM $1 on node '$2' is left alone: ${vm_reason}" ;;
    *) result_warning "VM $1 on node '$2' could not be destroyed and is left behind: ${vm_reason}" ;;
  esac
  vm_tell_leftovers "$1"
}

vm_tell_leftovers() { # <vmid>
  if [[ -n ${vm_leftovers} ]]; then
    result_warning "VM $1 is gone, but volumes of it were left on the storage: ${vm_leftovers}"
  fi
  if [[ -n ${vm_unseen} ]]; then
    result_warning "VM $1 is gone, and whether these volumes of it are gone, too, is not known, for their storage could not be listed: ${vm_unseen}"
  fi
}

vm_destroy_locked() { # <vmid> <node>
  local -r id=$1 node=$2
  vm_check_before_destroy "${id}" "${node}"
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  vm_clones=''
  if [[ ${vm_config[template]:-0} == 1 ]]; then
    vm_find_clones "${id}"
  fi
  if [[ -n ${vm_clones} ]]; then # Proxmox would refuse the destroy
    vm_reason="linked clones read its disk: ${vm_clones}"
    return 0
  fi
  vm_find_storages
  vm_find_unfinished "${id}"
  if [[ ${lease_proven} == yes ]]; then # it must also prove the unlock and what a destroy leaves
    lease_save
  fi

  # An earlier try may have destroyed the VM, so that its ID may be another's, and may have left its
  # lock.
  clear_way() {
    vm_check_before_destroy "${id}" "${node}"
    vm_clear_lock "${id}" "${node}"
    if [[ -n ${vm_doubt} ]]; then
      retry_landed=hopeless
    fi
  }
  local retry_clear=clear_way
  is_stopped() {
    vm_await_status "${id}" stopped "${run_said}"
    if [[ ${vm_status} == stopped ]]; then
      retry_landed=yes
    fi
  }
  vm_clear_lock "${id}" "${node}"
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  retry_by=guard retry_change is_stopped 120 qm stop "${id}"
  if [[ ${retry_landed} == hopeless ]]; then
    return 0
  elif [[ ${retry_landed} != yes ]]; then
    vm_reason="qm stop ${id} did not stop it (status ${vm_status}): ${run_said}"
    if [[ ${vm_ha} == yes ]]; then
      vm_blame_ha "${id}" stop
      vm_reason=${vm_ha_failure}
    fi
    return 0
  fi

  vm_unprotect "${id}" "${node}"
  if [[ -z ${vm_doubt} ]]; then
    vm_detach_volumes "${id}" "${node}"
  fi
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  # A destroy that does not finish leaves a config without marker.
  if [[ ${lease_proven} == no ]]; then
    lease_announce "${id}" "${node}" destroyed "${vm_storages}"
  fi
  is_gone() {
    vm_read "${id}"
    if [[ ${vm_state} == absent ]]; then
      retry_landed=yes
    fi
  }
  vm_clear_lock "${id}" "${node}"
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  # Not with --destroy-unreferenced-disks: it takes every volume with the ID on every storage, and
  # such a volume may be another cluster's, or kept from an earlier VM.
  retry_by=guard retry_change is_gone 300 qm destroy "${id}" --purge 1
  if [[ ${retry_landed} == hopeless ]]; then
    return 0
  elif [[ ${retry_landed} != yes ]]; then
    vm_reason="qm destroy ${id} did not remove it: ${run_said}"
    vm_check_protection "${id}" # it may be the reason
    return 0
  fi
  vm_outcome=destroyed
  vm_find_leftovers "${id}"
  if [[ ${vm_unfinished} == yes ]]; then
    vm_free_leftovers "${id}"
  fi
  if [[ -n ${vm_leftovers}${vm_unseen} ]]; then
    # shellcheck disable=SC2086 # lists of words
    quarantine_add "${id}" ${vm_leftovers} ${vm_unseen}
  fi
}

# Finds ID and name of the VMs with disks linked to those of the template whose config was just
# read. It reads the configs of all nodes, and leaves out a VM whose config cannot be read. Where
# clones do not need their base, as on LVM-thin, their volumes do not name it.
vm_find_clones() { # <vmid>; vm_clones
  local file line name linked text
  local bases=' '
  local -r base="([^:,]+):([^,]*/)?(base-$1-disk-[0-9]+[^,/]*)"
  vm_clones=''
  for line in "${vm_config[@]}"; do
    if [[ ${line} =~ ^${base}(,|$) ]]; then
      bases+="${BASH_REMATCH[1]}:${BASH_REMATCH[3]} "
    fi
  done
  for file in "${LINUS_PVE_DIR:-/etc/pve}"/nodes/*/qemu-server/*.conf; do
    name='' linked=no
    { text=$(head -c 65536 -- "${file}"); } 2>/dev/null || continue
    while IFS= read -r line; do
      if [[ ${line} == 'name: '* ]]; then
        name=${name:-${line#name: }}
      elif [[ ${line} =~ ^(scsi|virtio|sata|ide|efidisk|tpmstate|unused)[0-9]+:\ ${base}/ && ${bases} == *" ${BASH_REMATCH[2]}:${BASH_REMATCH[4]} "* ]]; then
        linked=yes
      fi
    done <<<"${text}"
    if [[ ${linked} == yes ]]; then
      file=${file##*/}
      vm_clones+="${vm_clones:+, }${file%.conf}${name:+ (${name:0:63})}"
    fi
  done
}

# Tells whether the config just read and proven is that of a killed create. Such a VM may have
# volumes that no config names, on the storages that its lease announced, where no volume had that
# ID before. vm_unfinished: yes or no; vm_storages: includes those storages.
vm_find_unfinished() { # <vmid>
  local lock=${vm_config[lock]:-}
  local storage
  if [[ ${lease_proven} == yes ]]; then
    lock=${lease_lock}
    vm_storages=${lease_storages//,/ }
  fi
  vm_unfinished=no
  if [[ ${lock} != @(clone|create) ]]; then
    return 0
  fi
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} == yes && ${lease_lock} == "${lock}" ]]; then
    vm_unfinished=yes
    for storage in ${lease_storages//,/ }; do
      if [[ " ${vm_storages} " != *" ${storage} "* ]]; then
        vm_storages+="${vm_storages:+ }${storage}"
      fi
    done
  fi
}

# Proves the VM by a config read this moment, and sets the outcome if that fails. lease_proven: yes
# when a lease proves what the config cannot (lib/lease.sh).
vm_check_before_destroy() { # <vmid> <node>
  vm_read "$1"
  vm_prove
  lease_proven=no
  if [[ ${vm_state} == absent ]]; then
    vm_outcome=gone
  elif [[ ${vm_state} == moved ]]; then
    vm_judge_doubt
  elif [[ ${vm_state} == unknown ]]; then
    vm_outcome=failed
    vm_reason="the config of VM $1 could not be read: ${run_said}"
  elif [[ -n ${vm_doubt} ]]; then
    lease_prove "$1" "$2"
    case ${lease_proof} in
      yes)
        vm_doubt=''
        lease_proven=yes
        ;;
      busy)
        vm_outcome=failed
        ;;
      *) vm_judge_doubt ;;
    esac
  elif [[ ${vm_kind:-vm} == volume ]]; then
    vm_check_unattached "$1"
  else
    vm_check_protection "$1"
    vm_check_moved "$1"
  fi
}

# A VM that is not proven is refused, or foreign if it is certainly another's. Proxmox itself does
# not clean up a VM that has no mark because its destroy or its create was not finished.
vm_judge_doubt() { # vm_outcome, vm_reason
  left_judge
  vm_outcome=refused
  if [[ ${left_whose} == another ]]; then
    vm_outcome=foreign
  fi
  vm_reason=${vm_doubt}
  if [[ -n ${vm_config[lock]:-} && -z ${vm_config[name]:-}${vm_config[description]:-} ]]; then
    vm_reason+="; it carries only the lock '${vm_config[lock]}', of a worker that was killed or is not done: when no task works on it, remove it by hand (qm unlock ${vm_asked}; qm destroy ${vm_asked} --purge 1)"
  fi
}

# A volume that somebody has moved to one of the VM's own disks would be destroyed with it.
vm_check_moved() { # <vmid>; vm_doubt, vm_outcome, vm_reason
  volume_find_foreign "$1"
  if [[ -z ${vm_doubt} && -n ${volume_moved} ]]; then
    vm_doubt="it has a volume on a disk of its own (${volume_moved}), to which somebody has moved it"
    vm_outcome=refused
    vm_reason=${vm_doubt}
  fi
}

# A volume is destroyed only if no VM has it.
vm_check_unattached() { # <vmid of its holder>; vm_doubt, vm_outcome, vm_reason
  volume_find_disk
  volume_users=() volume_rc=0
  if [[ -n ${volume_disk} ]]; then
    volume_find_users "${volume_disk}" "$1"
  fi
  if ((volume_rc > 1)); then
    vm_doubt="which VMs have the volume could not be read: ${run_said}"
    vm_outcome=failed
  elif ((${#volume_users[@]} > 0)); then
    vm_doubt="the volume is attached to VM ${volume_users[0]%% *}"
    vm_outcome=refused
    if [[ ${vm_config[protection]:-0} == 0 && ${dry_run:-no} == no ]]; then # it stays
      run_change 60 qm set "$1" --protection 1 --digest "${vm_digest}"
    fi
  fi
  if [[ -n ${vm_doubt} ]]; then
    vm_reason=${vm_doubt}
  fi
}

# Takes the volumes off the stopped VM whose config was just read and proven, and sees that they are
# off, before the VM is destroyed.
vm_detach_volumes() { # <vmid> <node>; vm_doubt, vm_reason
  local vmid=$1 node=$2
  volume_find_foreign "$1"
  if [[ -n ${volume_foreign} ]]; then
    vm_clear_lock "$1" "$2"
    volume_find_foreign "$1"
  fi
  if [[ -n ${vm_doubt} || -z ${volume_foreign} ]]; then
    return 0
  fi
  local -r chosen=${volume_foreign}
  clear_volumes() { # another try is for the same disks only
    clear_way
    volume_find_foreign "${vmid}"
    if [[ ${retry_landed} == no && ${volume_foreign} != "${chosen}" ]]; then
      retry_landed=hopeless
      vm_doubt='its disks have changed meanwhile'
      vm_outcome=failed
      vm_reason=${vm_doubt}
    fi
  }
  local retry_clear=clear_volumes
  are_detached() {
    vm_read "${vmid}"
    volume_find_foreign "${vmid}"
    if [[ ${vm_state} == present && -z ${volume_foreign} ]]; then
      retry_landed=yes
    fi
  }
  retry_by=digest retry_change are_detached 120 qm set "$1" --delete "${chosen}"
  if [[ ${retry_landed} == yes ]]; then
    vm_check_before_destroy "$1" "$2"
  elif [[ ${retry_landed} == no ]]; then
    vm_doubt='volumes could not be taken off it'
    vm_reason="its volumes (${volume_foreign:-unknown}) could not be taken off it, and it is not destroyed with them: ${run_said}"
  fi
}

# Configuring a clone removes the protection it has from its template. Protection found later was
# set by somebody who wants to keep the VM.
vm_check_protection() { # <vmid>; vm_doubt, vm_outcome, vm_reason
  if [[ ${vm_config[protection]:-0} != 0 && ${vm_words} != *' linus-state=cloning '* ]]; then
    vm_doubt="it is protected: somebody has set 'protection: 1' for it"
    vm_outcome=refused
    vm_reason=${vm_doubt}
  fi
}

# Gives the last proof before the destroy, and removes the protection that a clone has from its
# template until it is configured.
vm_unprotect() { # <vmid> <node>; vm_doubt, vm_outcome, vm_reason
  vm_check_before_destroy "$1" "$2"
  if [[ ${vm_config[protection]:-0} != 0 ]]; then
    vm_clear_lock "$1" "$2"
  fi
  if [[ -n ${vm_doubt} || ${vm_config[protection]:-0} == 0 ]]; then
    return 0
  fi
  local vmid=$1
  is_unprotected() {
    vm_read "${vmid}"
    if [[ ${vm_state} == present && ${vm_config[protection]:-0} == 0 ]]; then
      retry_landed=yes
    fi
  }
  retry_by=digest retry_change is_unprotected 60 qm set "$1" --protection 0
  if [[ ${retry_landed} == no ]]; then
    vm_doubt='its protection could not be taken off'
    vm_reason="qm set $1 --protection 0 did not take its protection off: ${run_said}"
  elif [[ ${retry_landed} == yes ]]; then
    vm_check_before_destroy "$1" "$2"
  fi
}

# Breaks the lock that a killed worker left in the config just read and proven, but only if no task
# is at work on the VM. Otherwise the lock stays, and the destroy waits for it and says so.
vm_break_lock() { # <vmid> <node>
  if [[ -z ${vm_config[lock]:-} ]]; then
    return 0
  fi
  vm_find_tasks "$1" "$2"
  if [[ ${vm_busy} == no ]]; then
    log_warn "VM $1 carries the lock '${vm_config[lock]}', and no task is at work on it: unlocking"
    run_change 60 qm unlock "$1"
    vm_digest='' # it is that of the config before the unlock
  fi
}

# Breaks the lock of a VM that is to be destroyed. What follows is done by the config after the
# unlock, so that config must prove the VM. If only its lease proves the VM, the config has nothing
# else.
vm_clear_lock() { # <vmid> <node>; vm_doubt, vm_outcome, vm_reason
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  vm_break_lock "$1" "$2"
  if [[ -z ${vm_digest} && ${lease_proven} == no ]]; then
    vm_check_before_destroy "$1" "$2"
  fi
}

vm_free_leftovers() { # <vmid>; vm_leftovers: what is still there
  local volume
  for volume in ${vm_leftovers}; do
    run_change 120 pvesm free "${volume}"
  done
  if [[ -n ${vm_leftovers} ]]; then
    vm_find_leftovers "$1"
  fi
}

vm_find_leftovers() { # <vmid>; vm_leftovers, vm_unseen
  local storage volume line
  vm_leftovers='' vm_unseen=''
  for storage in ${vm_storages}; do
    run_read 60 pvesm list "${storage}" --vmid "$1"
    if ((run_rc != 0)); then
      log_warn "could not search for volumes left on ${storage}: ${run_said}"
      for volume in ${vm_volumes}; do
        if [[ ${volume} == "${storage}":* && ${run_said} != *"storage '${storage}' does not exist"* ]]; then
          vm_unseen+="${vm_unseen:+ }${volume}"
        fi
      done
      continue
    fi
    run_lines read
    for line in "${run_lines[@]}"; do
      volume=${line%%[[:space:]]*}
      if [[ ${volume} == "${storage}":* ]]; then
        vm_leftovers+="${vm_leftovers:+ }${volume}"
      fi
    done
  done
}
