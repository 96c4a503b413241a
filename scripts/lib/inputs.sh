# shellcheck shell=bash
# Checks the inputs of the scripts that make a VM (create-vm.sh lists them), and the host they are
# for: the step validate_environment. It changes nothing.

source "${BASH_SOURCE[0]%/*}/checked.sh"
source "${BASH_SOURCE[0]%/*}/fork.sh"
source "${BASH_SOURCE[0]%/*}/image.sh"
source "${BASH_SOURCE[0]%/*}/sweep.sh"

# Unset inputs get their defaults here, and only here.
read_settings() {
  : "${VM_NAME:=}" "${SSH_PUBLIC_KEY:=}" "${VM_TEMPLATE:=}" "${VM_CHECKPOINT:=}"
  : "${VM_FORK:=}" "${VM_FORK_JOB:=}" "${VM_FORK_LIVE:=false}"
  # A template's system is not known unless the caller names it.
  vm_system=${VM_OS:-${VM_TEMPLATE:-ubuntu}}
  : "${VM_OS:=ubuntu}"
  : "${VM_CPU:=2}" "${VM_RAM:=2048}" "${VM_DISK:=20}" "${VM_CPU_TYPE:=}"
  : "${VM_IMAGE_URL:=}" "${VM_IMAGE_SHA256:=}" "${IMAGE_DIR:=/var/lib/vz/template/linus}"
  : "${PROXMOX_NODE:=}" "${PROXMOX_STORAGE:=local-lvm}" "${PROXMOX_BRIDGE:=vmbr0}"
  : "${STORAGE_RESERVE:=5}" "${VM_VLAN_TAG:=}" "${VM_ID_RANGE:=100-999}"
  : "${VM_IP_CONFIG:=dhcp}" "${VM_GATEWAY:=}" "${VM_NAMESERVERS:=}" "${VM_EGRESS:=lan}" "${VM_EGRESS_RANGES:=}"
  boot_read_inputs
  : "${LINUS_LEASE_SECONDS:=0}"
  vm_name=${VM_NAME}
  read -r vm_job </proc/sys/kernel/random/uuid
  vm_job=${LINUS_JOB:-${vm_job}}
  create_storages=${PROXMOX_STORAGE}
  vm_owner=${LINUS_OWNER:-00000000-0000-0000-0000-000000000000}
}

validate_environment() {
  validate_inputs
  validate_tools qm pvesh pvesm perl timeout flock systemd-run systemctl ip
  if [[ ${dry_run} == no ]]; then
    lease_sweep
  fi
  run_start volumes 60 pvesm list "${PROXMOX_STORAGE}" # read by note_unclean_ids
  probe_cluster "${PROXMOX_NODE}" vms
  probe_require
  check_host_parts
  if [[ -n ${VM_FORK} ]]; then
    fork_validate
  elif [[ -n ${VM_TEMPLATE} ]]; then
    probe_template "${VM_TEMPLATE}"
    probe_require
    template_id=${probe_template_id}
    clone_source=${template_id}
    check_template_fits
  fi
  if [[ -n ${VM_CHECKPOINT} ]]; then
    restore_validate
    clone_source=${VM_CHECKPOINT} clone_options=(--full 0) vm_alike=yes
    vm_user=${checkpoint[USER]:-}
  fi
  if [[ -n ${clone_source} ]]; then
    vm_find_storages
    create_storages=${vm_storages}
  fi
  note_taken_ids
  note_unclean_ids
  vm_user=${VM_SSH_USER:-${vm_user:-${image_user}}}
  if [[ -z ${vm_user} ]]; then
    result_fail invalid "whom to log in as is not known: template '${VM_TEMPLATE}' has no ciuser and VM_OS=${VM_OS@Q} is not known" 'set VM_SSH_USER'
  fi
  key_file=${run_dir}/ssh-public-key
  printf '%s\n' "${SSH_PUBLIC_KEY}" >"${key_file}"
}

