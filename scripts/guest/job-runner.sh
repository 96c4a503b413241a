#!/usr/bin/env bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures; run has no errexit
#
# Runs one job's task in a guest, to its end, whatever happens to the SSH session that started
# it, to the linus server, or to the runner itself.
#
# Where it runs: in the VM, as the login user, in the directory where linus has put it with
# settings, task, command, env, files.index, files.tar, repository.tar and artifacts
# (patterns). The location tells it where its state is, and the tmpfs with token and secrets:
#   /opt/job-runner            /var/lib/linus/job        /run/linus
#   /opt/job-runner/jobs/<id>  /var/lib/linus/jobs/<id>  /run/linus/jobs/<id>
# all below one prefix, which only tests have. Each job of a VM has a place of its own, and
# does not touch the others. It needs bash, coreutils, util-linux, tar, curl for callbacks, git
# for a repository, and sudo for tasks that run as root and for files that the user may not
# write.
#
# Usage: job-runner.sh start | launch | wait | probe | stop [<signal>] | input <offset> |
#        close-input | resize <rows>x<columns> | artifacts <files> <bytes each> <bytes all> |
#        callback <url> | sums <bytes of stdout> <bytes of stderr>
#   start  installs the job's files, starts `run` in the background, and returns when it
#          lives, with the boot under which the task was started.
#          When called again, it resumes what is left to do, or does nothing.
#   launch  does what start does. Then it prints what the task writes, as it comes, and how
#          the task ended, for as long as somebody listens: until stdin ends.
#   wait   is launch for a job that is still to come. It starts `run`, which waits until there
#          is something to begin. Then it takes the job's files from stdin, waits for a line
#          there, and continues as launch. When its stdin ends, all of it ends.
#   probe  reports the state of the job.
#   stop   ends the task with its whole process tree by TERM, KILL, INT, HUP or QUIT, kills
#          what is left 5 s later (KILL), and waits until the end is recorded.
#   input  takes its own stdin as what follows the first <offset> bytes of the task's stdin,
#          and skips what the task's stdin has already.
#   close-input  lets the task read the end of its stdin, or ^D in a terminal.
#   resize  gives the task's terminal another size.
#   artifacts  finds what the patterns match once the task has ended.
#   sums   prints sha256 sums of the beginning of what the task wrote.
#   callback  tests whether the server answers at the URL; if so, callbacks go there from now
#          on, at once.
# It starts itself as
#   run    the supervisor: runs the task, ends it at its timeout or on stop, records how it
#          ended, and reports to the server. One task never runs twice.
#   task   the last step before a task in a terminal, or as another user: runs inside it.
#   collect, copy  the work of artifacts that needs root.
#   unpack  the work of start that needs root.
#
# Inputs: LINUS_NONCE (marks the result block).
# Exit codes: 0 ok, 1 general or bad input, 2 a tool is missing, 5 the runner
# could not be started or the task not stopped.
#
# State (every file except the first four appears whole, by rename):
#   stdout, stderr  what the task wrote, byte for byte
#   stdin           what was sent to it, if its stdin is open
#   runner.log      for people
#   launched        boot id, uptime (1/100 s), epoch, the task's cgroup if it has
#                   one: written before the task can run
#   task            pid and start of the task's parent, pid of the task (its session)
#   session         the session of the task itself, which a terminal or sudo may
#                   have made: written when the task has read env and secrets
#   task_status     exit code, uptime: written by the task's parent
#   exit_status     code, reason (exit, timeout, stopped, lost), started and ended
#                   (epoch), duration (seconds), text: written last, never changed
#   runner          pid, start and boot id of the supervisor
#   begin           exists when a `run` that waits is to begin
#   stop            the signal that somebody asked for
#   full            uptime (1/100 s) at which the disk was first seen full
#   completion      recorded|given_up and the HTTP status
#   follow.<pid>    its time is that of launch's last look at the output
#   callback_url    where callbacks go, if not to the settings' CALLBACK_URL
#   stdin_closed    the final length of stdin
#   repository      where the work tree of the job's repository was put
#   artifacts.index  name, absolute path, size, mode, sha256 of each artifact
#   control, bell   fifos: a byte to control wakes the supervisor, a byte to bell wakes
#                   whoever waits for the end of stdin

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/artifacts.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/stop.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/supervise.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/terminal.sh"

