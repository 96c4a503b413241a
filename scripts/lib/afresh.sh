# shellcheck shell=bash
# What a host's sessions may export for every bash changes how a script of ours is run: with
# noclobber it cannot write a file twice, with failglob an empty directory ends it.

# Begins the script anew, as the same process, where that is so. Called before anything else.
afresh() { # <the script's argument...>
  if [[ ${SHELLOPTS@a}${BASHOPTS@a} == *x* || -n ${BASH_ENV+set}${POSIXLY_CORRECT+set} ]] && [[ -f ${BASH_SOURCE[-1]} ]]; then
    exec env -u BASH_ENV -u BASHOPTS -u ENV -u POSIXLY_CORRECT -u SHELLOPTS bash -- "${BASH_SOURCE[-1]}" "$@"
  fi
}
