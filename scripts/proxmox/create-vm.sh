#!/usr/bin/env bash
# Creates a VM on the Proxmox VE node this runs on, from a template (linked
# clone) or from a cloud image, starts it and waits until it can be worked in.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment):
#   VM_NAME             name, a DNS label (required)
#   SSH_PUBLIC_KEY      text of one public key, for the VM's user (required)
#   VM_CPU 2, VM_RAM 2048 (MB), VM_DISK 20 (GB)
#   VM_TEMPLATE         name or ID of a template on this node; empty: an image
#   VM_OS ubuntu        ubuntu, debian-12, debian-13, almalinux-9, rocky-9 (with a
#                       template only told back, and its user where it sets none)
#   VM_IMAGE_URL, VM_IMAGE_SHA256   an image other than VM_OS's (file:// works)
#   IMAGE_DIR           where images are kept (/var/lib/vz/template/linus)
#   PROXMOX_NODE        default: this host's own
#   PROXMOX_STORAGE local-lvm, PROXMOX_BRIDGE vmbr0, VM_VLAN_TAG
#   VM_ID_RANGE 100-999
#   VM_SSH_USER         default: the template's user, else the system's usual one
#   VM_SSH_PORT 22
#   VM_IP_CONFIG dhcp   or ADDRESS/PREFIX, with VM_GATEWAY
#   VM_NAMESERVERS      default: the host's
#   VM_CPU_TYPE         image: host where KVM works, else x86-64-v2-AES;
#                       template: the template's
#   VM_NETWORK_TIMEOUT 300, VM_READY_TIMEOUT 600 (seconds)
#   LINUS_JOB, LINUS_OWNER  UUIDs that mark the VM (by hand: made up)
#   LINUS_LEASE_SECONDS 0     the host destroys the VM after so long by itself; 0: never
#   LINUS_HOST_DIR /var/lib/linus   leases, and IDs in quarantine
#   LINUS_NONCE         frames the answer
# Options: --dry-run (check everything, print the commands, change nothing), --help
#
# Answers on stdout in LINUS_ lines (lib/result.sh); the log goes to stderr.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration,
# 4 node offline, 5 creation, configuration or start failed, 6 network or SSH
# timeout, 129/130/141/143 signal. On every failure its own VM is destroyed.

# shellcheck source=../lib/log.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/log.sh"
# shellcheck source=../lib/result.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/result.sh"
# shellcheck source=../lib/script.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
# shellcheck source=../lib/run.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/run.sh"
# shellcheck source=../lib/retry.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/retry.sh"
# shellcheck source=../lib/json.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/json.sh"
# shellcheck source=../lib/validate.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/validate.sh"
# shellcheck source=../lib/vm.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/vm.sh"
# shellcheck source=../lib/lease.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/lease.sh"
# shellcheck source=../lib/quarantine.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/quarantine.sh"
# shellcheck source=../lib/probe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
# shellcheck source=../lib/image.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/image.sh"
# shellcheck source=../lib/guest.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/guest.sh"

# State of this run.
dry_run=no
vm_id=''        # the ID tried, or ours
vm_attempted='' # a create of vm_id was begun whose failure is not known
vm_committed=no # the answer is out: the VM is the caller's now
vm_job='' vm_owner='' vm_name=''
vm_system='' vm_user='' vm_mac='' vm_ip='' vm_boot_disk='' vm_host_key=''
template_id=''     # empty: from an image
create_storages='' # where its disks will lie
image_file=''
key_file=''
declare -A ids_taken=()

