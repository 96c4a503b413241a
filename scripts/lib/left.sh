# shellcheck shell=bash
# VMs that are not proven to be linus's and yet not gone. A VM may lose its proof while it runs:
# somebody rewrites its notes, removes its tag, renames it, or moves it to another node. It is then
# left alone, and reported as such, until it is gone. A VM never counts as gone because its proof
# is.
#
# The host keeps such a VM's lease, and beside it a file <vmid>-<job>.left of one line: the date it
# was last looked at, and why it was left alone.

source "${BASH_SOURCE[0]%/*}/lease.sh"

# Judges whose the config just read is, if it does not prove to be that of the VM meant. left_whose:
# another, if neither its name nor its job is that of the VM meant, and its owner only beside
# another job, because IDs are used again: the VM meant is gone then. Otherwise doubtful, as is a
# config that a worker of Proxmox has begun or not finished and that has no mark at all.
left_judge() {
  local key
  local -r name=${vm_config[name]:-}
  local -r job_word='linus-job=[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
  left_whose=doubtful
  # save-vm.sh has turned it into a template, which is no VM and has a job of its own.
  if [[ ${vm_config[template]:-0} == 1 && ${vm_words} == *" linus-template=1 linus-saved=${vm_job} linus-from=${vm_name} "* ]]; then
    left_whose=another
    return 0
  elif [[ ${name,,} == "${vm_name,,}" || ${vm_words} == *"${vm_job}"* ]] \
    || [[ ${vm_words} == *"${vm_owner}"* && ! ${vm_words} =~ ${job_word} ]]; then
    return 0
  fi
  for key in "${!vm_config[@]}"; do
    if [[ ${key} != @(lock|description|unparsed) ]]; then
      left_whose=another
      return 0
    fi
  done
}

left_note() { # <vmid> <job> <why>; the lease must exist
  result_fold "$3"
  lease_locate "$1" "$2"
  {
    printf '%(%s)T %s\n' -1 "${result_folded}" >"${lease_file}.left.new" \
      && mv -f -- "${lease_file}.left.new" "${lease_file}.left"
  } 2>/dev/null || log_warn "could not note in ${lease_file}.left that VM $1 is left alone"
}

# Tells whether it is too early to look again. A note with a future date does not count.
left_rests() { # <vmid> <job>; left_resting: yes or no
  local date=0 now
  left_resting=no
  lease_locate "$1" "$2"
  printf -v now '%(%s)T' -1
  if { read -r date _ <"${lease_file}.left"; } 2>/dev/null && [[ ${date} =~ ^[0-9]{1,12}$ ]] \
    && ((date <= now && now < date + 600)); then
    left_resting=yes
  fi
}

# left_alone: the VMs left alone on this host, "<vmid> <job> <name> <why>" each.
left_read() {
  local file why
  local -r form='^([0-9]+)-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\.left$'
  left_alone=()
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}"/leases/*.left; do
    if [[ ! ${file##*/} =~ ${form} ]]; then
      continue
    fi
    local id=${BASH_REMATCH[1]} job=${BASH_REMATCH[2]}
    lease_load "${id}" "${job}"
    if [[ ${lease_found} == yes ]] && { IFS=' ' read -r _ why <"${file}"; } 2>/dev/null; then
      left_alone+=("${id} ${job} ${lease_name} ${why}")
    fi
  done
}
