#!/usr/bin/env bash
# Makes a checkpoint of one VM of linus on the Proxmox VE node this runs on. The running VM
# is saved to the disk and becomes a template. From it, create-vm.sh makes VMs that continue
# where it was saved (VM_CHECKPOINT) instead of booting. The VM itself is used up.
#
# create-vm.sh must have made the VM from a template. The VM must be ready, and must not have
# had a job: whatever is in its memory and on its disk is in every VM that is restored from
# it. First the script removes what belongs to this VM alone (keys of those who may log in,
# job directories, histories). It also takes the VM's link down, so that no copy sends
# anything before it has a name of its own.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
#   VM_TEMPLATE               name or ID of the template that it was made from
# and optionally:
#   CHECKPOINT_ROOM 5         GB that stay free on LINUS_HOST_DIR's file system: a checkpoint
#                             is refused if twice the VM's memory and 500 MB would leave less
#   STORAGE_RESERVE 5         GB that stay free on the VM's storages, likewise
#   VM_OS                     the name to report for its system (default: VM_TEMPLATE)
#   PROXMOX_NODE              default: this host's own
#   VM_SSH_USER               default: the VM's
#   LINUS_ENGINE              the engine that asks, if there are several (lib/fence.sh)
#   LINUS_HOST_DIR /var/lib/linus   where its memory is kept (lib/checkpoint.sh)
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check everything, print the commands, change nothing), --help
#
# It can be run again: it continues what a killed run began, and it reports a checkpoint that
# is complete. The result is on stdout in LINUS_ lines (lib/result.sh), the log on stderr:
#   LINUS_CHECKPOINT_ID, _TEMPLATE (its ID), _GENERATION (of the template), _MACHINE,
#   _CPU, _HOST (QEMU and processor it was saved on), _BYTES (of its memory, on the disk)
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration, 4 node
# offline, 5 refused or failed, 6 timeout, 129/130/141/143 signal. A failure before the VM is
# changed leaves the VM as it was. After a later failure the VM is destroyed, together with
# the incomplete checkpoint, and LINUS_VM_OUTCOME says how that went (destroy-vm.sh).

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/checkpoint-keep.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/power.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/sweep.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/template.sh"

stage=''   # how far the VM is: running, saved, kept (its memory lies only here), template
changed=no # yes: this run, or one before, has begun to use the VM up
whole=no   # yes: the answer is out, or was before
template_id=''
generation=''

usage() {
  printf '%s\n' \
    'usage: VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=... VM_TEMPLATE=... checkpoint-vm.sh [--dry-run | --help]' \
    'Turns a ready VM of linus into a checkpoint, from which create-vm.sh restores' \
    'VMs. Inputs and exit codes are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${VM_TEMPLATE:=}" "${CHECKPOINT_ROOM:=5}" "${STORAGE_RESERVE:=5}" "${PROXMOX_NODE:=}" "${VM_OS:=${VM_TEMPLATE:-}}"
  ACTION='make a checkpoint of' power_checkpoints=true
  boot_read_inputs
}

validate_environment() {
  vm_read_inputs
  fence_read_inputs
  if [[ -z ${VM_TEMPLATE} ]]; then
    result_fail invalid 'VM_TEMPLATE is empty' 'VM_TEMPLATE must be the name or the ID of the template that the VM was made of'
  fi
  validate_template "${VM_TEMPLATE}"
  validate_number CHECKPOINT_ROOM "${CHECKPOINT_ROOM}" 0 1000000 GB
  validate_reserve "${STORAGE_RESERVE}"
  validate_pattern VM_OS "${VM_OS}" '[A-Za-z0-9][A-Za-z0-9._-]*' 'a name of a system'
  boot_validate_inputs
  validate_node "${PROXMOX_NODE}"
  validate_tools qm pvesh pvesm pveversion kvm perl timeout flock stat dd df sync
  probe_cluster "${PROXMOX_NODE}"
  probe_require
  probe_vms
  probe_template "${VM_TEMPLATE}"
  probe_require
  template_id=${probe_template_id}
  restore_read_generation
  generation=${restore_generation}
  if [[ -z ${generation} ]]; then
    result_fail config "template '${VM_TEMPLATE}' has neither a UUID nor a date by which its next build would be told from it" \
      "give it one: qm set ${template_id} --smbios1 uuid=UUID"
  fi
}

# --- look_at_vm: whose it is, how far it is, and whether there is room ---

