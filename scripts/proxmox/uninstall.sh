#!/usr/bin/env bash
# Removes what linus keeps on this Proxmox VE node besides VMs and templates: its timer, tool
# server, network rules, directories and fences. VMs and templates are Proxmox's, and stay.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all optional:
#   LEAVE_VMS false    true: uninstall even if VMs of linus are on this node; they stay there
#                      without lease, reserved address and network rules
#   LINUS_SCRIPT_DIR /var/lib/linus/scripts    where the scripts are
#   IMAGE_DIR /var/lib/vz/template/linus       where downloaded images are
#   LINUS_NONCE        delimits the output
# Options: --dry-run (check, list what would be removed, change nothing), --help
#
# It can be run twice. One line on stdout for each thing:
#   LINUS_REMOVED:<what>     with --dry-run LINUS_PLAN:<what>
#   LINUS_STAYS:<what>       a VM, checkpoint, volume or template that stays
#   LINUS_VM_NODE:<node>     this node
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 the configs of its VMs
# cannot be read, 5 refused (VMs of linus, or work under way) or failed,
# 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/vm.sh"

usage() {
  printf '%s\n' \
    'usage: [LEAVE_VMS=true] uninstall.sh [--dry-run | --help]' \
    'Removes what linus keeps on this node beside VMs and templates.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${LEAVE_VMS:=false}" "${LINUS_SCRIPT_DIR:=/var/lib/linus/scripts}" "${IMAGE_DIR:=/var/lib/vz/template/linus}"
}

validate_environment() {
  validate_pattern LEAVE_VMS "${LEAVE_VMS}" 'true|false' 'true or false'
  validate_pattern LINUS_SCRIPT_DIR "${LINUS_SCRIPT_DIR}" '/.*' 'an absolute path'
  validate_pattern IMAGE_DIR "${IMAGE_DIR}" '/.*' 'an absolute path'
  validate_tools perl timeout find systemctl
  result_line VM_NODE "${HOSTNAME%%.*}"
  require_no_vms
  require_no_work
}

