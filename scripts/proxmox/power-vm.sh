#!/usr/bin/env bash
# Starts, stops, suspends, resumes, snapshots, reverts or forks one VM of linus on the Proxmox
# VE node this runs on, changes where its packets may go, or renames a template of linus. It
# touches nothing unless the VM's config, read in the same locked step, proves that it is the
# VM meant.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   ACTION                    start     and wait until it is usable
#                             stop      at once, like cutting its power
#                             shutdown  by asking the guest; at once if it does not shut down
#                             suspend   to disk: its memory goes to its storage, which needs
#                                       room for twice the memory's size and 500 MB
#                             resume    where it was suspended, and set its clock; start does
#                                       the same for a suspended VM
#                             snapshot  of its disks, whether it runs or not
#                             revert    to a snapshot, losing later changes; then start
#                             delete-snapshot  for good; the VM stays as it is
#                             fork      prepare for copies by create-vm.sh (VM_FORK): if its
#                                       storage can clone it, take a snapshot linus-fork with
#                                       memory, else do nothing
#                             unfork    remove that snapshot, if there is one
#                             network   from now on it reaches what VM_EGRESS says
#                             rename    a template: to NEW_NAME, which no other VM of the
#                                       cluster may have
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
# and optionally:
#   SNAPSHOT                  the snapshot's name: required for snapshot, revert and
#                             delete-snapshot
#   NEW_NAME                  required for rename
#   VM_EGRESS lan             for network: lan, internet, none or allow (lib/egress.sh)
#   VM_EGRESS_RANGES          for network, as for create-vm.sh
#   SNAPSHOT_MEMORY false     true: the snapshot also has what runs in the VM, and after a
#                             revert to it the VM continues from there
#   SNAPSHOT_MAX 10           snapshots that a VM may have; 0: any number
#   STORAGE_RESERVE 5         GB that stay free on the VM's storages: a snapshot with memory
#                             that would leave less is refused
#   PROXMOX_NODE              default: this host's own
#   VM_SSH_USER               default: the VM's
#   VM_SSH_PORT 22
#   VM_NETWORK_TIMEOUT 300, VM_READY_TIMEOUT 600, VM_SHUTDOWN_TIMEOUT 60 (seconds)
#   VM_ROUTED false     true: this node reaches VMs through a router; accept addresses that
#                       guests report, although this node cannot see their cards
#   VM_TRUST_FIRST_USE false   true: accept a VM whose guest agent does not respond, by the
#                       neighbour table and without a host key to pin
#   LINUS_ENGINE              the engine that asks, if there are several (lib/fence.sh)
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check the proof, print the commands, change nothing), --help
#
# Each action can be run twice: a VM already in the wanted state is a success. Only the name
# of a snapshot cannot be used again. The log is on stderr, the result on stdout in LINUS_
# lines (lib/result.sh): LINUS_VM_ID, LINUS_VM_NAME (after rename the new one) and
# LINUS_VM_NODE; after start, resume and revert the address, user and host key, too, like
# create-vm's; in a failure LINUS_VM_OUTCOME:exists if another VM has NEW_NAME, and
# LINUS_VM_OUTCOME:fenced if LINUS_ENGINE may not act any more. After fork also
# LINUS_FORK:live or LINUS_FORK:disk, LINUS_FORK_WHY, and if the VM was paused for it,
# LINUS_FORK_PAUSE in milliseconds.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration
# (also a storage without snapshots), 4 node offline, 5 refused or failed, 6
# network or SSH timeout, 129/130/141/143 signal. The VM is never destroyed.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/fork-point.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"

usage() {
  printf '%s\n' \
    'usage: ACTION=start|stop|shutdown|suspend|resume|snapshot|revert|delete-snapshot|fork|unfork|network|rename VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=...' \
    '       [SNAPSHOT=... [SNAPSHOT_MEMORY=true]] [VM_EGRESS=...] [NEW_NAME=...] power-vm.sh [--dry-run | --help]' \
    'Does that to the VM when its description proves that it is the one; list-vms.sh shows' \
    'the values. Inputs and exit codes are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${ACTION:=}" "${NEW_NAME:=}" "${VM_EGRESS:=lan}" "${VM_EGRESS_RANGES:=}" "${SNAPSHOT:=}" "${SNAPSHOT_MEMORY:=false}" "${SNAPSHOT_MAX:=10}" "${STORAGE_RESERVE:=5}" "${PROXMOX_NODE:=}" "${VM_SHUTDOWN_TIMEOUT:=60}"
  boot_read_inputs
}

