# shellcheck shell=bash
# The sweep ends leases that are over, and clears up what killed runs left. Every script that
# announces a lease sources this, because the timer's program is made of it.

source "${BASH_SOURCE[0]%/*}/destroy.sh"

lease_read_end() { # lease_over: yes or no
  lease_read_clock
  lease_over=no
  if ((lease_ends_date == 0)); then
    return 0
  fi
  if [[ ${lease_boot} == "${lease_boot_now}" ]]; then
    if ((lease_uptime >= lease_ends_uptime)); then
      lease_over=yes
    fi
  elif ((lease_date >= lease_ends_date)); then
    lease_over=yes
  fi
}

# Destroys the lease's VM. A VM that is left alone keeps its lease: it is reported, and looked at
# again, until it is gone or somebody gives it up.
lease_end() { # <vmid> <job>, as lease_load has read it
  local vm_job=$2 vm_owner=${lease_owner} vm_name=${lease_name}
  log_info "the lease of VM $1 (${vm_name}) is over, or its run was killed: destroying it"
  vm_destroy "$1" "${lease_node}"
  case ${vm_outcome} in
    refused)
      local vm_kind=template
      vm_prove
      if [[ -z ${vm_doubt} ]]; then # the run that built it ended before it gave up the lease
        log_info "VM $1 is a template now, which has no lease"
        lease_drop "$1" "$2"
      else
        log_warn "VM $1 is left alone: ${vm_reason}"
        left_note "$1" "$2" "${vm_reason}"
      fi
      ;;
    failed) log_warn "VM $1 could not be destroyed yet: ${vm_reason}" ;;
    *) log_info "VM $1: ${vm_outcome}" ;;
  esac
}

# Ends what is over and clears up after runs that were killed. One sweep runs at a time, and handles
# at most two VMs, because the script has other work to do.
lease_sweep() {
  local file looks=0 i
  local -r dir=${LINUS_HOST_DIR:-/var/lib/linus}/leases
  local -r form='^([0-9]+)-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$'
  local -ra files=("${dir}"/*)
  if [[ ! -e ${files[0]} ]]; then
    return 0
  fi
  lease_arm
  for file in "${files[@]##*/}"; do
    if [[ ${file} =~ ${form} ]]; then
      lease_judge "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
      if [[ ${lease_due} == yes ]]; then
        looks=1
        break
      fi
    fi
  done
  if ((looks == 0)) || ! { exec 7>>"${dir}/.sweep"; } 2>/dev/null; then
    return 0
  fi
  looks=0
  if flock -n 7; then
    # Each sweep starts at another place, so that a VM that fails does not keep the rest waiting.
    local -r offset=$((RANDOM % ${#files[@]}))
    for ((i = 0; i < ${#files[@]} && looks < 2; i += 1)); do
      file=${files[(i + offset) % ${#files[@]}]##*/}
      if [[ ${file} =~ ${form} ]]; then
        lease_look "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        looks=$((looks + lease_looked))
      fi
    done
  fi
  exec 7>&-
}

lease_look() { # <vmid> <job>; lease_looked: 1 when Proxmox was asked
  lease_looked=0
  lease_judge "$1" "$2"
  if [[ ${lease_due} == no ]]; then
    return 0
  fi
  lease_looked=1
  if [[ ${lease_over} == yes ]]; then
    lease_end "$1" "$2"
  else
    lease_finish "$1" "$2"
  fi
}

# Tells whether there is something to do for a lease: it is over, or its run was killed. lease_due:
# yes or no; the lease is as lease_load reads it.
lease_judge() { # <vmid> <job>
  lease_due=no
  lease_load "$1" "$2"
  left_rests "$1" "$2"
  if [[ ${lease_found} != yes || ${left_resting} == yes ]]; then
    return 0
  fi
  lease_read_end
  lease_read_writer
  if [[ ${lease_over} == yes || (${lease_lock} != none && ${lease_writer} == gone) ]]; then
    lease_due=yes
  fi
}

# Finishes the lease of a run that was killed between announcing its work and seeing it done.
lease_finish() { # <vmid> <job>, as lease_load has read it
  local vm_job=$2 vm_owner=${lease_owner} vm_name=${lease_name}
  local vm_kind=vm
  vm_read "$1"
  if [[ ${vm_words} == *' linus-volume='* ]]; then
    vm_kind=volume
  elif [[ ${vm_words} == *' linus-template=1 '* && ${vm_config[template]:-0} == 1 ]]; then
    vm_kind=template
  fi
  vm_prove
  if [[ ${vm_state} == unknown ]]; then
    return 0
  elif [[ ${vm_state} == absent ]]; then
    # Its create may still be at work: the killed script's commands continue.
    if [[ ${lease_boot} != "${lease_boot_now}" ]] || ((lease_date > lease_made + lease_window)); then
      lease_drop "$1" "$2"
    fi
  elif [[ -z ${vm_doubt} ]]; then
    lease_settle "$1"
  else
    lease_prove "$1" "${lease_node}"
    case ${lease_proof} in
      yes) lease_end "$1" "$2" ;;
      busy) log_info "VM $1: ${vm_reason}" ;;
      *)
        vm_judge_doubt
        if [[ ${vm_outcome} == foreign ]]; then
          lease_drop "$1" "$2"
        else
          log_warn "VM $1 is left alone: ${vm_reason}"
          left_note "$1" "$2" "${vm_reason}"
        fi
        ;;
    esac
  fi
}

# The timer's program.
lease_run() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  export LC_ALL=C
  trap run_clean EXIT
  run_init
  trap 'run_stop=143' HUP INT TERM
  lease_armed=yes
  egress_sweep # first: when the host boots, before a VM with a limited network is started
  lease_sweep
  checkpoint_sweep
}
