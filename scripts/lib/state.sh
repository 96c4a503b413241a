# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # places and state are the runner's
# The state of a job, as probe, the end of launch and sums report it. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/stdin.sh"

# probe_job reports the state of the job.
probe_job() {
  local boot launched code reason duration text sizes
  if [[ ! -e ${state}/launched ]]; then
    result_line JOB_STATE absent
    return
  fi
  if { read -r code reason _ _ duration text <"${state}/exit_status"; } 2>/dev/null; then
    result_line JOB_STATE exited
    result_line EXIT_CODE "${code}"
    result_line EXIT_REASON "${reason}"
    [[ -z ${text} ]] || result_line EXIT_TEXT "${text}"
  else
    result_line JOB_STATE running
    read -r boot launched _ <"${state}/launched"
    read_boot_id
    clock_read
    duration=0
    [[ ${boot} != "${boot_id}" ]] || duration=$(((clock_now - launched) / 100))
  fi
  sizes=$(stat -c %s -- "${state}/stdout" "${state}/stderr")
  result_line STDOUT_BYTES "${sizes%$'\n'*}"
  result_line STDERR_BYTES "${sizes#*$'\n'}"
  stdin_tell
  result_line DURATION "${duration}"
  [[ ! -e ${state}/full ]] || result_line DISK_FULL yes
  if runner_alive; then result_line RUNNER_ALIVE yes; else result_line RUNNER_ALIVE no; fi
}

# tell_end prints the last answer of launch: how the task ended and, unless that would take long,
# the sums of all its output.
tell_end() {
  local -i stdout_size stderr_size
  probe_job
  stdout_size=$(stat -c %s -- "${state}/stdout")
  stderr_size=$(stat -c %s -- "${state}/stderr")
  ((stdout_size > max_output_size || stderr_size > max_output_size)) || sum_output "${stdout_size}" "${stderr_size}"
}

# sum_output lets linus check the output it holds: callbacks brought it, and anybody who has seen
# the token can send callbacks.
sum_output() { # <bytes of stdout> <bytes of stderr>
  local sum
  local -r count='^(0|[1-9][0-9]{0,17})$'
  [[ $# == 2 && $1 =~ ${count} && $2 =~ ${count} ]] || result_fail invalid "sums: '$*' are not two numbers" "give how many bytes of stdout and of stderr"
  sum=$(head -c "$1" -- "${state}/stdout" | sha256sum)
  result_line STDOUT_SHA256 "${sum%% *}"
  sum=$(head -c "$2" -- "${state}/stderr" | sha256sum)
  result_line STDERR_SHA256 "${sum%% *}"
}
