#!/usr/bin/env bash
# Creates a volume of linus on the Proxmox VE node this runs on; or attaches it to a running VM
# of linus and mounts it there, now and whenever the VM boots (lib/mount.sh); or unmounts and
# detaches it (lib/volume.sh). With VM_KIND=volume, list-vms.sh lists volumes and destroy-vm.sh
# removes one.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there. The VM's
# guest agent must run commands.
#
# Inputs (environment), all required by the actions that they are listed for:
#   ACTION                    create, attach or detach
#   VOLUME_UUID               the volume's linus-job, and its filesystem's UUID
#   VOLUME_HOLDER             name of the VM that holds it and never runs
#   LINUS_OWNER               the installation
# for create:
#   VOLUME_NAME, VOLUME_SIZE (GB)
# for attach and detach:
#   VOLUME_VMID               ID of its holder
#   VM_ID, VM_NAME, LINUS_JOB the VM
# for attach:
#   VOLUME_PATH               where the VM mounts it, an absolute path
#   VOLUME_MODE rw            rw: this VM alone has it; ro: any number of VMs may have it,
#                             while none writes
#   VOLUME_FORMATTED false    true: it has a filesystem already, and never gets another
#   VM_SSH_USER               the owner of its top directory (default: the VM's user)
# and optionally:
#   PROXMOX_NODE              default: this host's own
#   PROXMOX_STORAGE local-lvm, STORAGE_RESERVE 5 (GB that stay free), VM_ID_RANGE 100-999
#   LINUS_ENGINE              the engine that asks, if there are several (lib/fence.sh)
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check, print the commands, change nothing), --help
#
# Attach and detach can be run twice. A disk without any signature gets a filesystem (ext4)
# with VOLUME_UUID. A disk with something else on it is left as it is. The result is on stdout
# in LINUS_ lines (lib/result.sh), the log on stderr:
#   LINUS_VM_ID, LINUS_VM_NODE  of the holder, once it is reserved
#   LINUS_VOLUME_DISK           Proxmox's name of the volume
#   LINUS_VOLUME_SHARED:true    its storage is shared by nodes, whose VMs can have it, too:
#                               volume.sh runs on the VM's node, wherever the holder is
#   LINUS_VOLUME_FORMATTED:true it has its filesystem
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration, 4 node
# offline, 5 refused or failed, 6 timeout, 129/130/141/143 signal. A failed action is undone:
# a volume just created is removed, and one just attached is detached.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/create.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/mount.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/power.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"

volume_key=''     # the drive of the VM that is the volume; empty: none
volume_plugged=no # yes: by this run
volume_shared=''

usage() {
  printf '%s\n' \
    'usage: ACTION=create|attach|detach VOLUME_UUID=... VOLUME_HOLDER=... LINUS_OWNER=... [...] volume.sh [--dry-run | --help]' \
    'Creates a volume, attaches it to a running VM or takes it off. Inputs and exit codes' \
    'are listed at the top of the script.' >&2
}

read_volume_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${ACTION:=}" "${VOLUME_UUID:=}" "${VOLUME_HOLDER:=}" "${VOLUME_NAME:=}" "${VOLUME_SIZE:=}" "${VOLUME_VMID:=}"
  : "${VOLUME_PATH:=}" "${VOLUME_MODE:=rw}" "${VOLUME_FORMATTED:=false}"
  VM_TEMPLATE='' VM_CHECKPOINT='' LINUS_LEASE_SECONDS=0
  read_settings
}

validate_volume() {
  validate_pattern ACTION "${ACTION}" 'create|attach|detach' 'create, attach or detach'
  validate_uuid VOLUME_UUID "${VOLUME_UUID}"
  validate_name VOLUME_HOLDER "${VOLUME_HOLDER}"
  validate_node "${PROXMOX_NODE}"
  fence_read_inputs
  if [[ ${ACTION} == create ]]; then
    validate_name VOLUME_NAME "${VOLUME_NAME}"
    validate_number VOLUME_SIZE "${VOLUME_SIZE}" 1 10000 GB
    validate_storage "${PROXMOX_STORAGE}"
    validate_reserve "${STORAGE_RESERVE}"
    validate_range "${VM_ID_RANGE}"
    validate_uuid LINUS_OWNER "${vm_owner}"
  else
    vm_read_inputs
    validate_number VOLUME_VMID "${VOLUME_VMID}" 100 999999999
    validate_pattern VOLUME_MODE "${VOLUME_MODE}" 'rw|ro' 'rw or ro'
    validate_pattern VOLUME_FORMATTED "${VOLUME_FORMATTED}" 'true|false' 'true or false'
    validate_pattern VM_SSH_USER "${VM_SSH_USER}" '([a-z_][a-z0-9_-]{0,31})?' 'a Linux user name'
    if [[ ${ACTION} == attach ]]; then
      validate_pattern VOLUME_PATH "${VOLUME_PATH}" '(/[^/[:cntrl:]]+)+' 'an absolute path, and not the root'
    fi
  fi
  validate_tools qm pvesh pvesm perl timeout flock systemctl
  probe_cluster "${PROXMOX_NODE}"
  probe_require
}

