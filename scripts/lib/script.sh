# shellcheck shell=bash
# The frame every host script runs in: its answer is always finished, its
# temporary files always go, and a signal is a failure like any other.

dry_run=no

script_begin() { # <total steps> [<roll-back function>]
  script_rollback=${2:-:}
  export LC_ALL=C
  # Under `bash -s` the rest of the script stands on stdin: no child may read it.
  exec </dev/null
  trap script_finish EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 141' PIPE
  trap 'exit 143' TERM
  trap 'result_unexpected "$?" "${LINENO}" "${BASH_COMMAND}"' ERR
  result_begin "$1"
  run_init
}

# The options are all that comes by arguments. --help is main's, which looks for
# it first: help needs no frame and no host.
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

# From here on only a caller that has gone (PIPE) still fails the script.
script_hold_signals() {
  run_hold_signals HUP INT TERM
}

# Whatever fails in here, the rest is still tried. The traps do nothing rather
# than ignore: children would inherit an ignored signal.
script_finish() {
  local -r status=$?
  run_hold_signals HUP INT TERM PIPE
  trap - EXIT ERR
  set +e
  run_abandon
  "${script_rollback}"
  result_end "${status}"
  run_clean
  exit "${status}"
}