validate_inputs() {
  validate_name VM_NAME "${VM_NAME}"
  validate_ssh_key SSH_PUBLIC_KEY "${SSH_PUBLIC_KEY}"
  validate_uuid LINUS_JOB "${vm_job}"
  validate_uuid LINUS_OWNER "${vm_owner}"
  validate_number VM_CPU "${VM_CPU}" 1 128
  validate_number VM_RAM "${VM_RAM}" 512 524288 MB
  validate_number VM_DISK "${VM_DISK}" 5 10000 GB
  boot_validate_inputs
  validate_range "${VM_ID_RANGE}"
  validate_number LINUS_LEASE_SECONDS "${LINUS_LEASE_SECONDS}" 0 31536000 'seconds, 0 for none'
  address_validate
  egress_validate
  validate_pattern VM_NAMESERVERS "${VM_NAMESERVERS}" '[0-9a-fA-F.:, ]*' 'IP addresses separated by blanks'
  VM_NAMESERVERS=${VM_NAMESERVERS//,/ }
  if [[ -n ${VM_VLAN_TAG} ]]; then
    validate_number VM_VLAN_TAG "${VM_VLAN_TAG}" 1 4094
  fi
  validate_pattern VM_CPU_TYPE "${VM_CPU_TYPE}" '([A-Za-z0-9][A-Za-z0-9_.-]*)?' 'a CPU type of Proxmox such as host'
  validate_node "${PROXMOX_NODE}"
  validate_storage "${PROXMOX_STORAGE}"
  validate_reserve "${STORAGE_RESERVE}"
  validate_bridge "${PROXMOX_BRIDGE}"
  validate_template "${VM_TEMPLATE}"
  if [[ -n ${VM_CHECKPOINT} ]]; then
    validate_number VM_CHECKPOINT "${VM_CHECKPOINT}" 100 999999999
  fi
  fork_validate_inputs
  validate_pattern IMAGE_DIR "${IMAGE_DIR}" '/[A-Za-z0-9_./-]*' 'an absolute path of A-Z a-z 0-9 _ . / -'
  validate_image
}

validate_image() {
  image_lookup "${VM_OS}"
  validate_pattern VM_OS "${VM_OS}" '[A-Za-z0-9][A-Za-z0-9._-]*' "one of: ${image_known}"
  if [[ -z ${image_os} && -z ${VM_TEMPLATE}${VM_IMAGE_URL} ]]; then
    result_fail config "VM_OS=${VM_OS@Q} is not known" "set VM_OS to one of: ${image_known}; or set VM_TEMPLATE"
  fi
  if [[ -n ${VM_IMAGE_URL} ]]; then
    validate_pattern VM_IMAGE_URL "${VM_IMAGE_URL}" '(https?|file)://[^ ]+' 'an http, https or file URL'
    validate_pattern VM_IMAGE_SHA256 "${VM_IMAGE_SHA256}" '[0-9a-f]{64}' 'the sha256 sum of the image at VM_IMAGE_URL, in lower case'
    image_os=custom-${VM_IMAGE_SHA256:0:16}
    image_url=${VM_IMAGE_URL}
  fi
}

check_template_fits() { # vm_config is the template's; vm_user, restore_generation
  local -r size=${vm_config[${vm_boot_disk}]}
  vm_disk_kib "${size}"
  if ((vm_kib > VM_DISK * 1024 * 1024)); then
    result_fail invalid "VM_DISK=${VM_DISK} GB is smaller than the disk of template '${VM_TEMPLATE}' ($(((vm_kib + 1048575) / 1048576)) GB)" \
      "set VM_DISK to at least $(((vm_kib + 1048575) / 1048576)): a disk cannot shrink"
  fi
  vm_user=${vm_config[ciuser]:-}
  restore_read_generation
}

# Checks storage and bridge, unless a run just before this one found them well.
check_host_parts() { # probe_storage_type
  local -ra parts=("${probe_node}" "${PROXMOX_STORAGE}" "${PROXMOX_BRIDGE}")
  checked_type=''
  if [[ ${dry_run} == no ]]; then
    checked_read "${parts[@]}"
  fi
  probe_storage_type=${checked_type}
  if [[ -n ${probe_storage_type} ]]; then
    log_info "storage '${PROXMOX_STORAGE}' and bridge '${PROXMOX_BRIDGE}' were seen to be well less than ${checked_seconds} s ago"
    return 0
  fi
  probe_require_storage "${PROXMOX_STORAGE}" 0
  probe_bridge "${PROXMOX_BRIDGE}"
  probe_require
  if [[ ${dry_run} == no ]]; then
    checked_note "${parts[@]}" "${probe_storage_type}"
  fi
}

# VMs and containers of every node hold their IDs. This check is only a hint, because the create
# itself decides. It does not decide about names: create_vm checks them again.
note_taken_ids() {
  local line vmid node name
  for line in "${cluster_vms[@]}"; do
    read -r vmid node _ _ name <<<"${line}"
    if [[ ${name} == "${vm_name}" && ${vmid} != "${vm_attempted}" && (${names_in} == cluster || ${node} == "${probe_node}") ]]; then
      result_line VM_OUTCOME exists
      result_fail vm "VM already exists: '${vm_name}' is VM ${vmid} on node '${node}'" \
        'choose another name, or destroy that VM first'
    fi
    ids_taken[${vmid}]=yes
  done
}

# A free ID may have volumes of a VM that is gone. They are not for a new VM to take over, and its
# destroy would remove them.
note_unclean_ids() {
  local line vmid storage
  local -r type=${probe_storage_type}
  run_wait volumes
  run_ask_again volumes pvesm list "${PROXMOX_STORAGE}"
  for storage in "${PROXMOX_STORAGE}" ${create_storages}; do # a linked clone lies where its template does
    if [[ ${storage} != "${PROXMOX_STORAGE}" ]]; then
      run_start volumes 60 pvesm list "${storage}"
      probe_start "${storage}"
      probe_storage "${storage}"
      probe_storage_type=${type}
      probe_reserve "${storage}" 0
      probe_require
      run_wait volumes
      run_ask_again volumes pvesm list "${storage}"
    fi
    if ((run_rc != 0)); then
      probe_unread "the volumes on storage '${storage}' of node '${probe_node}'" "look at: pvesm list ${storage}"
      probe_require
    fi
    run_lines volumes
    for line in "${run_lines[@]}"; do
      if [[ ${line} =~ :.*[[:space:]]([0-9]+)[[:space:]]*$ ]]; then
        ids_taken[${BASH_REMATCH[1]}]=yes
      fi
    done
  done
  quarantine_read
  for vmid in "${!quarantined[@]}"; do
    ids_taken[${vmid}]=yes
  done
}
