#!/usr/bin/env bash
# Tells whether VMs can be created on this Proxmox VE host, and what to do about
# each thing that is missing. Changes nothing.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all optional:
#   PROXMOX_NODE (this host's own), PROXMOX_STORAGE local-lvm,
#   PROXMOX_BRIDGE vmbr0, VM_TEMPLATE (empty: any will do)
#   LINUS_NONCE    frames the answer
# Options: --help
#
# One line per check on stdout, a warn or fail followed by what to do:
#   LINUS_CHECK:<name>:<ok|warn|fail>:<text>
#   LINUS_REMEDY:<what to do>
# Exit codes: 0 no check failed, else that of the first that did: 1 invalid
# parameter, 2 missing tool, 3 invalid configuration, 4 node offline;
# 129/130/141/143 signal.

# shellcheck source=../lib/log.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/log.sh"
# shellcheck source=../lib/result.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/result.sh"
# shellcheck source=../lib/script.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
# shellcheck source=../lib/run.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/run.sh"
# shellcheck source=../lib/json.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/json.sh"
# shellcheck source=../lib/validate.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/validate.sh"
# shellcheck source=../lib/vm.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/vm.sh"
# shellcheck source=../lib/probe.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"

first_failure='' # kind of the first check that failed
first_failure_text=''
first_failure_remedy=''

usage() {
  printf '%s\n' \
    'usage: [PROXMOX_STORAGE=...] [PROXMOX_BRIDGE=...] [VM_TEMPLATE=...] check-host.sh [--help]' \
    'Tells whether VMs can be created here. Inputs and exit codes are listed at' \
    'the top of the script.' >&2
}

read_inputs() { # <argument...>
  if (($# > 0)); then
    result_fail invalid "unknown argument ${1@Q}" 'the only option is --help; all else comes by environment'
  fi
  : "${PROXMOX_NODE:=}" "${PROXMOX_STORAGE:=local-lvm}" "${PROXMOX_BRIDGE:=vmbr0}" "${VM_TEMPLATE:=}"
  validate_node "${PROXMOX_NODE}"
  validate_storage "${PROXMOX_STORAGE}"
  validate_bridge "${PROXMOX_BRIDGE}"
  validate_template "${VM_TEMPLATE}"
}

report_probe() { # <name>: what the probe before found
  if [[ -z ${probe_kind} ]]; then
    result_text CHECK "$1:ok:${probe_text}"
  elif [[ ${probe_kind} == warn ]]; then
    result_text CHECK "$1:warn:${probe_text}"
    result_text REMEDY "${probe_remedy}"
  else
    result_text CHECK "$1:fail:${probe_text}"
    result_text REMEDY "${probe_remedy}"
    if [[ -z ${first_failure} ]]; then
      first_failure=${probe_kind}
      first_failure_text=${probe_text}
      first_failure_remedy=${probe_remedy}
    fi
  fi
}

check_tools() {
  local tool missing=''
  for tool in qm pvesh pvesm pveversion perl timeout flock ip; do
    if ! command -v "${tool}" >/dev/null; then
      missing+="${missing:+, }${tool}"
    fi
  done
  if [[ -n ${missing} ]]; then
    probe_bad dependency "not on ${HOSTNAME}: ${missing}" 'run this on a Proxmox VE host, as root, with its usual PATH'
  else
    probe_ok 'all tools are there'
  fi
  report_probe tools
}

check_version() {
  local version=''
  run_read 60 pveversion
  if [[ ${run_out} =~ ^pve-manager/([0-9]+)(\.[0-9]+)*([^/ ]*) ]]; then
    version=${run_out#pve-manager/}
    version=${version%%/*}
    result_line PVE_VERSION "${version}"
  fi
  if [[ -z ${version} ]]; then
    probe_bad config "pveversion on ${HOSTNAME} did not tell a version: ${run_said}" 'look at: pveversion -v'
  elif ((${version%%[!0-9]*} < 8)); then
    probe_bad config "Proxmox VE ${version} is too old" 'upgrade to 8.x or 9.x: --ciupgrade and more are missing before'
  elif ((${version%%[!0-9]*} > 9)); then
    probe_bad warn "Proxmox VE ${version} is newer than what this was tried with (8.x, 9.x)" 'go on, and report what does not work'
  else
    probe_ok "Proxmox VE ${version}"
  fi
  report_probe proxmox
}

check_node() { # node_ok
  probe_cluster "${PROXMOX_NODE}"
  report_probe node
  node_ok=no
  if [[ -z ${probe_kind} ]]; then
    node_ok=yes
  fi
  if [[ -n ${probe_node} ]]; then
    result_line VM_NODE "${probe_node}"
  fi
}

check_parts() {
  probe_start "${PROXMOX_STORAGE}"
  probe_storage "${PROXMOX_STORAGE}"
  report_probe storage
  probe_bridge "${PROXMOX_BRIDGE}"
  report_probe bridge
  if [[ -n ${VM_TEMPLATE} ]]; then
    probe_template "${VM_TEMPLATE}"
  else
    probe_templates
  fi
  report_probe template
}

check_kvm() {
  if [[ -r /dev/kvm && -w /dev/kvm ]]; then
    probe_ok 'KVM is there'
  else
    probe_bad warn "/dev/kvm cannot be used on ${HOSTNAME}" 'turn on virtualisation in the firmware (or nested virtualisation): VMs are slow or do not start without it'
  fi
  report_probe kvm
}

check_host() {
  result_line HOSTNAME "${HOSTNAME}"
  check_tools
  if [[ -n ${first_failure} ]]; then
    return 0
  fi
  check_version
  check_node
  if [[ ${node_ok} == yes ]]; then
    check_parts
  fi
  check_kvm
}

main() {
  if [[ ${1:-} == --help ]]; then
    usage
    return 0
  fi
  set -Eeuo pipefail
  shopt -s inherit_errexit
  script_begin 1
  read_inputs "$@"
  result_run_step check_host 'looking at the host'
  if [[ -n ${first_failure} ]]; then
    result_fail "${first_failure}" "${first_failure_text}" "${first_failure_remedy}"
  fi
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then main "$@"; fi
