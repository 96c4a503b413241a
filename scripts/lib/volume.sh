# shellcheck shell=bash
# Volumes: disks of linus that outlive the VMs they are attached to. A volume belongs to a VM that
# never runs, its holder, whose description carries linus-volume=<its name>: the disk has the
# holder's ID, by which Proxmox knows whose it is. qm destroys with a VM only disks with that VM's
# own ID, so a volume outlives the VM even if it was not taken off before. The holder has the disk
# as an unused one, so that neither its start nor a backup of it opens what another VM writes to.
# The holder is protected, so that qm does not destroy it by mistake.

source "${BASH_SOURCE[0]%/*}/vm.sh"

# Finds the drives of the config just read that are volumes: their disks are another VM's, or are
# disks of this VM's own with a volume's serial number, to which somebody has moved it by hand.
volume_find_foreign() { # <vmid>; volume_foreign: their keys, separated by commas; volume_moved: the latter's
  local key
  local -r drive='^(scsi|virtio|sata|ide)[0-9]+$' form='^[^,]*[:/]vm-([0-9]+)-' serial=',serial=linus[0-9a-f]{12}(,|$)'
  volume_foreign='' volume_moved=''
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ${drive} && ${vm_config[${key}]} != *media=cdrom* && ${vm_config[${key}]} =~ ${form} ]]; then
      if [[ ${BASH_REMATCH[1]} != "$1" ]]; then
        volume_foreign+="${volume_foreign:+,}${key}"
      elif [[ ${vm_config[${key}]} =~ ${serial} ]]; then
        volume_foreign+="${volume_foreign:+,}${key}"
        volume_moved+="${volume_moved:+,}${key}"
      fi
    fi
  done
}

# Finds the disk of the holder whose config was just read: unused, except while it is made, and if
# somebody has attached it by hand.
volume_find_disk() { # volume_disk: empty if there is none; volume_held: its key
  local key
  volume_disk='' volume_held=''
  for key in unused0 "${!vm_config[@]}"; do
    if [[ -z ${volume_disk} && ${key} =~ ^(unused|scsi|virtio|sata|ide)[0-9]+$ && ${vm_config[${key}]:-} =~ ^([^,]*[:/]vm-"${vm_asked}"-[^,]*) ]]; then
      volume_disk=${BASH_REMATCH[1]} volume_held=${key}
    fi
  done
}

# Finds the VMs of any node, except the holder, that have a disk in their configs, including their
# snapshots and what waits for a restart.
volume_find_users() { # <disk> <holder>; volume_users: <vmid> <key> <rw or ro>, one each; volume_rc above 1: not known
  local line
  local -i tries=1
  local -r form='/([0-9]+)\.conf:([a-z]+[0-9]+): ([^,]*)(,.*)?$'
  local -ra read=(60 run_alone grep -RHF --include='*.conf' -e ": $1" -- "${LINUS_PVE_DIR:-/etc/pve}/nodes")
  declare -ga volume_users=()
  run_read "${read[@]}"
  # A config went while they were read: its VM is gone, or on a node that was read before.
  while ((run_rc == 2 && tries < 5)); do
    tries+=1
    log_info "not all configs could be read: try ${tries} of 5: ${run_said}"
    run_read "${read[@]}"
  done
  volume_rc=${run_rc}
  run_lines read
  for line in "${run_lines[@]}"; do
    if [[ ${line} =~ ${form} && ${BASH_REMATCH[3]} == "$1" && ${BASH_REMATCH[1]} != "$2" ]]; then
      local user="${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
      if [[ ,${BASH_REMATCH[4]}, == *,ro=1,* ]]; then
        volume_users+=("${user} ro")
      else
        volume_users+=("${user} rw")
      fi
    fi
  done
}
