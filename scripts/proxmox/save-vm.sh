#!/usr/bin/env bash
# Makes a template of linus from one VM of linus on the Proxmox VE node this runs on: from a
# full copy of the VM, or (SAVE_MODE=in-place) from the VM itself, which is no VM afterwards.
#
# Proxmox copies the VM while it runs, and freezes its file systems for a moment
# (drive-mirror); the storage need not support snapshots. The copy boots once, with the links
# of its cards down, so that nobody hears of it. Through its guest agent the script removes
# the VM's identity, the keys of its people and what jobs have left (lib/template.sh). Then
# the copy is shut down. In place, all of that is done to the VM itself, and its links stay
# up.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
#   TEMPLATE_NAME             the template's name, which no VM of the cluster may have
#   LINUS_BUILD               UUID for the template's description, as linus-job
# and optionally:
#   SAVE_MODE copy            or in-place
#   SAVED_BY                  who saves it, noted in the template
#   VM_TEMPLATE               the template that the VM was made from, noted there, too
#   STORAGE_RESERVE 5         GB that stay free on the VM's storages beside the copy
#   VM_ID_RANGE 100-999       of the copy
#   PROXMOX_NODE              default: this host's own
#   VM_SSH_USER               default: the VM's
#   VM_READY_TIMEOUT 600      (seconds) until it is ready and its agent responds
#   LINUS_LEASE_SECONDS 21600 after that time the host destroys a copy that is not a template
#                             yet, for example because this run was killed
#   LINUS_ENGINE              the engine that asks, if there are several (lib/fence.sh)
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check everything, print the commands, change nothing), --help
#
# The result is on stdout in LINUS_ lines (lib/result.sh), the log on stderr:
#   LINUS_TEMPLATE_NAME, LINUS_VM_ID, LINUS_VM_NODE (of the template), LINUS_SAVED (copy
#   or in-place), LINUS_SAVED_AT (seconds since 1970), and a LINUS_LEFT for each thing
#   that the script found in it and left there.
# It can be run again. If a run fails or is killed, its copy is destroyed. In place, a run
# continues where a killed one stopped. Until it is a template, the VM stays a VM of linus and
# keeps its name. At worst it is off and cleaned: when started, it boots as a new VM.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration, 4 node
# offline, 5 refused or failed, 6 timeout, 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/create.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/power.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/snapshots.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/template.sh"

stage=vm     # what the VM is: vm, template (in place, not renamed yet) or whole (all is done)
cleaned=no   # in place: its cleaning has begun
save_job=''  # the UUID of the VM that is saved
save_name='' # and its name
save_words=''
save_at=0     # when: seconds since 1970
save_cards=() # the cards of the copy whose links are to be up again
save_left=()

usage() {
  printf '%s\n' \
    'usage: VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=... TEMPLATE_NAME=... LINUS_BUILD=... [SAVE_MODE=in-place] save-vm.sh [--dry-run | --help]' \
    'Makes a template from a VM of linus. Inputs and exit codes are listed at the top of the' \
    'script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${TEMPLATE_NAME:=}" "${LINUS_BUILD:=}" "${SAVE_MODE:=copy}" "${SAVED_BY:=}" "${VM_TEMPLATE:=}" "${STORAGE_RESERVE:=5}"
  : "${VM_ID_RANGE:=100-999}" "${PROXMOX_NODE:=}" "${LINUS_LEASE_SECONDS:=21600}"
  # The copy's settings, which every VM that is made needs (lib/create.sh).
  VM_IP_CONFIG=dhcp VM_GATEWAY='' VM_EGRESS=lan VM_EGRESS_RANGES='' VM_CHECKPOINT='' VM_TRUST_FIRST_USE=false
  ACTION=save
  boot_read_inputs
}

check_environment() {
  vm_read_inputs
  fence_read_inputs
  validate_name TEMPLATE_NAME "${TEMPLATE_NAME}"
  validate_uuid LINUS_BUILD "${LINUS_BUILD}"
  validate_pattern SAVE_MODE "${SAVE_MODE}" 'copy|in-place' 'copy or in-place'
  validate_pattern SAVED_BY "${SAVED_BY}" '[A-Za-z0-9._@:+-]{0,64}' 'at most 64 of A-Z a-z 0-9 . _ @ : + -'
  validate_template "${VM_TEMPLATE}"
  validate_reserve "${STORAGE_RESERVE}"
  validate_range "${VM_ID_RANGE}"
  validate_number LINUS_LEASE_SECONDS "${LINUS_LEASE_SECONDS}" 60 31536000 seconds
  boot_validate_inputs
  address_validate
  validate_node "${PROXMOX_NODE}"
  validate_tools qm pvesh pvesm perl timeout flock systemd-run systemctl ip
  if [[ ${dry_run} == no ]]; then
    lease_sweep
  fi
  probe_cluster "${PROXMOX_NODE}"
  probe_require
}