home=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"} # with builtins: every fork counts in an emulated guest
[[ ${home} == /?*/ ]] || home=$(cd -- "${home:-.}" && pwd)/
home=${home%/}
script=${home}/${BASH_SOURCE[0]##*/}
give_up_after=3600 # seconds of "no such job" before completion is given up

# find_place sets where the job's files are; false when the runner is not in a job's place.
find_place() {
  case ${home} in
    */opt/job-runner)
      root=${home%/opt/job-runner}
      state=${root}/var/lib/linus/job
      tmpfs=${root}/run/linus
      ;;
    */opt/job-runner/jobs/*)
      root=${home%/opt/job-runner/jobs/*}
      state=${root}/var/lib/linus/jobs/${home##*/}
      tmpfs=${root}/run/linus/jobs/${home##*/}
      ;;
    *) return 1 ;;
  esac
}

# publish makes a state file appear whole. It overwrites blocks that prepare_state has reserved, so
# that a task that fills the disk cannot hide its own end.
publish() { # <name> <line>
  printf '%s\n' "$2" 1<>"${state}/$1.new" && mv -f -- "${state}/$1.new" "${state}/$1"
}

# read_boot_id sets boot_id: another one means the guest was rebooted.
read_boot_id() {
  IFS= read -r boot_id </proc/sys/kernel/random/boot_id
}

# runner_alive also sets runner_seen to the content of the file runner: when false, it is empty or
# names a dead runner.
runner_alive() {
  local pid start boot
  read_runner
  IFS=' ' read -r pid start boot <<<"${runner_seen}"
  read_boot_id
  [[ ${boot} == "${boot_id}" ]] && process_alive "${pid}" "${start}"
}

read_runner() {
  runner_seen=''
  { IFS= read -r runner_seen <"${state}/runner"; } 2>/dev/null || true
}

wake_runner() {
  [[ ! -p ${state}/control ]] || printf . 1<>"${state}/control"
}

# pause waits until somebody wakes the runner, but no longer than the given time.
pause() { # <1/100 s>
  local seconds
  printf -v seconds '%d.%02d' "$(($1 / 100))" "$(($1 % 100))"
  IFS= read -r -n 1 -t "${seconds}" -u "${control}" _ || true
}

# --- what linus asks ---

require_settings() {
  settings_load || result_fail invalid "${home}/settings: ${settings_error}" "upload the job's settings again"
}

# choose_callback sends callbacks to the URL if the server answers there. A completion that waits
# for its next try is sent at once.
choose_callback() { # <url>
  settings_is_url "$1" || result_fail invalid "${1@Q} is not a URL" "give http://HOST:PORT"
  if callback_reaches "$1"; then
    publish callback_url "$1"
    wake_runner
    result_line CALLBACK reached
  else
    result_line CALLBACK unreachable
  fi
}

main() {
  local -r verb=${1:-}
  shift || true
  if ! find_place; then
    log_error "${script} does not lie in /opt/job-runner or /opt/job-runner/jobs/<id>"
    return 1
  fi
  case ${verb} in
    run)
      run_job "$@"
      return
      ;;
    task) task_again ;;
    launch) launch_job ;;
    wait) wait_job ;;
    *) answer "${verb}" "$@" ;;
  esac
}

# answer does what linus asks for, in the frame of lib/result.sh.
answer() { # <verb> [<argument>...]
  set -Eeuo pipefail
  shopt -s inherit_errexit
  trap 'result_end "$?"' EXIT
  trap 'result_unexpected "$?" "${LINENO}" "${BASH_COMMAND}"' ERR
  result_begin 0
  case $1 in
    start) start_job ;;
    prepare) prepare_job ;;           # within wait
    placed) result_line PLACED yes ;; # within wait
    probe) probe_job ;;
    ended) tell_end ;; # within launch
    stop) stop_job "${2:-TERM}" ;;
    input)
      require_launch
      stdin_take "${2:-}"
      ;;
    close-input)
      require_launch
      stdin_close
      ;;
    resize)
      require_launch
      resize_terminal "${2:-}"
      ;;
    artifacts)
      require_settings
      artifacts_find "${@:2}"
      ;;
    collect)
      require_settings
      artifacts_collect "${@:2}"
      return # within the answer of artifacts
      ;;
    copy)
      artifacts_copy
      return
      ;;
    unpack)
      files_unpack_for "${@:2}"
      return # within the answer of start
      ;;
    callback) choose_callback "${2:-}" ;;
    sums)
      require_launch
      sum_output "${@:2}"
      ;;
    *) result_fail invalid "${1@Q} is not a command" "use start, launch, wait, probe, stop, input, close-input, resize, artifacts, sums or callback" ;;
  esac
  result_line RESULT SUCCESS
}

require_launch() {
  [[ -e ${state}/launched ]] || result_fail invalid "the task has not been started" "start it first"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