usage() {
  printf '%s\n' \
    'usage: VM_NAME=... SSH_PUBLIC_KEY=... [VM_TEMPLATE=...] create-vm.sh [--dry-run | --help]' \
    'Creates and starts a VM on this Proxmox VE node. All inputs and exit codes' \
    'are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  local argument
  for argument in "$@"; do
    case ${argument} in
      --dry-run) dry_run=yes ;;
      *) result_fail invalid "unknown argument ${argument@Q}" 'the options are --dry-run and --help; all else comes by environment' ;;
    esac
  done
  : "${VM_NAME:=}" "${SSH_PUBLIC_KEY:=}" "${VM_TEMPLATE:=}"
  # A template's system is not known unless the caller tells it.
  vm_system=${VM_OS:-${VM_TEMPLATE:-ubuntu}}
  : "${VM_OS:=ubuntu}"
  : "${VM_CPU:=2}" "${VM_RAM:=2048}" "${VM_DISK:=20}" "${VM_CPU_TYPE:=}"
  : "${VM_IMAGE_URL:=}" "${VM_IMAGE_SHA256:=}" "${IMAGE_DIR:=/var/lib/vz/template/linus}"
  : "${PROXMOX_NODE:=}" "${PROXMOX_STORAGE:=local-lvm}" "${PROXMOX_BRIDGE:=vmbr0}"
  : "${VM_VLAN_TAG:=}" "${VM_ID_RANGE:=100-999}" "${VM_SSH_USER:=}" "${VM_SSH_PORT:=22}"
  : "${VM_IP_CONFIG:=dhcp}" "${VM_GATEWAY:=}" "${VM_NAMESERVERS:=}"
  : "${VM_NETWORK_TIMEOUT:=300}" "${VM_READY_TIMEOUT:=600}"
  : "${LINUS_LEASE_SECONDS:=0}"
  vm_name=${VM_NAME}
  vm_job=${LINUS_JOB:-$(</proc/sys/kernel/random/uuid)}
  create_storages=${PROXMOX_STORAGE}
  vm_owner=${LINUS_OWNER:-00000000-0000-0000-0000-000000000000}
}

# --- validate_environment ---