mean_volume() {
  vm_kind=volume vm_name=${VOLUME_HOLDER} vm_job=${VOLUME_UUID}
}

mean_vm() {
  vm_kind=vm vm_name=${VM_NAME} vm_job=${LINUS_JOB} vm_id=${VM_ID}
}

# --- create ---

look_at_storage() {
  run_start volumes 60 pvesm list "${PROXMOX_STORAGE}" # read by note_unclean_ids
  probe_require_storage "${PROXMOX_STORAGE}" 0
  volume_shared=${probe_storage_shared}
  probe_vms
  mean_volume
  address_kind=dhcp
  note_taken_ids
  note_unclean_ids
  allocate_vm_id
}

# As a drive, it would be opened by a start of its holder or by a backup of it.
put_aside() {
  retry_change is_put_aside 120 qm set "${vm_id}" --delete scsi0 --protection 1
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "the disk of VM ${vm_id} on node '${probe_node}' could not be put aside: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
  fi
  slot_leave
  run_stoppable=no
  vm_committed=yes
  result_line VOLUME_DISK "${volume_disk}"
  if [[ ${volume_shared} == 1 ]]; then
    result_line VOLUME_SHARED true
  fi
}

is_put_aside() {
  vm_read "${vm_id}"
  vm_prove
  volume_find_disk
  if [[ -z ${vm_doubt} && -n ${volume_disk} && ${vm_config[unused0]:-} == "${volume_disk}" && ${vm_config[protection]:-0} == 1 ]]; then
    retry_landed=yes
  fi
}

# --- attach, detach ---

find_volume() {
  local away
  power_hold volume "${VOLUME_VMID}"
  read_holder
  volume_disk=''
  if [[ -z ${vm_doubt} ]]; then
    volume_find_disk
  elif [[ ${ACTION} == detach && ${vm_state} != unknown ]]; then # a detach loses nothing by that
    log_warn "what holds volume ${VOLUME_VMID} is not proven: ${vm_doubt}"
  else
    result_fail vm "refused to ${ACTION} volume ${VOLUME_VMID} on node '${probe_node}': ${vm_doubt}" 'list-vms.sh shows volumes (VM_KIND=volume)'
  fi
  if [[ ${ACTION} == attach ]]; then
    require_free_disk
    if [[ -n ${away} ]]; then
      require_shared "${away}"
    fi
  fi
  find_users
  require_unmoved
}

read_holder() { # away: the node that has it, if that is another
  away=''
  mean_volume
  vm_read "${VOLUME_VMID}"
  if [[ ${vm_state} == moved ]]; then
    away=${vm_moved_to}
    vm_read "${VOLUME_VMID}" "${away}"
  fi
  vm_prove
}

require_free_disk() {
  if [[ -z ${volume_disk} ]]; then
    result_fail vm "volume ${VOLUME_VMID} on node '${probe_node}' has lost its disk: its holder has none" "look at: qm config ${VOLUME_VMID}, and pvesm list STORAGE --vmid ${VOLUME_VMID}"
  elif [[ ${volume_held} != unused* ]]; then
    result_fail vm "volume ${VOLUME_VMID} on node '${probe_node}' is a drive of its holder (${volume_held}), to which somebody has attached it: both would write to it" \
      "stop VM ${VOLUME_VMID}, and take it off there: qm set ${VOLUME_VMID} --delete ${volume_held}"
  fi
}

# On a storage that two nodes share, Proxmox attaches a disk of the other node's VM like any other.
require_shared() { # <node of the volume's holder>
  local -r storage=${volume_disk%%:*}
  probe_require_storage "${storage}"
  if [[ ${probe_storage_shared} != 1 ]]; then
    result_fail config "volume ${VOLUME_VMID} is on node '$1', on storage '${storage}', which that node does not share with node '${probe_node}'" \
      "use a VM of node '$1', or a volume on a storage that is shared by the nodes"
  fi
}

