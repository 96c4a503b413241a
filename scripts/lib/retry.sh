# shellcheck shell=bash
# Changes something on Proxmox, and trusts only what can be read back.
#
# Exit codes of qm are wrong in both directions: a failed resize exits 0, and an answer lost to a
# lock's time-out may stand for work that was done. So after every change a function of the caller
# checks whether it landed (it sets retry_landed to yes or no). Only Proxmox's messages about a busy
# lock are worth another try.
#
# If retry_clear names a function, it is called before each further try: it clears the way, or sets
# retry_landed to yes, or to hopeless if there must be no other try.
#
# With retry_by=digest Proxmox is told which config the change is based on, the one read last
# (lib/vm.sh), and refuses the change if the config is another one by then. With retry_by=guard the
# config is checked just before the tool begins (lib/run.sh), for commands that take no digest.

source "${BASH_SOURCE[0]%/*}/vm.sh"

retry_change() { # <function that sets retry_landed> <seconds> <command...>
  local -r landed=$1 seconds=$2
  shift 2
  local -r lock_texts="got timeout|got lock request timeout|got no worker upid|locked command timed out|VM is locked|can't lock file|checksum miss?match|has changed since it was read"
  local -r tries=6
  local attempt pause said rc
  local -a digest
  for ((attempt = 1; attempt <= tries; attempt += 1)); do
    digest=()
    if [[ ${retry_by:-} == digest && -n ${vm_digest} ]]; then
      digest=(--digest "${vm_digest}")
    fi
    run_guarded=${retry_by:-} run_change "${seconds}" "$@" "${digest[@]}"
    said=${run_said}
    rc=${run_rc}
    retry_landed=no
    "${landed}"
    run_said=${said}
    run_rc=${rc}
    if [[ ${retry_landed} == yes || ! ${said} =~ ${lock_texts} || ${attempt} -eq ${tries} ]]; then
      return 0
    fi
    # Each run that lost the lock waits a different time, longer in each round.
    pause=$((RANDOM % (1000 * attempt) + 500))
    log_info "Proxmox was busy: try ${attempt} of ${tries}, again in ${pause} ms"
    result_line LOCK_RETRY "${attempt}/${tries}" 2>/dev/null || : # in a roll-back nobody may be listening
    printf -v pause '%d.%03d' "$((pause / 1000))" "$((pause % 1000))"
    run_pause "${pause}"
    if [[ -n ${retry_clear:-} ]]; then
      "${retry_clear}"
      run_said=${said}
      run_rc=${rc}
      if [[ ${retry_landed} != no ]]; then
        return 0
      fi
    fi
  done
}

# Ends the script for a change that has not landed. If Proxmox refused it for lack of quorum, it
# says so, or that it may not write its file. It mostly says so, too, if a storage is full; 8.x
# gives no cause for the end of a mirror.
retry_fail() { # <text> <remedy> [<storages> (default: the config's)]
  local -r full_texts="No space left on device|reached threshold|out of space|nsufficient free space|Disk quota exceeded|error -28|'mirror' has been cancelled"
  local vm_storages=''
  if [[ ${run_said} == *'no quorum'* || ${run_said} == *"file '/etc/pve/"*' - Permission denied'* ]]; then
    result_fail config "$1" 'bring the other nodes of the cluster back: without quorum Proxmox refuses every change; look at: pvecm status'
  elif [[ ${run_said} =~ ${full_texts} ]]; then
    vm_find_storages
    vm_storages=${3:-${vm_storages}}
    result_fail vm "$1" "free some space on ${vm_storages// /, } (pvesm status tells how full it is, pvesm list what is there): a full storage pauses every VM on it"
  fi
  result_fail vm "$1" "$2"
}
