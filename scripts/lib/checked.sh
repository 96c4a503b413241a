# shellcheck shell=bash
# The result of a check by Proxmox's tools holds for a minute: each check costs most of a second,
# and jobs come in rows. It is kept in a file <node>:<storage>:<bridge> in LINUS_HOST_DIR
# (/var/lib/linus)/checked, of one line: boot, seconds since boot, the storage's type. Only success
# is noted, and a create that fails removes the note.

source "${BASH_SOURCE[0]%/*}/lease.sh"

checked_seconds=60
checked_file='' # empty: nothing was looked up yet

checked_locate() { # <node> <storage> <bridge>; checked_file
  checked_file=${LINUS_HOST_DIR:-/var/lib/linus}/checked/$1:$2:$3
}

checked_read() { # <node> <storage> <bridge>; checked_type: the storage's; empty where it must be checked
  local boot='' uptime='' type=''
  checked_type=''
  checked_locate "$@"
  # A file that is not this user's own proves nothing.
  if [[ ! -O ${checked_file} || ! -f ${checked_file} || -L ${checked_file} ]] \
    || ! { read -r boot uptime type <"${checked_file}"; } 2>/dev/null; then
    return 0
  fi
  lease_read_clock
  if [[ ${boot} == "${lease_boot_now}" && ${uptime} =~ ^(0|[1-9][0-9]{0,11})$ && ${type} =~ ^[a-z0-9]{1,32}$ ]] \
    && ((uptime <= lease_uptime && lease_uptime < uptime + checked_seconds)); then
    checked_type=${type}
  fi
}

checked_note() { # <node> <storage> <bridge> <the storage's type>
  checked_locate "$1" "$2" "$3"
  lease_read_clock
  (
    umask 077
    mkdir -p -- "${checked_file%/*}"
    printf '%s\n' "${lease_boot_now} ${lease_uptime} $4" >"${checked_file}.$$" \
      && mv -f -- "${checked_file}.$$" "${checked_file}"
  ) 2>/dev/null || log_warn "could not write ${checked_file}: the next VM's storage is checked again"
}

checked_drop() { # removes the note last looked up or written
  if [[ -n ${checked_file} ]]; then
    rm -f -- "${checked_file}"
  fi
}
