# shellcheck shell=bash
# VM IDs that are free but not clean: volumes of a destroyed VM stayed on a storage. A new VM of
# that ID would find them, so the ID is not used before they are gone. LINUS_HOST_DIR
# (/var/lib/linus)/quarantine has one file per VM ID, with one volume per line.

source "${BASH_SOURCE[0]%/*}/run.sh"

quarantine_add() { # <vmid> <volume...>
  local -r dir=${LINUS_HOST_DIR:-/var/lib/linus}/quarantine
  if ! {
    mkdir -p -- "${dir}" && printf '%s\n' "${@:2}" >"${dir}/.$1" && mv -f -- "${dir}/.$1" "${dir}/$1"
  } 2>/dev/null; then
    log_warn "could not note in ${dir} that volumes of VM $1 were left"
  fi
}

# quarantined: the volumes still there, by VM ID. A storage that does not answer frees no ID.
quarantine_read() {
  local file volume storage left line
  local -A listed=() there=()
  local -a volumes
  declare -gA quarantined=()
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}"/quarantine/*; do
    if [[ ! ${file##*/} =~ ^[0-9]+$ || ! -f ${file} ]]; then
      continue
    fi
    left=''
    mapfile -t volumes <"${file}"
    for volume in "${volumes[@]}"; do
      storage=${volume%%:*}
      if [[ -z ${listed[${storage}]:-} ]]; then
        run_read 60 pvesm list "${storage}"
        listed[${storage}]=known
        if ((run_rc != 0)); then
          listed[${storage}]=unknown
        fi
        run_lines read
        for line in "${run_lines[@]}"; do
          there[${line%%[[:space:]]*}_]=yes
        done
      fi
      if [[ ${listed[${storage}]} == unknown || -n ${there[${volume}_]:-} ]]; then
        left+="${left:+ }${volume}"
      fi
    done
    if [[ -n ${left} ]]; then
      quarantined[${file##*/}]=${left}
    else
      log_info "VM ID ${file##*/} is clean again: ${volumes[*]} is gone"
      rm -f -- "${file}"
    fi
  done
}
