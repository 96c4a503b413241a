# shellcheck shell=bash
# Makes a VM, for the scripts that do: the steps allocate_vm_id, download_os_image, create_vm and
# configure_vm, which are reported by these names, and the roll-back of all of them. lib/inputs.sh
# has read their inputs.

source "${BASH_SOURCE[0]%/*}/inputs.sh"
source "${BASH_SOURCE[0]%/*}/slot.sh"

# State of this run.
vm_attempted='' # the vm_id of a create that was begun and is not known to have failed
lease_id=''     # the ID that this run's lease is for
vm_committed=no # yes: the answer is out, and the VM belongs to the caller
vm_system='' vm_user='' vm_boot_disk=''
template_id=''     # empty: made from an image
clone_source=''    # what is cloned: the template, a checkpoint of it, or a VM
clone_options=()   # clone options where the source is not the template
vm_alike=no        # the VM begins as a copy of another guest, and has no link until it has its own identity
create_storages='' # the storages of its disks
create_seconds=1800
names_in=cluster # where its name must be unique: cluster, or node
image_file=''
key_file=''
declare -A ids_taken=()

# --- allocate_vm_id ---

# Chooses a candidate only: an ID that is free as far as is known, at a random place in the range,
# so that concurrent runs seldom choose the same and an ID is not reused at once.
allocate_vm_id() {
  local -r first=${VM_ID_RANGE%-*} last=${VM_ID_RANGE#*-}
  local -r count=$((last - first + 1))
  local -r offset=$((SRANDOM % count))
  local i
  for ((i = 0; i < count; i += 1)); do
    vm_id=$((first + (offset + i) % count))
    if [[ -z ${ids_taken[${vm_id}]:-} ]]; then
      log_info "candidate: VM ${vm_id}"
      return 0
    fi
  done
  result_fail config "no VM ID is free in VM_ID_RANGE=${VM_ID_RANGE} on node '${probe_node}'" 'destroy VMs no longer needed, or widen VM_ID_RANGE'
}

# --- download_os_image ---

download_os_image() {
  if [[ -n ${template_id} ]]; then
    log_info 'not needed: the VM is cloned from a template'
    return 0
  fi
  image_obtain "${IMAGE_DIR}" "${VM_IMAGE_SHA256}"
  check_image_fits
}

check_image_fits() {
  if ! command -v qemu-img >/dev/null; then
    return 0
  fi
  local size
  run_read 60 qemu-img info --output=json -- "${image_file}"
  json_rows read virtual-size
  size=${json_lines[0]:-0}
  if ((run_rc == 124)); then
    result_fail vm "could not read the image ${image_file} within a minute" "check that ${IMAGE_DIR} is on a disk that responds (a network storage that hangs?): ls -l ${IMAGE_DIR}; df ${IMAGE_DIR}"
  elif ((run_rc != 0)) || [[ ! ${size} =~ ^[0-9]+$ ]]; then
    result_fail vm "could not read the image ${image_file}: ${run_said}" 'check VM_IMAGE_URL: it must be a disk image'
  fi
  if ((size > VM_DISK * 1073741824)); then
    result_fail invalid "VM_DISK=${VM_DISK} GB is smaller than the image (${size} bytes)" 'raise VM_DISK: a disk cannot shrink'
  fi
}

# --- create_vm: the create is the reservation ---

create_vm() {
  # If another node has the ID, a clone learns that from pmxcfs when it writes its config.
  local -r already_there='(VM|CT) [0-9]+ already exists|config file already exists|close \(rename\) atomic file .*/[0-9]+\.conf. failed: File exists'
  local attempt
  if [[ -n ${VM_CHECKPOINT:-} ]]; then
    restore_begun=yes
  fi
  slot_take
  address_take
  retry_clear=await_own
  for ((attempt = 1; attempt <= 20; attempt += 1)); do
    build_create_command
    lease_id=${vm_id}
    take_lease
    vm_attempted=${vm_id}
    retry_change create_has_landed "${create_seconds}" "${create_command[@]}"
    if [[ ${retry_landed} == yes ]]; then
      retry_clear=prove_again
      if [[ -n ${TEMPLATE_NAME:-} ]]; then # of two concurrent runs, the later sees the other at the latest now
        probe_vms
        note_taken_ids
      fi
      lease_settle "${vm_id}"
      result_line VM_ID "${vm_id}"
      result_line VM_NODE "${probe_node}"
      return 0
    fi
    if [[ ! ${run_said} =~ ${already_there} ]]; then
      fail_create
    fi
    log_info "VM ${vm_id} was taken by another in the meantime"
    vm_attempted=''
    lease_drop "${vm_id}" "${vm_job}"
    ids_taken[${vm_id}]=yes
    allocate_vm_id
  done
  result_fail vm "20 VM IDs in a row were taken between check and create on node '${probe_node}'" 'try again, or give this caller a VM_ID_RANGE of its own'
}

# Waits for the VM of a try that is reported as failed but may still be at work: Proxmox reports a
# failure also of a worker that it started and could not note in time. To the next try, the VM of
# that worker would look like another run's.
await_own() {
  local -i looks
  for ((looks = 0; looks < 30; looks += 1)); do
    create_has_landed
    lease_match "${vm_id}"
    if [[ ${retry_landed} == yes || (-n ${vm_doubt} && ${lease_matches} == no) ]]; then
      return 0
    fi
    run_pause 1
  done
  retry_landed=hopeless
}

# Proves the VM again before a change is tried again, which must not hit another run's VM.
prove_again() {
  local vm_kind=${vm_kind:-vm}
  vm_look "${vm_id}"
  if [[ ${vm_config[template]:-0} == 1 ]]; then
    vm_kind=template
  fi
  vm_prove
  if [[ -n ${vm_doubt} ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is not proven to be ${vm_name} any more: ${vm_doubt}" "see who has changed it: the task log of node '${probe_node}'"
  fi
}

# Notes on the host, before the VM can exist, whose it will be and when its lease ends.
take_lease() {
  lease_announce "${vm_id}" "${probe_node}" "${create_command[1]}" "${create_storages}" "${LINUS_LEASE_SECONDS}"
  if [[ ${lease_saved} != yes ]]; then
    result_fail config "could not write the lease ${lease_file} on ${HOSTNAME}" 'check that its directory can be written and the disk is not full'
  fi
  if ((LINUS_LEASE_SECONDS > 0)); then
    if [[ ${lease_armed} != yes ]]; then
      result_fail config "could not start linus-sweep.timer, which would end the VM's lease: ${run_said}" 'look at: systemctl status; systemctl list-timers'
    fi
  fi
}

# If Proxmox reported the failure, nothing was made, and the roll-back must not look for it. If the
# answer was lost, the roll-back looks, and destroys only what it proves.
fail_create() {
  if [[ ${vm_state} == absent ]]; then
    vm_attempted=''
  fi
  local -r failure="could not create VM ${vm_id} on node '${probe_node}' (host ${HOSTNAME}): Proxmox answered: ${run_said:-nothing, and the VM is not there}"
  retry_fail "${failure}" "look at the task log of node '${probe_node}'" "${create_storages}"
}

create_has_landed() {
  vm_look "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

build_create_command() { # create_command
  vm_marker
  if [[ ${vm_kind:-vm} == volume ]]; then
    create_command=(qm create "${vm_id}" --name "${vm_name}" --cores 1 --memory 16 --scsihw virtio-scsi-single
      --scsi0 "${PROXMOX_STORAGE}:${VOLUME_SIZE}" --tags linus --description "${vm_description} linus-volume=${VOLUME_NAME}")
    return 0
  elif [[ -n ${template_id} ]]; then
    create_command=(qm clone "${clone_source}" "${vm_id}" --name "${vm_name}"
      --description "${vm_description} linus-state=cloning")
    create_command+=("${clone_options[@]}")
    return 0
  fi
  local cpu_type=${VM_CPU_TYPE}
  if [[ -z ${cpu_type} ]]; then
    cpu_type=x86-64-v2-AES
    if [[ -r /dev/kvm && -w /dev/kvm ]]; then
      cpu_type=host
    fi
  fi
  # Proxmox would make a raw file of the image, and a raw file has no snapshots. Block storages have
  # snapshots without a format, and so has a raw file on btrfs.
  local format=''
  if [[ ${probe_storage_type} == @(dir|nfs|cifs|glusterfs) ]]; then
    format=,format=qcow2
  fi
  build_guest_options "virtio,bridge=${PROXMOX_BRIDGE}"
  create_command=(qm create "${vm_id}" --name "${vm_name}" --cpu "${cpu_type}" --ostype l26
    --scsihw virtio-scsi-single
    --scsi0 "${PROXMOX_STORAGE}:0,import-from=${image_file}${format},discard=on,iothread=1"
    --scsi1 "${PROXMOX_STORAGE}:cloudinit" --serial0 socket --vga serial0
    "${guest_options[@]}")
}

build_guest_options() { # <net0 without tag>; guest_options: the options that clone and image share
  vm_marker
  guest_options=(--cores "${VM_CPU}" --memory "${VM_RAM}" --agent enabled=1
    --net0 "$1${VM_VLAN_TAG:+,tag=${VM_VLAN_TAG}}"
    --ciuser "${vm_user}" --sshkeys "${key_file}" --ipconfig0 "${address_option}" --ciupgrade 0
    --tags linus --description "${vm_description}")
  if [[ -n ${VM_NAMESERVERS} ]]; then
    guest_options+=(--nameserver "${VM_NAMESERVERS}")
  fi
}

# --- configure_vm ---

configure_vm() {
  if [[ -n ${template_id} ]]; then
    build_set_command
    retry_change set_has_landed 120 "${set_command[@]}"
    if [[ ${retry_landed} != yes ]]; then
      retry_fail "could not configure VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said}" "look at the task log of node '${probe_node}', and at what was cloned: qm config ${clone_source}"
    fi
  fi
  network_is_applied
  if [[ ${network_applied} != yes ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' does not have the requested network: net0 ${vm_config[net0]:-none}, ipconfig0 ${vm_config[ipconfig0]:-none}, nameserver ${vm_config[nameserver]:-none}" "see who has changed it: the task log of node '${probe_node}'"
  fi
  address_settle "${vm_id}"
  vm_find_boot_disk
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  if ((vm_kib < VM_DISK * 1024 * 1024)); then
    retry_change resize_has_landed 300 qm resize "${vm_id}" "${vm_boot_disk}" "${VM_DISK}G"
  fi
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  if ((vm_kib != VM_DISK * 1024 * 1024)); then
    retry_fail "the disk of VM ${vm_id} on node '${probe_node}' is ${vm_kib} KiB, not ${VM_DISK} GB: Proxmox answered: ${run_said:-nothing}" \
      "check the free space of its storage (pvesm status), and that VM_DISK is not below the image's size"
  fi
  slot_leave
}

build_set_command() { # set_command; vm_config is the clone's, as read at create
  keep_card "${vm_config[net0]:-virtio}"
  build_guest_options "${vm_card}"
  set_command=(qm set "${vm_id}" "${guest_options[@]}")
  if [[ -n ${VM_CPU_TYPE} ]]; then
    set_command+=(--cpu "${VM_CPU_TYPE}")
  fi
  # A template may carry these, a VM of linus must not: more sockets multiply the cores, and
  # protection forbids its destroy.
  if [[ ${vm_config[sockets]:-1} != 1 ]]; then
    set_command+=(--sockets 1)
  fi
  if [[ ${vm_config[protection]:-0} != 0 ]]; then
    set_command+=(--protection 0)
  fi
  # Only a start through these scripts makes sure that its egress rules are in place.
  if [[ -n ${vm_egress} && ${vm_config[onboot]:-0} != 0 ]]; then
    set_command+=(--onboot 0)
  fi
}

# Keeps the clone's card as the template's owner made it (model, firewall, rate), on the requested
# bridge. A VM that begins as a copy has no link until it has its own identity.
keep_card() { # <net0>; vm_card
  local part
  vm_card=''
  local -a parts
  IFS=, read -ra parts <<<"$1"
  for part in "${parts[@]}"; do
    if [[ ${part} != bridge=* && ${part} != tag=* && ${part} != trunks=* && (${part} != link_down=* || ${vm_alike} == no) ]]; then
      vm_card+="${vm_card:+,}${part}"
    fi
  done
  vm_card+=",bridge=${PROXMOX_BRIDGE}"
  if [[ ${vm_alike} == yes ]]; then
    vm_card+=,link_down=1
  fi
}

# Tells whether the config just read has the requested bridge, VLAN, address and name servers.
network_is_applied() { # network_applied: yes or no
  local part
  local -a parts
  network_applied=yes
  IFS=, read -ra parts <<<"${address_option}"
  for part in "${parts[@]}"; do
    if [[ ",${vm_config[ipconfig0]:-}," != *",${part},"* ]]; then
      network_applied=no
    fi
  done
  if [[ ",${vm_config[net0]:-}," != *",bridge=${PROXMOX_BRIDGE},"* ||
    (-n ${VM_VLAN_TAG} && ",${vm_config[net0]:-}," != *",tag=${VM_VLAN_TAG},"*) ||
    (${vm_alike} == yes && ",${vm_config[net0]:-}," != *,link_down=1,*) ||
    (-n ${VM_NAMESERVERS} && ${vm_config[nameserver]:-} != "${VM_NAMESERVERS}") ]]; then
    network_applied=no
  fi
}

set_has_landed() {
  vm_look "${vm_id}"
  vm_prove
  network_is_applied
  egress_read_word
  if [[ -z ${vm_doubt} && ${vm_words} != *linus-state=* && ${vm_config[protection]:-0} == 0 && ${egress_word} == "${vm_egress}" &&
    ${vm_config[cores]:-1} == "${VM_CPU}" && ${vm_config[memory]:-} == "${VM_RAM}" &&
    ${vm_config[ciuser]:-} == "${vm_user}" && -n ${vm_config[sshkeys]:-} && ${network_applied} == yes ]]; then
    retry_landed=yes
  fi
}

resize_has_landed() {
  vm_look "${vm_id}"
  vm_disk_kib "${vm_config[${vm_boot_disk}]:-}"
  if ((vm_kib >= VM_DISK * 1024 * 1024)); then
    retry_landed=yes
  fi
}

# --- roll-back ---

# Undoes what this run made, and nothing else: the config must prove that the VM is its own.
rollback() {
  image_clean
  if [[ ${vm_committed} == yes ]]; then
    return 0
  fi
  checked_drop
  if [[ ${restore_begun:-no} == yes && -z ${run_stop:-} ]]; then
    # Without its memory, which was there when it was checked, the checkpoint is of no use to others
    # either.
    checkpoint_locate "${VM_CHECKPOINT}"
    if [[ -e ${checkpoint_state} ]]; then
      result_line RESTORE failed 2>/dev/null # nobody may be listening
    else
      result_line RESTORE unfit 2>/dev/null
    fi
  fi
  if [[ -z ${vm_attempted} ]]; then
    lease_drop "${lease_id}" "${vm_job}"
    address_drop "${vm_job}"
    return 0
  fi
  vm_undo "${vm_attempted}" "${probe_node}"
}