validate_environment() {
  validate_inputs
  validate_tools qm pvesh pvesm perl timeout flock setsid ip
  if [[ ${dry_run} == no ]]; then
    lease_sweep
  fi
  probe_cluster "${PROXMOX_NODE}"
  probe_require
  probe_start "${PROXMOX_STORAGE}"
  run_start volumes 60 pvesm list "${PROXMOX_STORAGE}"
  run_start resources 60 pvesh get /cluster/resources --type vm --output-format json
  probe_storage "${PROXMOX_STORAGE}"
  probe_require
  probe_bridge "${PROXMOX_BRIDGE}"
  probe_require
  if [[ -n ${VM_TEMPLATE} ]]; then
    probe_template "${VM_TEMPLATE}"
    probe_require
    template_id=${probe_template_id}
    create_storages=$(vm_list_storages)
    check_template_fits
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
  validate_number VM_SSH_PORT "${VM_SSH_PORT}" 1 65535
  validate_number VM_NETWORK_TIMEOUT "${VM_NETWORK_TIMEOUT}" 1 86400 seconds
  validate_number VM_READY_TIMEOUT "${VM_READY_TIMEOUT}" 1 86400 seconds
  validate_pattern VM_ID_RANGE "${VM_ID_RANGE}" '[1-9][0-9]{2,8}-[1-9][0-9]{2,8}' 'FIRST-LAST, from 100 to 999999999'
  validate_number 'the end of VM_ID_RANGE' "${VM_ID_RANGE#*-}" "${VM_ID_RANGE%-*}" 999999999
  validate_number LINUS_LEASE_SECONDS "${LINUS_LEASE_SECONDS}" 0 31536000 'seconds, 0 for none'
  validate_ip_config VM_IP_CONFIG "${VM_IP_CONFIG}"
  if [[ -n ${VM_GATEWAY} ]]; then
    validate_ipv4 VM_GATEWAY "${VM_GATEWAY}"
  fi
  validate_pattern VM_NAMESERVERS "${VM_NAMESERVERS}" '[0-9a-fA-F.:, ]*' 'IP addresses separated by blanks'
  VM_NAMESERVERS=${VM_NAMESERVERS//,/ }
  if [[ -n ${VM_VLAN_TAG} ]]; then
    validate_number VM_VLAN_TAG "${VM_VLAN_TAG}" 1 4094
  fi
  validate_pattern VM_SSH_USER "${VM_SSH_USER}" '([a-z_][a-z0-9_-]{0,31})?' 'a Linux user name'
  validate_pattern VM_CPU_TYPE "${VM_CPU_TYPE}" '([A-Za-z0-9][A-Za-z0-9_.-]*)?' 'a CPU type of Proxmox such as host'
  validate_node "${PROXMOX_NODE}"
  validate_storage "${PROXMOX_STORAGE}"
  validate_bridge "${PROXMOX_BRIDGE}"
  validate_template "${VM_TEMPLATE}"
  validate_pattern IMAGE_DIR "${IMAGE_DIR}" '/[A-Za-z0-9_./-]*' 'an absolute path of A-Z a-z 0-9 _ . / -'
  validate_image
}

validate_image() {
  validate_pattern VM_OS "${VM_OS}" '[A-Za-z0-9][A-Za-z0-9._-]*' "one of: ubuntu, debian-12, debian-13, almalinux-9, rocky-9"
  image_lookup "${VM_OS}"
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

check_template_fits() { # vm_config is the template's
  local -r size=${vm_config[${vm_boot_disk}]}
  vm_disk_kib "${size}"
  if ((vm_kib > VM_DISK * 1024 * 1024)); then
    result_fail invalid "VM_DISK=${VM_DISK} GB is smaller than the disk of template '${VM_TEMPLATE}' ($(((vm_kib + 1048575) / 1048576)) GB)" \
      "set VM_DISK to at least $(((vm_kib + 1048575) / 1048576)): a disk cannot shrink"
  fi
  vm_user=${vm_config[ciuser]:-}
}

# IDs are held by VMs and containers of every node. Both lists are hints: the
# cluster's lags, and the create itself is what decides.
note_taken_ids() {
  local tag line vmid name node
  for tag in resources vms; do
    run_wait "${tag}"
    json_rows "${tag}" vmid name node
    if ((run_rc != 0 || json_rc != 0)); then
      result_fail vm "could not list the VMs on node '${probe_node}': ${run_said}" 'look at: pvesh get /cluster/resources --type vm'
    fi
    for line in "${json_lines[@]}"; do
      IFS=$'\x1f' read -r vmid name node <<<"${line}"
      if [[ ${name} == "${vm_name}" ]]; then
        result_fail vm "VM already exists: '${vm_name}' is VM ${vmid} on node '${node:-${probe_node}}'" \
          "choose another VM_NAME, or destroy that VM first"
      fi
      ids_taken[${vmid:-0}]=yes
    done
  done
}

# A free ID may have volumes of a VM that is gone. They are not ours to take
# over, and its next destroy would remove them.
note_unclean_ids() {
  local line vmid
  run_wait volumes
  while IFS= read -r line; do
    if [[ ${line} =~ :.*[[:space:]]([0-9]+)[[:space:]]*$ ]]; then
      ids_taken[${BASH_REMATCH[1]}]=yes
    fi
  done <<<"${run_out}"
  quarantine_read
  for vmid in "${!quarantined[@]}"; do
    ids_taken[${vmid}]=yes
  done
}

# --- allocate_vm_id ---

# A candidate only: free as far as is known, at a random place in the range, so
# that many runs at once seldom meet and an ID is not used again at once.
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
  if ((run_rc != 0)) || [[ ! ${size} =~ ^[0-9]+$ ]]; then
    result_fail vm "could not read the image ${image_file}: ${run_said}" 'check VM_IMAGE_URL: it must be a disk image'
  fi
  if ((size > VM_DISK * 1073741824)); then
    result_fail invalid "VM_DISK=${VM_DISK} GB is smaller than the image (${size} bytes)" 'raise VM_DISK: a disk cannot shrink'
  fi
}

# --- create_vm: the create is the reservation ---

create_vm() {
  local -r already_there='(VM|CT) [0-9]+ already exists|config file already exists'
  local attempt
  for ((attempt = 1; attempt <= 20; attempt += 1)); do
    build_create_command
    take_lease
    vm_attempted=${vm_id}
    retry_change create_has_landed 1800 "${create_command[@]}"
    if [[ ${retry_landed} == yes ]]; then
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
  result_fail vm "20 VM IDs in a row were taken between look and create on node '${probe_node}'" 'try again, or give this caller a VM_ID_RANGE of its own'
}

# Before the VM can exist, the host knows whose it will be and when it ends.
take_lease() {
  lease_announce "${vm_id}" "${probe_node}" "${create_command[1]}" "${create_storages}"
  if [[ ${lease_saved} != yes ]]; then
    result_fail config "could not write the lease ${lease_file} on ${HOSTNAME}" 'check that its directory can be written and the disk is not full'
  fi
  if ((LINUS_LEASE_SECONDS > 0)); then
    lease_set_end "${vm_id}" "${LINUS_LEASE_SECONDS}"
  fi
}

# A failure Proxmox told of made nothing, and roll-back must not look for it.
# Where the answer was lost, roll-back looks, and destroys only what it proves.
fail_create() {
  if [[ ${vm_state} == absent ]]; then
    vm_attempted=''
    lease_drop "${vm_id}" "${vm_job}"
  fi
  local -r failure="could not create VM ${vm_id} on node '${probe_node}' (host ${HOSTNAME}): Proxmox answered: ${run_said:-nothing, and the VM is not there}"
  if [[ ${run_said} == *"no quorum"* ]]; then
    result_fail config "${failure}" 'bring the other nodes of the cluster back: until then Proxmox refuses every change; look at: pvecm status'
  fi
  result_fail vm "${failure}" "look at the task log of node '${probe_node}' and at: qm config ${vm_id}"
}

create_has_landed() {
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && -z ${vm_config[lock]:-} ]]; then
    retry_landed=yes
  fi
}

