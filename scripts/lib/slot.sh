# shellcheck shell=bash
# Limits the clones that are made on one node at a time, if several engines of linus ask for some:
# Proxmox's lock on a storage times out if more than a few wait for it. A single engine keeps to
# that number by itself. Copies of one VM are cloned one after another, because Proxmox locks a
# running VM meanwhile, and waits for that lock no longer than ten seconds.
#
# A slot is a lock, on descriptor 5, of a file in LINUS_LOCK_DIR (/run/linus), and ends with the
# script that holds it.

source "${BASH_SOURCE[0]%/*}/destroy.sh"

slot_take() { # waits for a slot
  local -r dir=${LINUS_LOCK_DIR:-/run/linus}
  local slot slots='1 2 3'
  if [[ -n ${VM_FORK:-} ]]; then
    slots=of-${VM_FORK}
  elif [[ -z ${LINUS_ENGINE:-} ]]; then
    return 0
  fi
  vm_check_lock_dir "${dir}"
  if [[ -n ${vm_reason} ]]; then
    result_fail vm "${vm_reason}" "look at: ls -ld ${dir}"
  fi
  while true; do
    for slot in ${slots}; do
      if { exec 5>>"${dir}/clone-${slot}.lock"; } 2>/dev/null && flock -n 5; then
        return 0
      fi
    done
    run_pause 0.3
  done
}

slot_leave() {
  exec 5>&-
}
