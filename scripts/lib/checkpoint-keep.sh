# shellcheck shell=bash
# Keeps the memory of VM vm_id as lib/checkpoint.sh describes. checkpoint-vm.sh has saved the memory
# and holds the VM's lock. vm_config is the VM's config.

source "${BASH_SOURCE[0]%/*}/restore.sh"

# A VM that is only half a template, or a template without its memory, is of no use any more.
checkpoint_require_whole() {
  local size=''
  vm_find_boot_disk
  run_read 10 run_alone stat -c %s -- "${checkpoint_state}"
  size=${run_out}
  if [[ ! ${vm_config[${vm_boot_disk:-scsi0}]:-} =~ ^[^,]*[:/]base- ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' became a template by half" 'make a VM of the template anew, and a checkpoint of that'
  elif [[ ${checkpoint_found} != yes || ${checkpoint[JOB]:-} != "${vm_job}" || ${checkpoint[SIZE]:-} != "${size}" ||
    ${vm_words} != *" linus-checkpoint=${checkpoint[TEMPLATE]:-none} "* ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is a template, and its memory is not in ${checkpoint_state}" 'make a VM of the template anew, and a checkpoint of that'
  fi
}

# A state may take as much room as Proxmox reserves for it.
checkpoint_require_room() {
  local -r memory=${vm_config[memory]}
  local -r need=$((2 * memory + 500 + CHECKPOINT_ROOM * 1024))
  local free=''
  if ! (umask 077 && mkdir -p -- "${checkpoint_dir}") 2>/dev/null; then
    result_fail config "could not make ${checkpoint_dir} on ${HOSTNAME}" 'check that it can be written and the disk is not full'
  fi
  run_read 30 df -Pk -- "${checkpoint_dir}"
  if [[ ${run_out} =~ $'\n'[^$'\n']*\ [0-9]+\ +[0-9]+\ +([0-9]+)\ +[0-9]+%\  ]]; then
    free=$((BASH_REMATCH[1] / 1024))
  fi
  if [[ -z ${free} ]]; then
    result_fail config "could not see how much room ${checkpoint_dir} on ${HOSTNAME} has: ${run_said}" "look at: df ${checkpoint_dir}"
  elif ((free < need)); then
    result_fail config "${checkpoint_dir} on ${HOSTNAME} has $((free / 1024)) GB free, and ${CHECKPOINT_ROOM} GB are to stay free beside $((need - CHECKPOINT_ROOM * 1024)) MB, which the memory of VM ${vm_id} may take" \
      'free some space there, set LINUS_HOST_DIR to a larger file system, or CHECKPOINT_ROOM lower'
  fi
}

checkpoint_keep() { # <ID of the template> <its generation>
  local source='' size='' copied=''
  run_ask pvesm path "${vm_config[vmstate]:-}"
  source=${run_out}
  if ((run_rc != 0)) || [[ ${source} != /* || ! -e ${source} ]]; then
    result_fail config "the saved memory of VM ${vm_id} on node '${probe_node}' (${vm_config[vmstate]:-none}) is not a file or a device here: ${run_said}" \
      "have it saved on a storage whose volumes are (dir, lvmthin, zfs): qm set $1 --vmstatestorage STORAGE"
  elif [[ -b ${source} ]]; then
    run_read 30 blockdev --getsize64 "${source}"
  else
    run_read 30 run_alone stat -Lc %s -- "${source}"
  fi
  size=${run_out}
  (umask 077 && : >"${checkpoint_state}.new")
  run_change 1800 dd "if=${source}" "of=${checkpoint_state}.new" bs=64K conv=sparse,fsync status=none
  if ((run_rc != 0)); then
    result_fail vm "the memory of VM ${vm_id} on node '${probe_node}' could not be copied to ${checkpoint_state}: ${run_said}" "look at: df ${checkpoint_dir}"
  fi
  run_read 30 run_alone stat -c '%s %b %B %a' -- "${checkpoint_state}.new"
  copied=${run_out}
  if [[ ! ${size} =~ ^[1-9][0-9]{0,17}$ || ! ${copied} =~ ^"${size} "[1-9][0-9]*\ [0-9]+\ 600$ ]]; then
    result_fail vm "the memory of VM ${vm_id} on node '${probe_node}' has ${size:-no} bytes, and its copy ${checkpoint_state} is not that (size, blocks, of, mode): ${copied}" "look at: df ${checkpoint_dir}"
  fi
  mv -f -- "${checkpoint_state}.new" "${checkpoint_state}"
  checkpoint_write_meta "$@" "${copied}"
}

# Writes everything that is needed to read the state again, and what is reported of it.
checkpoint_write_meta() { # <ID of the template> <its generation> <size, blocks, bytes of a block, mode>
  local size blocks of pve='' key
  read -r size blocks of _ <<<"$3"
  restore_read_host
  if [[ -z ${restore_qemu} ]]; then
    result_fail config "which QEMU is installed on ${HOSTNAME} is not known: ${run_said}" 'look at: kvm --version'
  fi
  run_ask pveversion
  pve=${run_out%%$'\n'*}
  for key in runningmachine runningcpu; do
    if [[ -z ${vm_config[${key}]:-} ]]; then
      result_fail vm "Proxmox has not noted ${key} of VM ${vm_id} on node '${probe_node}'" "look at: qm config ${vm_id}"
    fi
  done
  read_network
  vm_find_boot_disk
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  local -ra lines=("JOB=${vm_job}" "OWNER=${vm_owner}" "TEMPLATE=$1" "GENERATION=$2" "NAME=${vm_name}"
    "USER=${VM_SSH_USER:-${vm_config[ciuser]:-root}}" "SYSTEM=${VM_OS}" "CORES=${vm_config[cores]:-1}" "MEMORY=${vm_config[memory]}"
    "DISK=$((vm_kib / 1048576))" "MACHINE=${vm_config[runningmachine]}" "CPU=${vm_config[runningcpu]}"
    "NETS_HOST_MTU=${vm_config["running-nets-host-mtu"]:-}" "MAC=${vm_mac,,}" "CARD=${vm_config[net0]}" "QEMU=${restore_qemu}"
    "CPU_MODEL=${restore_cpu}" "PVE=${pve}" "SIZE=${size}" "BYTES=$((blocks * of))" END=yes)
  if ! (umask 077 && printf '%s\n' "${lines[@]}" >"${checkpoint_meta}.new") 2>/dev/null; then
    result_fail config "could not write ${checkpoint_meta}" "look at: df ${checkpoint_dir}"
  fi
  run_change 120 sync -- "${checkpoint_meta}.new"
  mv -f -- "${checkpoint_meta}.new" "${checkpoint_meta}"
  run_change 120 sync -- "${checkpoint_dir}"
  checkpoint_load "${vm_id}"
  if [[ ${checkpoint_found} != yes ]]; then
    result_fail vm "what was written to ${checkpoint_meta} cannot be read back" "look at: df ${checkpoint_dir}"
  fi
}