validate_environment() {
  validate_pattern ACTION "${ACTION}" 'start|stop|shutdown|suspend|resume|snapshot|revert|delete-snapshot|fork|unfork|network|rename' \
    'start, stop, shutdown, suspend, resume, snapshot, revert, delete-snapshot, fork, unfork, network or rename'
  vm_read_inputs
  fence_read_inputs
  if [[ ${ACTION} == @(snapshot|revert|delete-snapshot) ]]; then
    validate_pattern SNAPSHOT "${SNAPSHOT}" '[A-Za-z][A-Za-z0-9_-]{1,39}' 'a name of 2 to 40 of A-Z a-z 0-9 _ -, beginning with a letter'
    if [[ ${SNAPSHOT} == current || ${SNAPSHOT} == pending ]]; then
      result_fail invalid "SNAPSHOT=${SNAPSHOT} is a name of Proxmox's own" 'choose another name'
    fi
  fi
  if [[ ${ACTION} == @(fork|unfork) ]]; then
    SNAPSHOT=${fork_snapshot} SNAPSHOT_MAX=0 # the maximum is for those that somebody has asked for
  fi
  if [[ ${ACTION} == rename ]]; then
    validate_name NEW_NAME "${NEW_NAME}"
    vm_kind=template
  fi
  validate_pattern SNAPSHOT_MEMORY "${SNAPSHOT_MEMORY}" 'true|false' 'true or false'
  validate_number SNAPSHOT_MAX "${SNAPSHOT_MAX}" 0 1000
  validate_reserve "${STORAGE_RESERVE}"
  boot_validate_inputs
  validate_number VM_SHUTDOWN_TIMEOUT "${VM_SHUTDOWN_TIMEOUT}" 1 3600 seconds
  validate_node "${PROXMOX_NODE}"
  if [[ ${ACTION} == network ]]; then
    egress_validate
  fi
  validate_tools qm pvesh perl timeout flock ip
  probe_cluster "${PROXMOX_NODE}"
  probe_require
}

# --- power_vm: proof and change in one locked step ---

power_vm() {
  power_hold VM "${vm_id}"
  power_require_proof
  local retry_clear=power_require_proof # by the next try, the ID may be another VM's
  require_no_volumes
  local expected=running
  if [[ ${ACTION} == start || ${ACTION} == resume ]]; then
    expected=stopped
  fi
  vm_expect_status "${vm_id}" "${expected}"
  power_clear_half
  require_no_suspend
  require_no_half_revert
  plan_lock
  case ${ACTION} in
    snapshot) snapshot_take ;;
    revert) snapshot_revert ;;
    delete-snapshot) snapshot_delete ;;
    fork) fork_take ;;
    unfork) fork_remove ;;
    *) "power_${ACTION}" ;;
  esac
  power_let_go
}

# --- rename_template ---

rename_template() {
  local line id name
  power_hold template "${vm_id}"
  vm_read "${vm_id}"
  if [[ ${vm_config[name]:-} == "${NEW_NAME}" ]]; then # an earlier run has done it
    vm_name=${NEW_NAME}
  fi
  power_require_proof
  probe_vms
  for line in "${cluster_vms[@]}"; do
    read -r id _ _ _ name <<<"${line}"
    if [[ ${name} == "${NEW_NAME}" && ${id} != "${vm_id}" ]]; then
      result_line VM_OUTCOME exists
      result_fail vm "VM already exists: '${NEW_NAME}' is VM ${id}" 'choose another name, or destroy that VM first'
    fi
  done
  if [[ ${vm_name} != "${NEW_NAME}" ]]; then
    local retry_clear=power_require_proof
    power_change name_has_landed 120 qm set "${vm_id}" --name "${NEW_NAME}"
    if [[ ${retry_landed} != yes ]]; then
      retry_fail "template ${vm_id} on node '${probe_node}' could not be renamed: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
    fi
  fi
  power_let_go
}

name_has_landed() {
  local -r vm_name=${NEW_NAME}
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} ]]; then
    retry_landed=yes
  fi
}

