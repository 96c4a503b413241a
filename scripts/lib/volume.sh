# shellcheck shell=bash
# Volumes: disks of ours that outlive the VMs they are attached to. A volume lies with a
# VM that never runs, its holder, whose description carries linus-volume=<its name>: the
# disk bears the holder's ID, by which Proxmox knows whose it is. qm destroys with a VM
# only what bears that VM's own ID, so that a volume outlives it even where it was not
# taken off before. The holder has it as an unused disk: neither its start nor a backup of
# it opens what another VM writes to. It is protected, so that qm destroys it by no mistake.

source "${BASH_SOURCE[0]%/*}/vm.sh"

# The drives of the config just read whose disks are another VM's: volumes.
volume_find_foreign() { # <vmid>; volume_foreign: their keys, parted by commas
  local key
  local -r form='^[^,]*[:/]vm-([0-9]+)-'
  volume_foreign=''
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^(scsi|virtio|sata|ide)[0-9]+$ && ${vm_config[${key}]} != *media=cdrom* &&
      ${vm_config[${key}]} =~ ${form} && ${BASH_REMATCH[1]} != "$1" ]]; then
      volume_foreign+="${volume_foreign:+,}${key}"
    fi
  done
}

# The disk of the holder whose config was just read.
volume_find_disk() { # volume_disk: empty where there is none
  local key
  volume_disk=''
  for key in unused0 scsi0; do # scsi0: while it is made
    if [[ -z ${volume_disk} && ${vm_config[${key}]:-} =~ ^([^,]*[:/]vm-"${vm_asked}"-[^,]*) ]]; then
      volume_disk=${BASH_REMATCH[1]}
    fi
  done
}

# Which VMs of any node have a disk in their configs, snapshots and what waits for a
# restart included, but for its holder.
volume_find_users() { # <disk> <holder>; volume_users: <vmid> <key> <rw or ro>, one each; volume_rc above 1: not known
  local line
  local -r form='/([0-9]+)\.conf:([a-z]+[0-9]+): ([^,]*)(,.*)?$'
  declare -ga volume_users=()
  run_read 60 grep -RHF --include='*.conf' -e ": $1" -- "${LINUS_PVE_DIR:-/etc/pve}/nodes"
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
