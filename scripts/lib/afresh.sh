# shellcheck shell=bash
# Settings that a host's sessions export for every bash change how our scripts run: with noclobber a
# script cannot write a file twice, with failglob an empty directory ends it.

# Restarts the script without such settings, as the same process. Call it before anything else.
afresh() { # <the script's argument...>
  if [[ ${SHELLOPTS@a}${BASHOPTS@a} == *x* || -n ${BASH_ENV+set}${POSIXLY_CORRECT+set} ]] && [[ -f ${BASH_SOURCE[-1]} ]]; then
    exec env -u BASH_ENV -u BASHOPTS -u ENV -u POSIXLY_CORRECT -u SHELLOPTS bash -- "${BASH_SOURCE[-1]}" "$@"
  fi
}