# A snapshot would have volumes in it, to which others continue to write. A suspended VM keeps its
# volumes to itself.
require_no_volumes() {
  volume_find_foreign "${vm_id}"
  if [[ -n ${volume_foreign} && ${ACTION} =~ ^(snapshot|revert|fork)$ ]]; then
    result_fail vm "refused to ${ACTION} VM ${vm_id} on node '${probe_node}': it has volumes (${volume_foreign})" 'take them off first: linus volume detach'
  elif [[ ${ACTION} == revert ]]; then
    vm_read "${vm_id}" '' "${SNAPSHOT}"
    volume_find_foreign "${vm_id}"
    power_require_proof
    if [[ -n ${volume_foreign} ]]; then # somebody has taken that snapshot by hand
      result_fail vm "refused to revert VM ${vm_id} on node '${probe_node}': its snapshot ${SNAPSHOT} has volumes in it (${volume_foreign}), and others may have written to them since" \
        'remove that snapshot: linus vm remove-snapshot'
    fi
  fi
}

# A suspended VM can only be resumed or destroyed.
require_no_suspend() {
  if [[ ${vm_suspended} == yes && ${ACTION} =~ ^(stop|shutdown|snapshot|revert|delete-snapshot|fork|unfork|network)$ ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is suspended: its memory is on the disk, and nothing was done to it" 'resume it first'
  fi
}

# An unfinished revert has put back some disks, or none. Without its lock the VM would pass for a
# whole one, with snapshots to go back to.
require_no_half_revert() {
  if [[ ${vm_config[lock]:-} == rollback && ${ACTION} =~ ^(snapshot|delete-snapshot|fork|unfork)$ ]]; then
    result_fail vm "refused to ${ACTION} VM ${vm_id} on node '${probe_node}': a revert of it has not come to its end, and its disks may be of two times; nothing was done to it" \
      "wait for that to end where it is at work; else revert it again, to any of its snapshots"
  fi
}

# Shows in a dry run what a real run would come to if other work has locked the config. A real run
# breaks locks that a killed snapshot has left (snapshot_clear_killed).
plan_lock() {
  local -r lock=${vm_config[lock]:-}
  if [[ ${dry_run} == no || -z ${lock} || ${vm_suspended} == yes ]]; then
    return 0
  elif [[ ${ACTION} != @(snapshot|revert|delete-snapshot|fork|unfork) || ! ${lock} =~ ^(snapshot|snapshot-delete|rollback)$ ]]; then
    result_fail vm "could not ${ACTION} VM ${vm_id} on node '${probe_node}' now: VM is locked (${lock})" 'wait for the work that holds the lock to end, then try again'
  fi
  result_text PLAN "qm unlock ${vm_id}"
}

# --- open_limited ---

open_limited() {
  if [[ ${power_sees} == yes ]]; then
    wait_for_network
  fi
}

# --- output_result ---

output_result() {
  result_line VM_ID "${vm_id}"
  result_line VM_NAME "${NEW_NAME:-${vm_name}}"
  result_line VM_NODE "${probe_node}"
  if [[ -n ${vm_ip} ]]; then
    result_line VM_IP "${vm_ip}"
    result_line VM_USER "${VM_SSH_USER:-${vm_config[ciuser]:-root}}"
    if [[ -n ${vm_host_key} ]]; then
      result_line VM_HOST_KEY "${vm_host_key}"
    fi
  fi
  if [[ ${ACTION} == fork ]]; then
    result_line FORK "${fork_way}"
    result_text FORK_WHY "${fork_why}"
    if [[ -n ${fork_pause} ]]; then
      result_line FORK_PAUSE "${fork_pause}"
    fi
  fi
  result_line RESULT SUCCESS
}

# Nothing is undone, because this run has not made the VM.
finish() {
  power_let_go
  : "${result_remedy:=look at: qm status ${vm_id}; then run it again}"
}

main() {
  local waits=no steps=3 work=power_vm
  if [[ ${ACTION:-} =~ ^(start|resume|revert)$ ]]; then
    waits=yes steps=5
  elif [[ ${ACTION:-} == network ]]; then
    steps=4
  elif [[ ${ACTION:-} == rename ]]; then
    work=rename_template
  fi
  script_begin "${steps}" finish
  tools_start
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step "${work}" "${ACTION} of the VM"
  if [[ ${vm_resumed} == yes && ${dry_run} == no ]]; then
    suspend_set_clock "${probe_node}"
    result_run_step wait_for_network 'asking for its address'
    result_run_step suspend_verify_ready 'waiting until it can be reached'
  elif [[ ${waits} == yes && ${dry_run} == no ]]; then
    result_run_step wait_for_network 'waiting for its address'
    result_run_step verify_ssh_ready 'waiting until it is ready'
  fi
  if [[ ${ACTION} == network ]]; then
    result_run_step open_limited 'letting its packets go where they may'
  fi
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
