#!/usr/bin/env bash
# Reports whether one VM of linus still exists on the Proxmox VE node this runs on, and whether
# it runs. It changes nothing.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
# and optionally:
#   LOOK_INSIDE               true: ask the guest of a running VM, through its agent, for its
#                             address and boot ID (default: false)
#   VM_SSH_PORT, VM_ROUTED    for LOOK_INSIDE, as for power-vm.sh
#   SHOW_EGRESS               true: show where its packets may go (default: false)
#   SHOW_SNAPSHOTS            true: list its snapshots (default: false)
#   LINUS_NONCE               delimits the output
# Options: --help
#
# It prints one of these on stdout, or fails:
#   LINUS_VM_STATUS:<running|stopped|paused|...>   Proxmox's status of the VM meant
#   LINUS_VM_STATUS:suspended  it is off, with its memory on the disk
#   LINUS_VM_STATUS:gone       there is no VM with that ID in the cluster
#   LINUS_VM_STATUS:foreign    another VM has that ID: the one meant is gone
#   LINUS_VM_STATUS:left_alone it has the name, job or owner, but the proof that it is the VM
#                              meant is incomplete
#   LINUS_VM_STATUS:moved      it, or a VM that may be it, is on another node:
#   LINUS_VM_MOVED:<node>      that node
# A LINUS_WARNING says why it is foreign, left alone or moved. With LOOK_INSIDE, if the guest
# of a running VM reports them:
#   LINUS_VM_IP                its address, if its card has that address
#   LINUS_VM_BOOT_ID           the kernel's ID of its boot
# With SHOW_EGRESS, for a VM that exists:
#   LINUS_EGRESS:<mode>        as its description says: lan, internet, none or allow
#   LINUS_RULE:<rule>          what the kernel has for it, see lib/egress.sh; none for lan
#   LINUS_NO_RULES:<why>       the mode is not lan, and its rules could not be read
# With SHOW_SNAPSHOTS, for a VM that exists:
#   LINUS_SNAPSHOT:<words>     one line each, see lib/snapshots.sh
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 5 status unknown,
# 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/boot.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/left.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/snapshots.sh"

usage() {
  printf '%s\n' \
    'usage: VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=... [LOOK_INSIDE=true] [SHOW_EGRESS=true] [SHOW_SNAPSHOTS=true] show-vm.sh [--help]' \
    'Tells whether that VM still exists and runs; list-vms.sh shows the values.' >&2
}

validate_environment() {
  : "${LOOK_INSIDE:=false}" "${SHOW_EGRESS:=false}" "${SHOW_SNAPSHOTS:=false}"
  boot_read_inputs
  boot_validate_inputs
  vm_read_inputs
  validate_pattern LOOK_INSIDE "${LOOK_INSIDE}" 'true|false' 'true or false'
  validate_pattern SHOW_EGRESS "${SHOW_EGRESS}" 'true|false' 'true or false'
  validate_pattern SHOW_SNAPSHOTS "${SHOW_SNAPSHOTS}" 'true|false' 'true or false'
  validate_tools qm perl timeout
}

# The status is read after the proof, so what was proven runs, or ran, under that ID. If the VM goes
# in between, it is asked for once more.
show_vm() {
  local round
  for round in 1 2; do
    vm_read "${vm_id}"
    if [[ ${vm_words} == *' linus-volume='* ]]; then
      vm_kind=volume # it is proven as that
    fi
    vm_prove
    if [[ ${vm_state} == absent ]]; then
      result_line VM_STATUS gone
      return 0
    elif [[ ${vm_state} == moved ]]; then
      show_doubtful moved
      return 0
    elif [[ ${vm_state} == unknown ]]; then
      fail_unknown "${run_said}"
    fi
    # What an unfinished destroy has left is the VM meant, too.
    lease_match "${vm_id}"
    if [[ -n ${vm_doubt} && ${lease_matches} == no ]]; then
      show_doubtful left_alone
      return 0
    fi
    vm_read_status "${vm_id}"
    if [[ ${vm_status} != unknown ]]; then
      vm_find_suspended "${vm_status}"
      if [[ ${vm_suspended} == yes ]]; then
        vm_status=suspended
      fi
      result_line VM_STATUS "${vm_status}"
      if [[ ${LOOK_INSIDE} == true && ${vm_status} == running ]]; then
        look_inside
      fi
      if [[ ${SHOW_EGRESS} == true ]]; then
        show_egress
      fi
      # What an unfinished destroy has left has no proof of its own, and nothing to go back to.
      if [[ ${SHOW_SNAPSHOTS} == true && -z ${vm_doubt} ]]; then
        snapshots_show
      fi
      return 0
    fi
    log_info "round ${round}: no status: ${run_said}"
  done
  fail_unknown "${run_said}"
}

# A guest whose network has changed, or that was restarted, still has its agent.
# A guest that reports nothing is not a failure.
look_inside() {
  local -r boot='^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})[[:space:]]*$'
  guest_agent=no
  read_network
  guest_find_address "${vm_id}" "${vm_mac}"
  log_info "${guest_seen}"
  if [[ ${guest_agent} == no ]]; then
    return 0
  fi
  guest_ip=${vm_given_ip:-${guest_ip:-${guest_ipv6}}}
  guest_exec "${vm_id}" 5 cat /proc/sys/kernel/random/boot_id
  if [[ ${guest_exit} == 0 && ${guest_out} =~ ${boot} ]]; then
    result_line VM_BOOT_ID "${BASH_REMATCH[1]}"
  fi
  if [[ -z ${guest_ip} ]]; then
    return 0
  fi
  guest_read_banner "${guest_ip}" "${VM_SSH_PORT}" # the network shows only who was spoken to
  guest_check_place "${guest_ip}" "${vm_mac}"
  log_info "${guest_seen}"
  if [[ ${guest_place} == yes || (${guest_place} == @(hidden|routed) && (-n ${vm_given_ip} || ${VM_ROUTED} == true)) ]]; then
    result_line VM_IP "${guest_ip}"
  fi
}

show_egress() {
  local line mode=lan
  egress_read_word
  if [[ -n ${egress_word} ]]; then
    mode=${egress_word#*=}
    mode=${mode%%[!a-z]*}
  fi
  result_text EGRESS "${mode}"
  egress_read "${vm_id}"
  if [[ -n ${egress_reason} && ${mode} != lan ]]; then
    result_text NO_RULES "${egress_reason}"
  fi
  for line in "${run_lines[@]}"; do
    if [[ ${mode} != lan || ${line} == map* ]]; then
      result_text RULE "${line}"
    fi
  done
}

show_doubtful() { # <status, if it may be the VM meant>
  left_judge
  if [[ ${left_whose} == another ]]; then
    result_warning "VM ${vm_id} is not '${vm_name}' any more: ${vm_doubt}"
    result_line VM_STATUS foreign
  else
    result_warning "VM ${vm_id} is not proven to be '${vm_name}': ${vm_doubt}"
    result_line VM_STATUS "$1"
    if [[ $1 == moved ]]; then
      result_line VM_MOVED "${vm_moved_to}"
    fi
  fi
}

fail_unknown() { # <what was said>
  result_fail vm "Proxmox on ${HOSTNAME} does not report the status of VM ${vm_id}: $1" "look at: qm status ${vm_id}; systemctl status pve-cluster"
}

main() {
  script_begin 2
  script_read_options '' "$@"
  result_run_step validate_environment 'checking the inputs'
  result_run_step show_vm 'looking at the VM'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
