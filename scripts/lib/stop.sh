# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # places and state are the runner's
# Stops a job's task. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/start.sh"
source "${BASH_SOURCE[0]%/*}/state.sh"

# stop_job ends the task with its whole process tree, and waits until that is recorded.
stop_job() { # <signal>
  [[ $1 == @(TERM|KILL|INT|HUP|QUIT) ]] || result_fail invalid "cannot stop with ${1@Q}" "use TERM, KILL, INT, HUP or QUIT"
  if [[ -e ${home}/settings && ! -e ${state}/exit_status ]]; then
    require_settings
    prepare_state
    publish stop "$1"
    wake_runner
    lock_start # after a start that is under way, and before any later one
  fi
  if [[ -e ${state}/launched && ! -e ${state}/exit_status ]]; then
    if runner_alive; then
      wake_runner
    else
      detach_runner
    fi
    clock_read
    local -ri deadline=$((clock_now + 4000))
    until [[ -e ${state}/exit_status ]]; do
      clock_read
      ((clock_now < deadline)) || result_fail vm "the task did not end in 40 s" "destroy the VM; ${state}/runner.log in the guest has more"
      sleep 0.1
    done
  fi
  probe_job
}
