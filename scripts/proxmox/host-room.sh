#!/usr/bin/env bash
# Reports what this Proxmox VE host has left for VMs, what its templates are now, and which
# VMs are no longer proven to be linus's. It also renews leases of VMs of linus. It starts no
# tool of Proxmox: it reads files.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all optional:
#   ROOM_TEMPLATES   names or IDs of templates of this node, separated by blanks
#   ROOM_VMS         VMs whose proof to check, separated by blanks: <vmid>:<job's UUID>:<name>
#   ROOM_LEASES      leases to renew, separated by blanks:
#                    <vmid>:<job's UUID>:<seconds from now>; 0 seconds: the lease never ends.
#                    A VM without a lease gets one
#   LINUS_ENGINE     the engine that asks, if there are several: if others have taken it for
#                    dead, no lease is renewed for it (lib/fence.sh)
#   LINUS_OWNER      the installation that the VMs belong to; required with ROOM_VMS,
#                    ROOM_LEASES
#   LINUS_NONCE      delimits the output
# Options: --help
#
# On stdout:
#   LINUS_MEMORY:<MiB available> <MiB in all> <pressure>   the pressure is PSI's some
#                avg10, 0 if the kernel does not report it
#   LINUS_TEMPLATE:<name or ID as given> <vmid> <sha256>   the sum is that of its config
#                without lock; no line for what is not exactly one template
#   LINUS_DOUBT:<job> <what speaks against it>   a VM that exists and is not proven to be
#                linus's; no line for a VM that is proven, gone, or cannot be read
#   LINUS_LEASE:<job> <renewed|kept|over|gone>   kept: not renewed, because the host's leases
#                are being worked on, or because the VM has no lease and is not proven to be
#                linus's; over: the host ends the VM; gone: no node has a VM with that ID
#   LINUS_RESULT (lib/result.sh)
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 5 the memory is not known,
# 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/sweep.sh"

usage() {
  printf '%s\n' \
    'usage: [ROOM_TEMPLATES=...] [ROOM_VMS=...] [ROOM_LEASES=...] host-room.sh [--help]' \
    'Tells how much memory the host has left, what its templates are, and which VMs are not ours any more.' >&2
}

validate_environment() {
  local -r job='[1-9][0-9]{2,8}:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
  local -r vm="${job}:[a-z0-9-]{1,63}" lease="${job}:(0|[1-9][0-9]{0,8})"
  : "${ROOM_TEMPLATES:=}" "${ROOM_VMS:=}" "${ROOM_LEASES:=}"
  validate_pattern ROOM_TEMPLATES "${ROOM_TEMPLATES}" '[A-Za-z0-9. -]*' 'names or IDs of templates'
  validate_pattern ROOM_VMS "${ROOM_VMS}" "(${vm}( ${vm})*)?" 'VMID:JOB:NAME, several parted by blanks'
  validate_pattern ROOM_LEASES "${ROOM_LEASES}" "(${lease}( ${lease})*)?" 'VMID:JOB:SECONDS, several parted by blanks'
  if [[ -n ${ROOM_VMS}${ROOM_LEASES} ]]; then
    validate_uuid LINUS_OWNER "${LINUS_OWNER:-}"
  fi
  fence_read_inputs
  validate_tools perl timeout flock sha256sum
}

report_memory() {
  local key value free='' total='' pressure=0
  local -r proc=${LINUS_PROC_DIR:-/proc}
  while read -r key value _; do
    case ${key} in
      MemAvailable:) free=${value} ;;
      MemTotal:) total=${value} ;;
    esac
  done 2>/dev/null <"${proc}/meminfo" || true
  if [[ ! ${free} =~ ^[0-9]{1,15}$ || ! ${total} =~ ^[0-9]{1,15}$ ]]; then
    result_fail vm "${proc}/meminfo does not tell how much memory ${HOSTNAME} has" "look at: cat ${proc}/meminfo"
  fi
  if { read -r key value _; } 2>/dev/null <"${proc}/pressure/memory" && [[ ${key} == some && ${value} =~ ^avg10=([0-9]{1,3}(\.[0-9]{1,2})?)$ ]]; then
    pressure=${BASH_REMATCH[1]}
  fi
  result_line MEMORY "$((free / 1024)) $((total / 1024)) ${pressure}"
}

report_templates() {
  local given
  for given in ${ROOM_TEMPLATES}; do
    find_template "${given}"
    if [[ -n ${template_id} ]]; then
      result_line TEMPLATE "${given} ${template_id} ${template_sum}"
    fi
  done
}