build_create_command() { # create_command
  vm_marker
  if [[ -n ${template_id} ]]; then
    create_command=(qm clone "${template_id}" "${vm_id}" --name "${vm_name}"
      --description "${vm_description} linus-state=cloning")
    return 0
  fi
  local cpu_type=${VM_CPU_TYPE}
  if [[ -z ${cpu_type} ]]; then
    cpu_type=x86-64-v2-AES
    if [[ -r /dev/kvm && -w /dev/kvm ]]; then
      cpu_type=host
    fi
  fi
  build_guest_options "virtio,bridge=${PROXMOX_BRIDGE}"
  create_command=(qm create "${vm_id}" --name "${vm_name}" --cpu "${cpu_type}" --ostype l26
    --scsihw virtio-scsi-single
    --scsi0 "${PROXMOX_STORAGE}:0,import-from=${image_file},discard=on,iothread=1"
    --scsi1 "${PROXMOX_STORAGE}:cloudinit" --serial0 socket --vga serial0
    "${guest_options[@]}")
}

build_guest_options() { # <net0 without tag>; guest_options: what clone and image share
  vm_marker
  local ip=ip=${VM_IP_CONFIG}${VM_GATEWAY:+,gw=${VM_GATEWAY}}
  if [[ ${VM_IP_CONFIG} == dhcp ]]; then
    ip=ip=dhcp
  fi
  guest_options=(--cores "${VM_CPU}" --memory "${VM_RAM}" --agent enabled=1
    --net0 "$1${VM_VLAN_TAG:+,tag=${VM_VLAN_TAG}}"
    --ciuser "${vm_user}" --sshkeys "${key_file}" --ipconfig0 "${ip}" --ciupgrade 0
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
      result_fail vm "could not configure VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said}" "look at: qm config ${vm_id} of a VM cloned by hand from VM ${template_id}"
    fi
  fi
  vm_find_boot_disk
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  if ((vm_kib < VM_DISK * 1024 * 1024)); then
    retry_change resize_has_landed 300 qm resize "${vm_id}" "${vm_boot_disk}" "${VM_DISK}G"
  fi
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  if ((vm_kib != VM_DISK * 1024 * 1024)); then
    result_fail vm "the disk of VM ${vm_id} on node '${probe_node}' is ${vm_kib} KiB, not ${VM_DISK} GB: Proxmox answered: ${run_said:-nothing}" \
      "check the free space of its storage (pvesm status), and that VM_DISK is not below the image's size"
  fi
  if [[ ! ${vm_config[net0]:-} =~ ([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}) ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no network card net0" "look at: qm config ${vm_id}"
  fi
  vm_mac=${BASH_REMATCH[1]}
}

build_set_command() { # set_command; vm_config is the clone's, as read at create
  keep_card "${vm_config[net0]:-virtio}"
  build_guest_options "${vm_card}"
  set_command=(qm set "${vm_id}" "${guest_options[@]}")
  if [[ -n ${VM_CPU_TYPE} ]]; then
    set_command+=(--cpu "${VM_CPU_TYPE}")
  fi
  # What a template may carry and a VM of ours must not: more sockets multiply
  # the cores, protection forbids its destroy.
  if [[ ${vm_config[sockets]:-1} != 1 ]]; then
    set_command+=(--sockets 1)
  fi
  if [[ ${vm_config[protection]:-0} != 0 ]]; then
    set_command+=(--protection 0)
  fi
}

# The clone's card as the template's owner made it (model, firewall, rate), on
# the bridge asked for.
keep_card() { # <net0>; vm_card
  local part
  vm_card=''
  local -a parts
  IFS=, read -ra parts <<<"$1"
  for part in "${parts[@]}"; do
    if [[ ${part} != bridge=* && ${part} != tag=* && ${part} != trunks=* ]]; then
      vm_card+="${vm_card:+,}${part}"
    fi
  done
  vm_card+=",bridge=${PROXMOX_BRIDGE}"
}

set_has_landed() {
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && ${vm_words} != *linus-state=* &&
    ${vm_config[cores]:-1} == "${VM_CPU}" && ${vm_config[memory]:-} == "${VM_RAM}" &&
    ${vm_config[ciuser]:-} == "${vm_user}" && -n ${vm_config[sshkeys]:-} &&
    ",${vm_config[net0]:-}," == *",bridge=${PROXMOX_BRIDGE},"* &&
    (-z ${VM_VLAN_TAG} || ",${vm_config[net0]}," == *",tag=${VM_VLAN_TAG},"*) ]]; then
    retry_landed=yes
  fi
}

resize_has_landed() {
  vm_read "${vm_id}"
  vm_disk_kib "${vm_config[${vm_boot_disk}]:-}"
  if ((vm_kib >= VM_DISK * 1024 * 1024)); then
    retry_landed=yes
  fi
}

# --- start_vm ---

start_vm() {
  retry_change start_has_landed 300 qm start "${vm_id}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not start VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing} (status: ${vm_status})" \
      'check that the node has the memory free and that KVM works there'
  fi
}

start_has_landed() {
  vm_read_status "${vm_id}"
  if [[ ${vm_status} == running ]]; then
    retry_landed=yes
  fi
}

# --- wait_for_network ---

wait_for_network() {
  local -r began=${SECONDS} deadline=$((SECONDS + VM_NETWORK_TIMEOUT))
  local ipv6_since='' said=''
  guest_agent=no
  guest_ip=''
  if [[ ${VM_IP_CONFIG} != dhcp ]]; then
    vm_ip=${VM_IP_CONFIG%/*}
    log_info "the address was given: ${vm_ip}"
    return 0
  fi
  while ((SECONDS < deadline)); do
    guest_find_address "${vm_id}" "${vm_mac}"
    # An agent takes a while to come up, and some images have none.
    if [[ -z ${guest_ip} && ${guest_agent} == no ]] && ((SECONDS - began >= 20)); then
      guest_find_neighbour "${vm_mac}"
    fi
    if [[ -z ${guest_ip} && -n ${guest_ipv6} ]]; then
      ipv6_since=${ipv6_since:-${SECONDS}}
      if ((SECONDS - ipv6_since >= 15)); then
        guest_ip=${guest_ipv6}
      fi
    fi
    if [[ -n ${guest_ip} ]]; then
      vm_ip=${guest_ip}
      log_info "VM ${vm_id} (${vm_mac}) has the address ${vm_ip}"
      return 0
    fi
    if [[ ${guest_seen} != "${said}" ]]; then
      said=${guest_seen}
      log_info "${said}"
      fail_when_stopped
    fi
    sleep 1
  done
  fail_when_stopped
  result_fail timeout "VM ${vm_id} on node '${probe_node}' had no address after ${VM_NETWORK_TIMEOUT} s (card ${vm_mac} on ${PROXMOX_BRIDGE}); last seen: ${guest_seen:-nothing}" \
    "check that a DHCP server answers on ${PROXMOX_BRIDGE} and the guest has qemu-guest-agent; or set VM_IP_CONFIG and VM_GATEWAY, or raise VM_NETWORK_TIMEOUT"
}

fail_when_stopped() {
  vm_read_status "${vm_id}"
  if [[ ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' stopped by itself while it booted" \
      'look at its console when started by hand; CPU type and memory are the usual causes'
  fi
}

# --- verify_ssh_ready ---

verify_ssh_ready() {
  local -r deadline=$((SECONDS + VM_READY_TIMEOUT))
  wait_for_banner "${deadline}"
  wait_for_cloud_init "${deadline}"
  pin_host_key
}

wait_for_banner() { # <deadline>
  while ((SECONDS < $1)); do
    guest_read_banner "${vm_ip}" "${VM_SSH_PORT}"
    if [[ -n ${guest_banner} ]]; then
      log_info "SSH answers: ${guest_banner}"
      return 0
    fi
    sleep 1
  done
  fail_when_stopped
  result_fail timeout "SSH of VM ${vm_id} did not answer at ${vm_ip}:${VM_SSH_PORT} from node '${probe_node}' within ${VM_READY_TIMEOUT} s; last seen: ${run_said:-no greeting}" \
    "check that the guest runs an SSH server on port ${VM_SSH_PORT} and the node reaches ${vm_ip}; or raise VM_READY_TIMEOUT"
}

# An SSH server that answers is not a guest that is ready. Without an agent
# nobody can be asked: that is said, and left to the caller.
wait_for_cloud_init() { # <deadline>
  local -r began=${SECONDS}
  while ((SECONDS < $1)); do
    guest_check_cloud_init "${vm_id}"
    case ${guest_cloud_init} in
      done)
        log_info 'cloud-init is done'
        return 0
        ;;
      none)
        log_info 'the guest has no cloud-init to wait for'
        return 0
        ;;
      failed)
        result_fail vm "cloud-init failed in VM ${vm_id} on node '${probe_node}' (exit ${guest_exit}): ${guest_out}" \
          "look at /var/log/cloud-init.log of a VM made in the same way"
        ;;
      *) ;;
    esac
    if [[ ${guest_agent} == no ]] && ((SECONDS - began >= 30)); then
      result_warning "VM ${vm_id} has no guest agent that answers: whether cloud-init is done is not known, and its host key cannot be read"
      return 0
    fi
    sleep 1
  done
  result_fail timeout "cloud-init of VM ${vm_id} on node '${probe_node}' was not done within ${VM_READY_TIMEOUT} s; last seen: ${guest_cloud_init} ${run_said}" \
    'raise VM_READY_TIMEOUT, or use a template that has less to do at its first boot'
}

pin_host_key() {
  vm_host_key=''
  if [[ ${guest_agent} == no ]]; then
    return 0
  fi
  guest_read_host_key "${vm_id}"
  if [[ -z ${guest_host_key} ]]; then
    result_warning "the SSH host key of VM ${vm_id} could not be read through its agent: ${run_said}"
    return 0
  fi
  vm_host_key=${guest_host_key}
  if ! command -v ssh-keyscan >/dev/null; then
    return 0
  fi
  guest_scan_host_key "${vm_ip}" "${VM_SSH_PORT}"
  if [[ -n ${guest_shown_key} && ${guest_shown_key} != "${vm_host_key}" ]]; then
    result_fail timeout "the SSH host key shown at ${vm_ip}:${VM_SSH_PORT} is not that of VM ${vm_id} on node '${probe_node}'" \
      "another machine answers at ${vm_ip}: look for a second DHCP server or a static address in use twice"
  fi
}

# --- output_result ---

# A signal between the answer and the exit must not undo what was promised.
# VM_ID and VM_NODE were told when the ID became ours.
output_result() {
  script_hold_signals
  result_line VM_NAME "${vm_name}"
  result_line VM_IP "${vm_ip}"
  result_line VM_USER "${vm_user}"
  result_line VM_OS "${vm_system}"
  result_line VM_CPU "${VM_CPU}"
  result_line VM_RAM "${VM_RAM}"
  result_line VM_DISK "${VM_DISK}"
  if [[ -n ${vm_host_key} ]]; then
    result_line VM_HOST_KEY "${vm_host_key}"
  fi
  result_line RESULT SUCCESS
  vm_committed=yes
}

print_plan() {
  key_file=ssh-public-key.pub
  image_file=${image_file:-${IMAGE_DIR}/${image_os}.qcow2}
  if [[ -z ${template_id} ]]; then
    result_text PLAN "fetch ${image_url} to ${image_file}, unless it is there and its checksum is right"
  fi
  build_create_command
  result_text PLAN "${create_command[*]@Q}"
  if [[ -n ${template_id} ]]; then
    build_set_command
    result_text PLAN "${set_command[*]@Q}"
  fi
  result_text PLAN "qm resize ${vm_id} ${vm_boot_disk:-scsi0} ${VM_DISK}G"
  result_text PLAN "qm start ${vm_id}"
  result_line RESULT SUCCESS
  vm_committed=yes
}

# --- the end ---

# A worker killed before it wrote the description leaves a VM that only its
# lease can prove, and not when something speaks against it.
warn_left_alone() {
  local hint=''
  if [[ -n ${vm_config[lock]:-} && -z ${vm_config[description]:-} ]]; then
    hint="; it carries only the lock '${vm_config[lock]}', maybe of this run's killed worker: when no task works on it, remove it by hand (qm unlock ${vm_attempted}; qm destroy ${vm_attempted})"
  fi
  result_warning "VM ${vm_attempted} on node '${probe_node}' is left alone: ${vm_reason}${hint}"
}

# Undoes what this run made, and only that: the config must prove it.
rollback() {
  image_clean
  if [[ -z ${vm_attempted} || ${vm_committed} == yes ]]; then
    return 0
  fi
  log_info "rolling back VM ${vm_attempted}"
  vm_destroy "${vm_attempted}" "${probe_node}"
  case ${vm_outcome} in
    destroyed) log_info "VM ${vm_attempted} is destroyed" ;;
    absent) log_info "VM ${vm_attempted} does not exist: nothing to undo" ;;
    refused) warn_left_alone ;;
    *) result_warning "VM ${vm_attempted} on node '${probe_node}' could not be destroyed and is left behind: ${vm_reason}" ;;
  esac
  if [[ -n ${vm_leftovers} ]]; then
    result_warning "volumes of VM ${vm_attempted} were left on the storage: ${vm_leftovers}"
  fi
}

main() {
  if [[ ${1:-} == --help ]]; then
    usage
    return 0
  fi
  set -Eeuo pipefail
  shopt -s inherit_errexit
  script_begin 9 rollback
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step allocate_vm_id 'choosing a VM ID'
  if [[ ${dry_run} == yes ]]; then
    print_plan
    return 0
  fi
  result_run_step download_os_image 'getting the image'
  result_run_step create_vm 'creating the VM'
  result_run_step configure_vm 'configuring the VM'
  result_run_step start_vm 'starting the VM'
  result_run_step wait_for_network 'waiting for its address'
  result_run_step verify_ssh_ready 'waiting until it is ready'
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then main "$@"; fi