# volume_key, volume_as: how the VM has it, now or once it is restarted; volume_others: the other
# VMs that have it, as volume_users
find_users() {
  local user
  volume_others=()
  if [[ -n ${volume_disk} ]]; then
    volume_find_users "${volume_disk}" "${VOLUME_VMID}"
    if ((volume_rc > 1)); then
      result_fail config "which VMs have volume ${VOLUME_VMID} could not be read: ${run_said}" 'look at: systemctl status pve-cluster'
    fi
    for user in "${volume_users[@]}"; do
      if [[ ${user%% *} != "${VM_ID}" ]]; then
        volume_others+=("${user}")
      fi
    done
  fi
  find_own_drive
}

find_own_drive() {
  local section
  volume_key='' volume_as=''
  for section in PENDING ''; do # what it has now is read last
    vm_read "${VM_ID}" '' "${section}"
    if [[ ${vm_state} == unknown ]]; then
      result_fail config "the config of VM ${VM_ID} could not be read: ${run_said}" 'look at: systemctl status pve-cluster'
    fi
    find_drive
  done
}

# It is also found by its serial number: its holder may be gone, and the disk another one.
find_drive() {
  local key value
  for key in "${!vm_config[@]}"; do
    value=${vm_config[${key}]}
    if [[ ${key} =~ ^(scsi|virtio|sata|ide)[0-9]+$ && (${value%%,*} == "${volume_disk}" || ,${value}, == *",serial=${volume_serial},"*) ]]; then
      volume_key=${key} volume_as=rw
      if [[ ,${value}, == *,ro=1,* ]]; then
        volume_as=ro
      fi
    fi
  done
}

require_unmoved() {
  volume_find_foreign "${VM_ID}"
  if [[ -n ${volume_key} && ,${volume_moved}, == *",${volume_key},"* ]]; then
    result_fail vm "refused to ${ACTION} volume ${VOLUME_VMID}: somebody has moved it to a disk of VM ${VM_ID} on node '${probe_node}' (${volume_key}: ${vm_config[${volume_key}]%%,*})" \
      "keep what is on that disk elsewhere (qm disk move ${VM_ID} ${volume_key} --target-vmid ID), or give it up (qm set ${VM_ID} --delete ${volume_key}), and take a new volume"
  fi
}

require_vm() {
  mean_vm
  local -r power_work="${ACTION} volume ${VOLUME_VMID} of"
  power_require_proof
}

# A volume that is written to has only one VM.
require_alone() {
  local user mode
  for user in "${volume_others[@]}"; do
    read -r user _ mode <<<"${user}"
    if [[ ${VOLUME_MODE} == rw || ${mode} == rw ]]; then
      result_fail vm "volume ${VOLUME_VMID} on node '${probe_node}' is attached to VM ${user} (${mode}): a volume that is written to has one VM alone" "take it off there first: linus volume detach; or remove the snapshots of that VM that have it"
    fi
  done
}