# VMs of any installation count: all of them share what is kept on a node.
require_no_vms() {
  local file id vms=''
  local -r dir=${LINUS_PVE_DIR:-/etc/pve}/qemu-server/
  run_read 60 run_alone grep -RlF --include='*.conf' -e linus-job= -- "${dir}"
  if ((run_rc > 1)); then
    result_fail config "the configs of the VMs of ${HOSTNAME} could not be read: ${run_said}" 'run this on a Proxmox VE host, as root; look at: systemctl status pve-cluster'
  fi
  run_lines read
  for file in "${run_lines[@]}"; do
    id=${file##*/}
    id=${id%.conf}
    vm_read "${id}"
    if [[ ${vm_state} == unknown ]]; then
      result_fail config "whether VM ${id} of ${HOSTNAME} is one of linus could not be read: ${run_said}" "look at: qm config ${id}; systemctl status pve-cluster"
    elif [[ ${vm_state} != present || ${vm_words} != *' linus-job='* || -n ${vm_copy_of} ]]; then
      continue
    elif [[ ${vm_words} == *' linus-checkpoint='* && ${vm_config[template]:-0} != 0 ]]; then
      result_text STAYS "checkpoint ${id} (${vm_config[name]:-})"
      vms+="${vms:+, }checkpoint ${id} (${vm_config[name]:-})"
    elif [[ ${vm_words} == *' linus-volume='* ]]; then
      result_text STAYS "volume ${id} (${vm_config[name]:-})"
      vms+="${vms:+, }volume ${id} (${vm_config[name]:-})"
    elif [[ ${vm_config[template]:-0} != 0 ]]; then
      result_text STAYS "template ${id} (${vm_config[name]:-})"
    else
      result_text STAYS "VM ${id} (${vm_config[name]:-})"
      vms+="${vms:+, }${id} (${vm_config[name]:-})"
    fi
  done
  if [[ -n ${vms} && ${LEAVE_VMS} == false ]]; then
    result_fail vm "${HOSTNAME} has VMs of linus: ${vms}" 'destroy them first; or have them left there, without leases and network rules: LEAVE_VMS=true'
  fi
}

require_no_work() { # tool_servers: the units of those that run
  local line work=''
  tool_servers=()
  run_read 30 systemctl list-units --plain --no-legend --state=active 'linus-*.service'
  if ((run_rc != 0)); then
    result_fail vm "whether work of linus is under way on ${HOSTNAME} could not be read: ${run_said}" 'look at: systemctl status'
  fi
  run_lines read
  for line in "${run_lines[@]}"; do
    line=${line%% *}
    if [[ ${line} == linus-tool-server-* ]]; then
      tool_servers+=("${line}")
    elif [[ ${line} =~ ^linus-[a-z]+- ]]; then
      work+="${work:+, }${line}"
    fi
  done
  if [[ -n ${work} ]]; then
    result_fail vm "work of linus is under way on ${HOSTNAME}: ${work}" 'wait until it has ended; engines that work with this host are to be stopped first'
  fi
}

tell() { # <what>
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "$1"
  else
    result_text REMOVED "$1"
  fi
}

remove_timer() {
  local -r dir=${LINUS_UNIT_DIR:-/etc/systemd/system}
  run_read 30 systemctl is-active linus-sweep.timer
  if [[ ! -e ${dir}/linus-sweep.timer && ! -e ${dir}/linus-sweep.service && ${run_out} != active ]]; then
    return 0
  fi
  tell "linus-sweep.timer and linus-sweep.service, in ${dir}"
  if [[ ${dry_run} == no ]]; then
    run_change 60 systemctl stop linus-sweep.timer linus-sweep.service
    run_change 60 systemctl disable --quiet linus-sweep.timer linus-sweep.service
    rm -f -- "${dir}"/linus-sweep.{timer,service}
    run_change 60 systemctl daemon-reload
    run_read 30 systemctl is-active linus-sweep.timer
    if [[ ${run_out} == active || -e ${dir}/linus-sweep.timer ]]; then
      result_fail vm "linus-sweep.timer could not be removed on ${HOSTNAME}: ${run_said}" 'look at: systemctl status linus-sweep.timer'
    fi
  fi
}

remove_tool_servers() {
  local unit
  for unit in "${tool_servers[@]}"; do
    tell "${unit}: Proxmox's tools, loaded once"
    if [[ ${dry_run} == no ]]; then
      run_change 60 systemctl stop "${unit}"
    fi
  done
}

remove_rules() {
  if ! command -v nft >/dev/null; then
    return 0
  fi
  run_read 20 nft list table bridge linus
  if ((run_rc != 0)); then
    return 0
  fi
  tell 'the table "bridge linus" of nftables: the network rules of its VMs'
  if [[ ${dry_run} == no ]]; then
    printf '%s\n' 'table bridge linus' 'delete table bridge linus' >"${run_dir}/rules"
    run_change 60 nft -f "${run_dir}/rules"
    if ((run_rc != 0)); then
      result_fail vm "the network rules on ${HOSTNAME} could not be removed: ${run_said}" 'look at: nft list table bridge linus'
    fi
  fi
}

# The directories of scripts and images may hold other files, too: only the files with names of
# linus are removed.
remove_files() {
  local dir=${LINUS_PVE_DIR:-/etc/pve}/priv/linus
  remove_named "${LINUS_SCRIPT_DIR}" 'scripts of linus' '.*/[a-z-]+-[0-9a-f]{12}\.(sh|pl)'
  remove_whole "${LINUS_SCRIPT_DIR}/operations" 'operations'
  remove_named "${IMAGE_DIR}" 'downloaded images' '.*/(ubuntu-[0-9.]+|debian-[0-9]+|almalinux-9|rocky-9|custom-[0-9a-f]+)\.(qcow2|raw|lock|part)'
  remove_named "${dir}" 'fences against engines, for all nodes of the cluster' '.*/fence-[0-9a-f-]{36}'
  remove_whole "${LINUS_HOST_DIR:-/var/lib/linus}" 'leases, reserved addresses, memory of checkpoints and notes'
  remove_whole "${LINUS_LOCK_DIR:-/run/linus}" 'locks'
}

remove_whole() { # <directory> <what is in it>
  if [[ ! -d $1 || -L $1 || ! -O $1 ]]; then
    return 0
  fi
  tell "$1: $2"
  if [[ ${dry_run} == no ]]; then
    run_change 120 rm -rf -- "$1"
    require_gone "$1"
  fi
}

remove_named() { # <directory> <what> <their paths, an extended regular expression>
  if [[ ! -d $1 || -L $1 || ! -O $1 ]]; then
    return 0
  fi
  run_read 60 find "$1" -maxdepth 1 -type f -regextype posix-extended -regex "$3"
  if [[ -z ${run_out} ]]; then
    return 0
  fi
  tell "$1: $2"
  if [[ ${dry_run} == no ]]; then
    run_change 120 find "$1" -maxdepth 1 -type f -regextype posix-extended -regex "$3" -delete
    rmdir --ignore-fail-on-non-empty -- "$1" 2>/dev/null || :
    run_read 60 find "$1" -maxdepth 1 -type f -regextype posix-extended -regex "$3"
    if [[ -n ${run_out} ]]; then
      require_gone "${run_out%%$'\n'*}"
    fi
  fi
}

require_gone() { # <path>
  if [[ -e $1 ]]; then
    result_fail vm "could not remove $1 on ${HOSTNAME}: ${run_said:-it is there again}" 'stop the engines that work with this host, and run it again'
  fi
}

remove_all() {
  remove_timer
  remove_tool_servers
  remove_rules
  remove_files
}

main() {
  script_begin 2
  read_inputs "$@"
  result_run_step validate_environment 'looking for VMs and work of linus'
  result_run_step remove_all 'removing what linus keeps here'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
