# shellcheck shell=bash
# The frame that every host script runs in: its answer is always finished, its temporary files are
# always removed, and a signal is a failure like any other.

source "${BASH_SOURCE[0]%/*}/afresh.sh"
source "${BASH_SOURCE[0]%/*}/result.sh"
source "${BASH_SOURCE[0]%/*}/run.sh"

dry_run=no

# Runs the script's main. --help needs no frame and no host.
script_run() { # <argument...>
  if [[ ${1:-} == --help ]]; then
    usage
    return 0
  fi
  afresh "$@"
  set -Eeuo pipefail
  shopt -s inherit_errexit
  main "$@"
}

# A signal sent by hand asks the script to stop. An operation's script is started with these signals
# ignored, and bash cannot trap a signal ignored at its start: there only the file LINUS_STOP stops
# it.
script_begin() { # <total steps> [<roll-back function>]
  script_rollback=${2:-:}
  export LC_ALL=C
  # Under `bash -s` the rest of the script comes on stdin, so no child may read it.
  exec </dev/null
  trap script_finish EXIT
  trap 'result_unexpected "$?" "${LINENO}" "${BASH_COMMAND}"' ERR
  result_begin "$1"
  run_init
  require_room
  trap 'run_stop=129' HUP
  trap 'run_stop=130' INT
  trap 'run_stop=141' PIPE
  trap 'run_stop=143' TERM
}

# The output of programs passes through run_dir, which needs room for that.
require_room() {
  if ! { printf '%65536s' '' >"${run_dir}/room"; } 2>/dev/null; then
    result_fail config "${run_dir%/*} on ${HOSTNAME} is full" "free some space there; look at: df -h ${run_dir%/*}"
  fi
  : >"${run_dir}/room"
}

# Only options come as arguments. script_run has handled --help.
script_read_options() { # <--dry-run, or empty: the script has none> <argument...>; dry_run
  local argument options='only option is --help'
  if [[ $1 == --dry-run ]]; then
    options='options are --dry-run and --help'
  fi
  for argument in "${@:2}"; do
    if [[ ${argument} != --dry-run || $1 != --dry-run ]]; then
      result_fail invalid "unknown argument ${argument@Q}" "the ${options}; all else comes by environment"
    fi
    dry_run=yes
  done
}

# However the script ends, by itself, by a failure or because it was to stop, this one step rolls
# back. Whatever fails in here, the rest is still tried.
script_finish() {
  local status=$?
  trap '' HUP INT TERM PIPE
  trap - EXIT ERR
  set +e
  if ((status != 0)) && [[ ${run_stop:-} == 141 ]]; then
    status=141 # what failed is the answer to a caller that has gone
  fi
  run_stoppable=no
  run_abandon
  "${script_rollback}"
  result_end "${status}"
  run_clean
  exit "${status}"
}