attach_volume() {
  local options
  require_alone
  require_vm
  vm_expect_status "${vm_id}" running
  vm_find_suspended "${vm_status}"
  if [[ ${vm_suspended} == yes ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is suspended: nothing can be mounted in it" 'resume it first'
  elif [[ ${vm_status} != running ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' does not run (status: ${vm_status}): nothing can be mounted in it" 'start it first'
  elif [[ -n ${volume_key} && ${volume_as} != "${VOLUME_MODE}" ]]; then
    result_fail vm "volume ${VOLUME_VMID} is attached to VM ${vm_id} on node '${probe_node}' as ${volume_as}" 'take it off first: linus volume detach'
  elif [[ -n ${volume_key} ]]; then
    log_info "it is attached already, as ${volume_key}"
    return 0
  fi
  options=${volume_disk},backup=0,discard=on,serial=${volume_serial}
  if [[ ${vm_config[scsihw]:-} == virtio-scsi-single ]]; then # elsewhere it means nothing
    options+=,iothread=1
  fi
  if [[ ${VOLUME_MODE} == ro ]]; then
    options+=,ro=1
  fi
  choose_key
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "qm set ${vm_id} --${volume_key} ${options}"
    return 0
  fi
  local retry_clear=require_free_key tries
  volume_plugged=yes
  # A disk that somebody attaches meanwhile is not replaced: another drive is chosen then.
  for tries in 1 2 3; do
    retry_by=digest retry_change is_attached 120 qm set "${vm_id}" "--${volume_key}" "${options}"
    if [[ ${retry_landed} != hopeless ]]; then
      break
    fi
    choose_key
  done
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "volume ${VOLUME_VMID} could not be attached to VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing}" \
      "check that disks can be hot-plugged there (qm config ${vm_id}: hotplug, scsihw virtio-scsi-single or virtio-scsi-pci)"
  fi
  # Runs on two nodes share no lock. Here each of them sees the other's attachment, before anything
  # is mounted. The volume's removal lifts its protection before it looks which VMs have it.
  local -r key=${volume_key}
  local away
  read_holder
  local -r doubt=${vm_doubt} protection=${vm_config[protection]:-0}
  mean_vm
  if [[ -n ${doubt} || ${protection} != 1 ]]; then
    result_fail vm "volume ${VOLUME_VMID} on node '${probe_node}' is not kept: ${doubt:-it has lost its protection, as one does that is removed}" \
      "take another volume; one that is to stay gets its protection back by hand: qm set ${VOLUME_VMID} --protection 1"
  fi
  find_users
  volume_key=${key}
  require_alone
}

# Looks at the config as it is now, on which the next try is based.
require_free_key() {
  require_vm
  if [[ -n ${vm_config["${volume_key}"]:-} ]]; then
    retry_landed=hopeless
  fi
}

choose_key() {
  local -i n
  for ((n = 2; n <= 30; n += 1)); do
    if [[ -z ${vm_config["scsi${n}"]:-} ]]; then
      volume_key=scsi${n}
      return 0
    fi
  done
  result_fail vm "VM ${vm_id} on node '${probe_node}' has as many disks as a VM can have" 'take another volume off first'
}

is_attached() {
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && ${vm_config["${volume_key}"]:-} == "${volume_disk}",* ]]; then
    retry_landed=yes
  fi
}

detach_volume() {
  if [[ -z ${volume_key} ]]; then
    return 0
  elif [[ ${dry_run} == yes ]]; then
    result_text PLAN "qm set ${vm_id} --delete ${volume_key}"
    return 0
  fi
  local retry_clear=require_same_key
  local -r key=${volume_key}
  retry_landed=no
  require_same_key
  if [[ ${retry_landed} == hopeless ]]; then
    result_fail vm "the drives of VM ${vm_id} on node '${probe_node}' have changed meanwhile" 'try again'
  fi
  retry_by=digest retry_change is_detached 120 qm set "${vm_id}" --delete "${key}"
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "volume ${VOLUME_VMID} could not be taken off VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing}" \
      "look at: qm config ${vm_id}; or destroy the VM: the volume is taken off first"
  fi
}

# Each try is for the drive that is the volume by the config as it is now.
require_same_key() {
  require_vm
  find_own_drive
  if [[ ${volume_key} != "${key}" ]]; then
    retry_landed=hopeless
  fi
}

is_detached() {
  find_users
  if [[ -z ${volume_key} ]]; then
    retry_landed=yes
  fi
}

# --- the end ---

undo() {
  if [[ ${ACTION:-} == create ]]; then
    rollback
  elif [[ ${volume_plugged} == yes ]]; then
    log_info "rolling back: taking volume ${VOLUME_VMID} off VM ${vm_id}"
    vm_read "${vm_id}"
    vm_prove
    if [[ -z ${vm_doubt} && ${vm_config["${volume_key}"]:-} == "${volume_disk}",* ]]; then
      ask_unmount 20
      run_change 120 qm set "${vm_id}" --delete "${volume_key}" --digest "${vm_digest}"
    fi
  fi
  power_let_go
}

main() {
  script_begin 4 undo
  tools_start
  read_volume_inputs "$@"
  volume_serial=linus${VOLUME_UUID: -12}
  result_run_step validate_volume 'checking the inputs and the host'
  case ${ACTION} in
    create)
      result_run_step look_at_storage 'looking at the storage'
      if [[ ${dry_run} == yes ]]; then
        build_create_command
        result_text PLAN "${create_command[*]@Q}"
        result_text PLAN "qm set ${vm_id} --delete scsi0 --protection 1"
      else
        result_run_step create_vm 'creating the volume'
        result_run_step put_aside 'putting it aside'
      fi
      ;;
    attach)
      result_run_step find_volume 'looking at the volume'
      result_run_step attach_volume 'attaching it'
      result_run_step mount_volume 'mounting it'
      ;;
    *)
      result_run_step find_volume 'looking at the volume'
      result_run_step unmount_volume 'unmounting it'
      result_run_step detach_volume 'taking it off'
      ;;
  esac
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