# The config says whether a VM is a template: a VM that only has its name is not one.
find_template() { # <name or ID>; template_id: empty if it is not one template; template_sum
  local file id
  local -a candidates=()
  template_id=''
  if [[ $1 =~ ^[1-9][0-9]{2,8}$ ]]; then
    candidates=("$1")
  else
    run_read 30 run_alone grep -RlFx --include='*.conf' -e "name: $1" -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server/"
    run_lines read
    for file in "${run_lines[@]}"; do
      file=${file##*/}
      candidates+=("${file%.conf}")
    done
  fi
  for id in "${candidates[@]}"; do
    vm_read "${id}"
    if [[ ${vm_state} != present || ${vm_config[template]:-0} != 1 || ${vm_words} == *' linus-checkpoint='* || ($1 != "${id}" && ${vm_config[name]:-} != "$1") ]]; then
      continue
    elif [[ -n ${template_id} ]]; then
      template_id='' # two have the name: neither is meant
      return 0
    fi
    template_id=${id}
    vm_find_sum
    template_sum=${vm_sum}
  done
}

# A VM that has moved is looked at, too: pmxcfs shows the configs of all nodes.
report_doubts() {
  local given id
  vm_owner=${LINUS_OWNER:-}
  for given in ${ROOM_VMS}; do
    IFS=: read -r id vm_job vm_name <<<"${given}"
    vm_read "${id}"
    if [[ ${vm_state} == @(present|moved) ]]; then
      vm_state=present
      vm_prove
      if [[ -n ${vm_doubt} ]]; then
        result_text DOUBT "${vm_job} ${vm_doubt}"
      fi
    fi
  done
}

renew_leases() {
  local given id rest renewing=no
  local -r dir=${LINUS_HOST_DIR:-/var/lib/linus}/leases
  if [[ -z ${ROOM_LEASES} ]]; then
    return 0
  fi
  [[ -d ${dir} ]] || (umask 077 && mkdir -p -- "${dir}") 2>/dev/null || :
  # Not while a sweep is ending leases.
  if { exec 7>>"${dir}/.sweep"; } 2>/dev/null && flock -w 2 7; then
    fence_look
    if [[ ${fence_up} == no ]]; then
      renewing=yes
    fi
  fi
  for given in ${ROOM_LEASES}; do
    id=${given%%:*}
    rest=${given#*:}
    renew_lease "${id}" "${rest%:*}" "${rest##*:}" "${renewing}"
    result_line LEASE "${rest%:*} ${lease_renewed}"
  done
  exec 7>&-
}

renew_lease() { # <vmid> <job> <seconds> <may it be renewed: yes or no>; lease_renewed
  lease_renewed=kept
  vm_read "$1"
  if [[ ${vm_state} == absent ]]; then
    lease_renewed=gone
    return 0
  fi
  lease_load "$1" "$2"
  if [[ $4 == no ]]; then
    return 0
  elif [[ ${lease_found} != yes ]]; then
    make_lease "$1" "$2" "$3"
    return 0
  elif [[ ${lease_owner} != "${LINUS_OWNER}" || ${lease_lock} != none ]]; then
    return 0
  fi
  lease_read_end
  if [[ ${lease_over} == yes ]]; then
    lease_renewed=over
    return 0
  elif (($3 == 0)); then
    lease_drop "$1" "$2"
    lease_renewed=renewed
    return 0
  fi
  lease_boot=${lease_boot_now}
  lease_set_end "$3"
  if [[ ${lease_saved} == yes ]]; then
    lease_renewed=renewed
  fi
}

# Makes a lease for a VM that was made to stay, if it proves to be linus's under whatever name it
# has.
make_lease() { # <vmid> <job> <seconds>; the config is as vm_read has just read it
  vm_job=$2 vm_owner=${LINUS_OWNER} vm_name=${vm_config[name]:-}
  vm_prove
  if [[ -n ${vm_doubt} ]]; then
    return 0
  fi
  if (($3 > 0)); then
    run_read 10 run_alone readlink -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server"
    vm_find_storages
    lease_announce "$1" "$(basename -- "${run_out%/qemu-server}")" none "${vm_storages}" "$3"
    if [[ ${lease_saved} == no ]]; then
      return 0
    fi
  fi
  lease_renewed=renewed
}

main() {
  script_begin 5
  script_read_options '' "$@"
  result_run_step validate_environment 'checking the inputs'
  result_run_step report_memory 'reading the memory'
  result_run_step report_templates 'reading the templates'
  result_run_step report_doubts 'looking at VMs'
  result_run_step renew_leases 'renewing leases'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
