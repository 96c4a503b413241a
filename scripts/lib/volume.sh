# shellcheck shell=bash
# Volumes: disks of ours that outlive the VMs they are attached to. A volume lies with a
# VM that never runs, its holder, whose description carries linus-volume=<its name>: the
# disk bears the holder's ID, by which Proxmox knows whose it is. qm destroys with a VM
# only what bears that VM's own ID, so that a volume outlives it even where it was not
# taken off before. The holder has it as an unused disk: neither its start nor a backup of
# it opens what another VM writes to. It is protected, so that qm destroys it by no mistake.

source "${BASH_SOURCE[0]%/*}/vm.sh"

# The drives of the config just read that are volumes: their disks are another VM's, or bear a
# volume's serial number on a disk of this VM's own, to which somebody has moved it by hand.
volume_find_foreign() { # <vmid>; volume_foreign: their keys, parted by commas; volume_moved: the latter's
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

# The disk of the holder whose config was just read: unused, but while it is made, and where
# somebody has attached it by hand.
volume_find_disk() { # volume_disk: empty where there is none; volume_held: its key
  local key
  volume_disk='' volume_held=''
  for key in unused0 "${!vm_config[@]}"; do
    if [[ -z ${volume_disk} && ${key} =~ ^(unused|scsi|virtio|sata|ide)[0-9]+$ && ${vm_config[${key}]:-} =~ ^([^,]*[:/]vm-"${vm_asked}"-[^,]*) ]]; then
      volume_disk=${BASH_REMATCH[1]} volume_held=${key}
    fi
  done
}

# Which VMs of any node have a disk in their configs, snapshots and what waits for a
# restart included, but for its holder.
volume_find_users() { # <disk> <holder>; volume_users: <vmid> <key> <rw or ro>, one each; volume_rc above 1: not known
  local line
  local -r form='/([0-9]+)\.conf:([a-z]+[0-9]+): ([^,]*)(,.*)?$'
  declare -ga volume_users=()
  run_read 60 run_alone grep -RHF --include='*.conf' -e ": $1" -- "${LINUS_PVE_DIR:-/etc/pve}/nodes"
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