look_at_vm() {
  local -r ctime=${restore_ctime}
  checkpoint_locate "${vm_id}"
  power_hold VM "${vm_id}"
  power_require_proof
  find_stage
  if [[ ${stage} == template ]]; then
    return 0
  fi
  restore_read_generation
  if [[ -n ${ctime} && -n ${restore_ctime} && ${restore_ctime} != "${ctime}" ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' was not made of template '${VM_TEMPLATE}' as it is now" 'make a VM of it, and a checkpoint of that'
  fi
  require_shape
  if [[ ${stage} != kept ]]; then # a kept memory takes its room already
    checkpoint_require_room
  fi
  if [[ ${stage} == running ]]; then
    probe_room "${vm_config[memory]}"
  fi
}

find_stage() {
  checkpoint_load "${vm_id}"
  if [[ ${vm_config[template]:-0} == 1 ]]; then
    changed=yes
    checkpoint_require_whole
    changed=no
    stage=template
    return 0
  fi
  vm_expect_status "${vm_id}" running
  suspend_find_half
  if [[ ${suspend_half} == yes ]]; then
    changed=yes
  fi
  power_clear_half
  if [[ ${vm_status} == running ]]; then
    stage=running
  elif [[ ${vm_suspended} == yes ]]; then
    changed=yes
    stage=saved
  elif [[ ${checkpoint_found} == yes && ${checkpoint[JOB]:-} == "${vm_job}" && -e ${checkpoint_state} ]]; then
    changed=yes
    stage=kept
  else
    result_fail vm "VM ${vm_id} on node '${probe_node}' does not run (status: ${vm_status}): it has no memory to save" 'make a VM of the template anew'
  fi
}

require_shape() {
  vm_find_uncopyable
  if [[ -n ${vm_uncopyable} ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has ${vm_uncopyable}, which no copy of it can have" 'take it out of the template, or have VMs of it boot'
  fi
  volume_find_foreign "${vm_id}"
  if [[ -n ${volume_foreign} ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has volumes (${volume_foreign}), which no copy of it can have" 'take them off: linus volume detach'
  elif [[ -n ${vm_config[parent]:-} ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has snapshots" 'make a VM of the template anew'
  elif [[ ! ${vm_config[memory]:-} =~ ^[0-9]{1,9}$ ]]; then
    result_fail config "VM ${vm_id} on node '${probe_node}' has memory '${vm_config[memory]:-}'" 'make it by create-vm.sh'
  elif ((${#checkpoint_state} > 128)); then
    result_fail config "Proxmox takes a path of at most 128 characters, and ${checkpoint_state} is longer" 'set LINUS_HOST_DIR to a shorter one'
  fi
}

# --- clean_vm ---

clean_vm() {
  local user
  if [[ ${stage} != running ]]; then
    log_info 'not needed: its memory is saved'
    return 0
  fi
  guest_agent=no
  guest_ask_ready "${vm_id}"
  if [[ ${guest_cloud_init} != @(done|none) ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is not ready (cloud-init: ${guest_cloud_init}): ${run_said} ${guest_out}" 'make the checkpoint when create-vm.sh has said that it is'
  fi
  await_settled
  user=${VM_SSH_USER:-${vm_config[ciuser]:-root}}
  changed=yes
  link_down
  power_require_proof
  ask_clean "${user}"
  if [[ ${guest_exit} != 0 || ${guest_out} != *'linus-clean done'* ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' could not be cleaned (exit ${guest_exit:-unknown}): ${guest_out:-${run_said}}" 'make a VM of the template anew; its agent must run commands as root'
  fi
}

# Waits until the boot has ended. Otherwise each copy would continue in the middle of it, and until
# systemd-machine-id-commit has run, a first boot's machine ID is not on the disk.
await_settled() {
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "${vm_id}" 300 sh -c 'n=0
    while :; do
      state=$(systemctl is-system-running 2>/dev/null)
      case $state in initializing | starting) ;; *) exit 0 ;; esac
      n=$((n + 1))
      [ "$n" -lt 280 ] || break
      sleep 1
    done
    echo "systemctl is-system-running says $state, and waits for" $(systemctl list-jobs --plain --no-legend 2>/dev/null | cut -c 1-80 | head -n 3)
    exit 75'
  if [[ ${guest_exit} != 0 ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has not ended its boot (exit ${guest_exit:-unknown}): ${guest_out:0:400} ${run_said}" \
      'see what its boot waits for (systemctl list-jobs in a VM of the template), or mask that in the template'
  fi
}

# A job runner that was sent goes where templates built by linus have one: each job compares its
# checksum. Timers stop, so that the leap of the clock at a restore does not set them all off at
# once; the restored VM starts them again (lib/identity.sh).
ask_clean() { # <user>
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "${vm_id}" 120 sh -c 'entry=$(getent passwd "$1") || { echo "it has no user $1"; exit 1; }
    home=${entry%:*} home=${home##*:}
    [ ! -f /opt/job-runner/runner ] || install -D -m 0644 /opt/job-runner/runner /opt/linus/job-runner.sh || true
    rm -rf "$home/.ssh/authorized_keys" /root/.ssh/authorized_keys /opt/job-runner /var/lib/linus /run/linus
    rm -f "$home"/.*_history /root/.*_history /home/*/.*_history
    timers=$(systemctl list-units --type=timer --state=active --plain --no-legend 2>/dev/null | cut -d" " -f1 | tr "\n" " ")
    [ -z "$timers" ] || { echo "$timers" >/run/linus-timers && systemctl stop $timers; } || exit 1
    sync
    echo 3 2>/dev/null >/proc/sys/vm/drop_caches
    for file in "$home/.ssh/authorized_keys" /root/.ssh/authorized_keys /opt/job-runner /var/lib/linus; do
      [ ! -e "$file" ] || { echo "$file is still there"; exit 1; }
    done
    echo linus-clean done' sh "$1"
}

# Takes the link down, and with it the address, in what is saved: nothing of the saved guest reaches
# the network when it continues.
link_down() {
  local -r card=${vm_config[net0]:-}
  if [[ -z ${card} ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no network card net0" 'make it of a template that has one'
  fi
  local retry_clear=power_require_proof
  retry_change link_is_down 120 qm set "${vm_id}" --net0 "${card/,link_down=1/},link_down=1"
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "the link of VM ${vm_id} on node '${probe_node}' could not be taken down: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
  fi
}

link_is_down() {
  vm_read "${vm_id}"
  if [[ ,${vm_config[net0]:-}, == *,link_down=1,* ]]; then
    retry_landed=yes
  fi
}

# --- save_vm, copy_state ---

save_vm() {
  if [[ ${stage} == running ]]; then
    power_require_proof
    power_suspend
    stage=saved
  fi
}

copy_state() {
  if [[ ${stage} == saved ]]; then
    power_require_proof
    checkpoint_keep "${template_id}" "${generation}"
    stage=kept
  fi
}

# --- make_template ---

# The mark comes before the conversion, as for a template. The key and the address are removed: no
# copy has them, and an address from a pool is free again.
make_template() {
  local retry_clear=power_require_proof
  if [[ ${stage} != kept ]]; then
    return 0
  fi
  power_require_proof
  if [[ -n ${vm_config[lock]:-} ]]; then
    run_change 60 qm unlock "${vm_id}"
    power_require_proof
  fi
  vm_egress='' vm_marker
  retry_change mark_has_landed 300 qm set "${vm_id}" --delete vmstate,sshkeys --ipconfig0 ip=dhcp --description "${vm_description} linus-checkpoint=${template_id}"
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "could not mark VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
  fi
  convert_template
  whole=yes
  lease_drop "${vm_id}" "${vm_job}"
  egress_clear "${vm_id}"
}

mark_has_landed() {
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && ${vm_words} == *" linus-checkpoint=${template_id} "* && -z ${vm_config[vmstate]:-}${vm_config[lock]:-}${vm_config[sshkeys]:-} &&
    ${vm_config[ipconfig0]:-} == ip=dhcp ]]; then
    retry_landed=yes
  fi
}

# --- output_result ---

output_result() {
  local key
  whole=yes
  result_line CHECKPOINT_ID "${vm_id}"
  for key in TEMPLATE GENERATION MACHINE CPU BYTES; do
    result_line "CHECKPOINT_${key}" "${checkpoint[${key}]}"
  done
  result_line CHECKPOINT_HOST "${checkpoint[QEMU]}, ${checkpoint[CPU_MODEL]}"
  result_line RESULT SUCCESS
}

print_plan() {
  if [[ ${stage} == running ]]; then
    result_text PLAN "qm set ${vm_id} --net0 ${vm_config[net0]:-},link_down=1"
    result_text PLAN 'in the VM, through its agent: remove authorized keys, job directories, histories'
    result_text PLAN "qm suspend ${vm_id} --todisk 1"
  fi
  if [[ ${stage} == @(running|saved) ]]; then
    result_text PLAN "copy its memory to ${checkpoint_state}"
    result_text PLAN "qm unlock ${vm_id}"
  fi
  if [[ ${stage} != template ]]; then
    result_text PLAN "qm set ${vm_id} --delete vmstate,sshkeys --ipconfig0 ip=dhcp, marked linus-checkpoint=${template_id}"
    result_text PLAN "qm template ${vm_id}"
  fi
  result_line RESULT SUCCESS
}

# Half a checkpoint is neither a VM nor a checkpoint: it is destroyed if it proves to be linus's.
rollback() {
  power_let_go
  if [[ ${whole} == yes || ${changed} == no || ${dry_run} == yes ]]; then
    return 0
  fi
  vm_undo "${vm_id}" "${probe_node}"
  result_line VM_OUTCOME "${vm_outcome}" 2>/dev/null # nobody may be listening
}

main() {
  script_begin 7 rollback
  tools_start
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step look_at_vm 'looking at the VM'
  if [[ ${dry_run} == yes ]]; then
    print_plan
    return 0
  fi
  result_run_step clean_vm 'removing what its copies must not share'
  result_run_step save_vm 'saving its memory'
  result_run_step copy_state 'keeping its memory'
  result_run_step make_template 'turning it into a checkpoint'
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