# --- look_at_vm: whose it is, and all that can hinder, before anything is made ---

look_at_vm() {
  save_job=${vm_job} save_name=${vm_name} save_at=${EPOCHSECONDS}
  save_words=" linus-saved=${vm_job} linus-from=${vm_name}${VM_TEMPLATE:+ linus-before=${VM_TEMPLATE}}${SAVED_BY:+ linus-by=${SAVED_BY}} linus-at=${save_at}"
  power_hold VM "${vm_id}"
  find_stage
  if [[ ${stage} == whole ]]; then
    return 0
  fi
  require_name
  if [[ ${stage} == vm ]]; then
    require_shape
  fi
}

# For a copy, create_vm checks again. In place, nothing has the name until the end, so it is checked
# before each step that cannot be undone.
require_name() {
  local -r vm_name=${TEMPLATE_NAME}
  probe_vms
  note_taken_ids
}

# Finds how far an earlier run in place has come, which was killed at its end or before its last
# step.
find_stage() {
  vm_read "${vm_id}"
  if [[ ${SAVE_MODE} == in-place && ${vm_config[template]:-0} == 1 && ${vm_words} == *' linus-template=1 '* ]]; then
    stage=template vm_kind=template
    if [[ ${vm_words} == *" linus-saved=${save_job} "* && ${vm_words} == *" linus-owner=${vm_owner} linus-vm=${vm_id} "* && ${vm_config[name]:-} == "${TEMPLATE_NAME}" ]]; then
      stage=whole
      [[ ! ${vm_words} =~ \ linus-at=([0-9]{1,12})\  ]] || save_at=${BASH_REMATCH[1]}
      return 0
    fi
  fi
  power_require_proof
  if [[ ${stage} == template ]]; then
    return 0
  elif [[ -n ${vm_config[lock]:-} && ${vm_config[lock]} != suspended ]]; then
    result_fail vm "could not save VM ${vm_id} on node '${probe_node}' now: VM is locked (${vm_config[lock]})" 'wait for the work that holds the lock to end, then try again'
  fi
  vm_expect_status "${vm_id}" running
  vm_find_suspended "${vm_status}"
  if [[ ${vm_suspended} == yes || ${vm_status} != @(running|stopped) ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' neither runs nor is stopped (status: ${vm_status}, suspended: ${vm_suspended})" 'resume it first, then save it'
  fi
}

require_shape() {
  local key storage
  local -r other='save it with SAVE_MODE=in-place, or stop it first'
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^(scsi|virtio|sata|ide|efidisk|tpmstate)[0-9]+$ && ${vm_config[${key}]%%,*} == *:* && (${vm_config[${key}]} != *media=cdrom* || ${vm_config[${key}]} == *cloudinit*) ]]; then
      if [[ ! ${vm_config[${key}]} =~ ^[^,]*[:/](vm|base)-${vm_id}- ]]; then
        result_fail config "VM ${vm_id} on node '${probe_node}' has ${key} (${vm_config[${key}]%%,*}), which is not its own: it would be in every VM of the template" 'detach it first'
      fi
    fi
    if [[ ${SAVE_MODE} == copy && ${vm_status} == running && ${key} =~ ^(hostpci|usb|tpmstate|virtiofs)[0-9]+$ ]]; then
      result_fail config "VM ${vm_id} on node '${probe_node}' has ${key}, of which there is no copy while it runs" "${other}"
    fi
  done
  if [[ ${vm_config[agent]:-} != *1* ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has no guest agent, through which it is cleaned" "give it one: qm set ${vm_id} --agent enabled=1, with qemu-guest-agent in it"
  elif [[ " ${vm_config[*]} " != *cloudinit* ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has no cloud-init drive, by which the template's VMs would learn who they are" "add one: qm set ${vm_id} --scsi1 STORAGE:cloudinit"
  fi
  vm_find_storages
  vm_measure_disks
  create_storages=${vm_storages}
  local -a room=()
  if [[ ${SAVE_MODE} == copy ]]; then
    room=("${vm_disks_mib}" 'of the copy')
  fi
  for storage in ${vm_storages}; do
    probe_require_storage "${storage}" "${room[@]}"
    if [[ ${probe_storage_type} == lvm ]]; then
      result_fail config "storage '${storage}' of VM ${vm_id} on node '${probe_node}' takes no templates: it is LVM without thin volumes" 'move its disk first (qm disk move), to lvmthin, zfs, dir, nfs or rbd'
    fi
  done
  if [[ ${SAVE_MODE} == copy ]]; then
    require_copy "${other}"
    return 0
  fi
  snapshots_read "${LINUS_PVE_DIR:-/etc/pve}"
  run_lines read
  if ((run_rc != 0)) || [[ -n ${run_lines[*]} ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has snapshots, with which it cannot become a template" 'remove them first, or save a copy'
  fi
}

require_copy() { # <what to do>
  run_read 60 pvesh get "/nodes/${probe_node}/qemu/${vm_id}/feature" --feature copy --output-format json
  json_rows read hasFeature
  if ((run_rc != 0 || json_rc != 0)); then
    result_fail vm "could not ask whether VM ${vm_id} on node '${probe_node}' can be copied: ${run_said}" "look at: qm config ${vm_id}"
  elif [[ ${json_lines[0]:-0} != 1 ]]; then
    result_fail config "the storage of VM ${vm_id} on node '${probe_node}' cannot copy its disks" "$1"
  fi
  PROXMOX_STORAGE=${create_storages%% *}
  run_start volumes 60 pvesm list "${PROXMOX_STORAGE}"
  note_unclean_ids
  template_id=${vm_id} clone_source=${vm_id}
}

# --- copy_vm ---

# From here on the VM meant is the copy.
copy_vm() {
  if [[ ${SAVE_MODE} == in-place ]]; then
    log_info 'not needed: the VM itself becomes the template'
    retry_clear=prove_again
    return 0
  fi
  vm_name=${TEMPLATE_NAME} vm_job=${LINUS_BUILD} create_seconds=10000
  allocate_vm_id
  if [[ ${dry_run} == yes ]]; then
    build_create_command
    return 0
  fi
  create_vm
  slot_leave
  power_let_go
  local key
  local -a options=(--description "${vm_description}" --ipconfig0 ip=dhcp --onboot 0 --protection 0 --tags linus)
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^net[0-9]+$ && ,${vm_config[${key}]}, != *,link_down=1,* ]]; then
      save_cards+=("${key}")
      options+=("--${key}" "${vm_config[${key}]},link_down=1")
    fi
  done
  retry_change copy_is_alone 120 qm set "${vm_id}" "${options[@]}"
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "the links of VM ${vm_id} on node '${probe_node}', the copy, could not be taken down: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
  fi
}

copy_is_alone() {
  local key
  vm_read "${vm_id}"
  vm_prove
  if [[ -n ${vm_doubt} || ${vm_words} == *linus-state=* || ${vm_config[ipconfig0]:-} != ip=dhcp ]]; then
    return 0
  fi
  retry_landed=yes
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^net[0-9]+$ && ,${vm_config[${key}]}, != *,link_down=1,* ]]; then
      retry_landed=no
    fi
  done
}

# --- boot_vm, clean_vm ---

boot_vm() {
  if [[ ${stage} == template ]]; then
    log_info 'not needed: it is a template'
    return 0
  fi
  if [[ ${SAVE_MODE} == copy || ${vm_status} == stopped ]]; then
    start_vm
  fi
  guest_agent=no
  wait_for_guest "$((SECONDS + VM_READY_TIMEOUT))"
}

clean_vm() {
  local -r user=${VM_SSH_USER:-${vm_config[ciuser]:-root}}
  if [[ ${stage} == template ]]; then
    return 0
  fi
  power_require_proof
  if [[ ${SAVE_MODE} == in-place ]]; then
    require_name
  fi
  template_program >"${run_dir}/clean"
  cleaned=yes
  local guest_stdin=${run_dir}/clean
  guest_exec "${vm_id}" 900 sh -s "${user}" linus-clean
  if [[ ${guest_exit} != 0 || ${guest_out} != *'linus-clean done'* ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' could not be cleaned (exit ${guest_exit:-unknown}): ${guest_out:-${run_said}}" \
      'its agent must run commands as root, and it must have cloud-init 22.3 or newer'
  fi
  guest_out=${guest_out#*linus-clean done}
  IFS='|' read -ra save_left <<<"${guest_out:0:4000}"
}

# --- make_template ---

make_template() {
  local card
  local -a options=(--delete sshkeys --ipconfig0 ip=dhcp)
  if [[ ${SAVE_MODE} == in-place ]]; then
    become_template
    return 0
  fi
  for card in "${save_cards[@]}"; do
    options+=("--${card}" "${vm_config[${card}]/,link_down=1/}")
  done
  mark_template "${save_words}" "${options[@]}"
  convert_template
  vm_committed=yes
  lease_drop "${vm_id}" "${vm_job}"
}

# In place: until the very last step the VM keeps the job and name that linus knows it by, so that a
# killed run leaves a VM that proves to be linus's, and can be continued.
become_template() {
  local vm_egress=''
  egress_read_word
  vm_egress=${egress_word}
  if [[ ${stage} == vm ]]; then
    require_name
    mark_template ''
    convert_template
  fi
  vm_egress='' vm_job=${LINUS_BUILD} vm_name=${TEMPLATE_NAME}
  local retry_clear=''
  mark_template "${save_words}" --name "${TEMPLATE_NAME}" --delete sshkeys --ipconfig0 ip=dhcp
  stage=whole
  lease_drop "${vm_id}" "${save_job}"
  egress_clear "${vm_id}"
}

output_result() {
  local left
  stage=whole
  result_line TEMPLATE_NAME "${TEMPLATE_NAME}"
  result_line VM_ID "${vm_id}"
  result_line VM_NODE "${probe_node}"
  result_line SAVED "${SAVE_MODE}"
  result_line SAVED_AT "${save_at}"
  for left in "${save_left[@]}"; do
    if [[ -n ${left//[[:space:]]/} ]]; then
      result_text LEFT "${left}"
    fi
  done
  result_line RESULT SUCCESS
}

print_plan() {
  if [[ ${SAVE_MODE} == copy ]]; then
    result_text PLAN "${create_command[*]}"
    result_text PLAN "qm set ${vm_id}, with the links of its cards down"
  fi
  if [[ ${SAVE_MODE} == copy || ${vm_status} == stopped ]]; then
    result_text PLAN "qm start ${vm_id}"
  fi
  result_text PLAN 'in it, through its agent: cloud-init clean; remove host keys, keys of people, histories, credentials of agents, what jobs have left'
  result_text PLAN "qm shutdown ${vm_id} --timeout 180"
  result_text PLAN "qm set ${vm_id} --delete sshkeys --ipconfig0 ip=dhcp, marked linus-template=1${save_words}"
  result_text PLAN "qm template ${vm_id}"
  result_line RESULT SUCCESS
}

# A copy is destroyed, and the VM itself stays.
undo() {
  power_let_go
  if [[ ${SAVE_MODE:-copy} == copy ]]; then
    rollback
  elif [[ ${cleaned} == yes && ${stage} == vm ]]; then
    if [[ ${vm_config[template]:-0} == 1 && ${vm_words} == *" linus-job=${save_job} "* ]]; then
      run_change 120 qm set "${vm_id}" --template 0 # its disk is not a template's, so that it still is a VM
    fi
    result_warning "VM ${vm_id} (${save_name}) on node '${probe_node}' is no template; it was cleaned, or may be: its people's keys are gone, and started again it boots as a new VM"
  fi
}

main() {
  script_begin 8 undo
  tools_start
  read_inputs "$@"
  result_run_step check_environment 'checking the inputs and the host'
  result_run_step look_at_vm 'looking at the VM'
  if [[ ${stage} == whole ]]; then
    output_result
    return 0
  fi
  if [[ ${dry_run} == yes ]]; then
    copy_vm
    print_plan
    return 0
  fi
  result_run_step copy_vm 'copying the VM'
  result_run_step boot_vm 'waiting until it is ready'
  result_run_step clean_vm 'removing what its clones must not share'
  if [[ ${stage} == vm ]]; then
    result_run_step shut_down 'shutting it down'
  fi
  result_run_step make_template 'turning it into a template'
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
