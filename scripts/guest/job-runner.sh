#!/usr/bin/env bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures; run has no errexit
#
# Runs one job's task in a guest, to its end, whatever becomes of the SSH
# session that started it, of the linus server, or of the runner itself.
#
# Where it runs: in the VM, as the login user, from /opt/job-runner, where linus
# has put settings, task, command, env, files.index and files/. It needs bash,
# coreutils, util-linux, curl for callbacks, and sudo where a file goes beyond
# the user's reach.
#
# Usage: job-runner.sh start | run | probe | stop [TERM|KILL] | callback <url>
#   start  installs the job's files, sets `run` going in the background and
#          returns when it lives. Again: resumes what is left to do, or nothing.
#   run    the supervisor: runs the task, ends it at its timeout or on stop,
#          records how it ended, tells the server. One task never runs twice.
#   probe  says how the job stands.
#   stop   ends the task with its whole process tree and waits until recorded.
#   callback  tries whether the server answers at the URL; if so, callbacks go
#          there from now on, at once.
#
# Inputs: LINUS_NONCE (marks the result block), LINUS_ROOT (a prefix for every
# path, the job's files too; for tests).
# Exit codes: 0 ok, 1 general or bad input, 2 a tool is missing, 5 the runner
# could not be started or the task not stopped.
#
# State, in /var/lib/linus/job (every file appears whole, by rename):
#   stdout, stderr  what the task wrote, byte for byte
#   launched        boot id, uptime (1/100 s), epoch, the task's cgroup if it has
#                   one: written before the task can run
#   task            pid and start of the task's parent, pid of the task (its session)
#   task_status     exit code, uptime: written by the task's parent
#   exit_status     code, reason (exit, timeout, stopped, lost), started and ended
#                   (epoch), duration (seconds), text: written last, never changed
#   runner          pid, start and boot id of the supervisor
#   stop            the signal somebody asked for
#   completion      recorded|given_up and the HTTP status
#   callback_url    where callbacks go, when not to the settings' CALLBACK_URL
#   control         fifo: a byte wakes the supervisor
#   runner.log      for people

# shellcheck source=../lib/log.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/log.sh"
# shellcheck source=../lib/result.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/result.sh"
# shellcheck source=../lib/clock.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/clock.sh"
# shellcheck source=../lib/process.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/process.sh"
# shellcheck source=../lib/files.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/files.sh"
# shellcheck source=../lib/callback.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/callback.sh"

script=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/${BASH_SOURCE[0]##*/}
home=${LINUS_ROOT:-}/opt/job-runner
state=${LINUS_ROOT:-}/var/lib/linus/job
token_file=${LINUS_ROOT:-}/run/linus/token
max_argument=131071 # Linux: one argument, its final NUL included, has at most 128 KiB
give_up_after=3600  # seconds of "no such job" before completion is given up

# publish makes a state file appear whole. It writes over blocks prepare_state
# has reserved, so that a task that fills the disk cannot hide its own end.
publish() { # <name> <line>
  printf '%s\n' "$2" 1<>"${state}/$1.new" && mv -f -- "${state}/$1.new" "${state}/$1"
}

# load_settings reads the settings file into globals; sets settings_error and is
# false when a value cannot be.
load_settings() {
  local line value
  job_id='' agent='' claude_model='' timeout='' status_mode=simple callback_url=''
  heartbeat_interval=30 max_output_size=10485760 settings_error=''
  while IFS= read -r line || [[ -n ${line} ]]; do
    value=${line#*=}
    case ${line%%=*} in
      JOB_ID) job_id=${value} ;;
      AGENT) agent=${value} ;;
      CLAUDE_MODEL) claude_model=${value} ;;
      TIMEOUT) timeout=${value} ;;
      STATUS_MODE) status_mode=${value} ;;
      CALLBACK_URL) callback_url=${value} ;;
      HEARTBEAT_INTERVAL) heartbeat_interval=${value} ;;
      MAX_OUTPUT_SIZE) max_output_size=${value} ;;
    esac
  done 2>/dev/null <"${home}/settings" || true
  local -r number='^[1-9][0-9]{0,14}$'
  if [[ -z ${job_id} || ${job_id} == *[!0-9A-Za-z-]* ]]; then
    settings_error="JOB_ID '${job_id}' is not a job's id"
  elif [[ ${agent} != script && ${agent} != command && ${agent} != claude ]]; then
    settings_error="AGENT '${agent}' is not script, command or claude"
  elif [[ ${agent} == command && ! -f ${home}/command ]]; then
    settings_error="AGENT is command and there is no file command"
  elif [[ ${agent} == claude && ${claude_model} == -* ]]; then
    settings_error="CLAUDE_MODEL '${claude_model}' begins with a dash"
  elif [[ ! ${timeout} =~ ${number} ]]; then
    settings_error="TIMEOUT '${timeout}' is not a number of seconds above 0"
  elif [[ ! ${heartbeat_interval} =~ ${number} || ! ${max_output_size} =~ ${number} ]]; then
    settings_error="HEARTBEAT_INTERVAL '${heartbeat_interval}' and MAX_OUTPUT_SIZE '${max_output_size}' must be numbers above 0"
  elif [[ ${status_mode} != simple && ${status_mode} != detailed && ${status_mode} != streaming ]]; then
    settings_error="STATUS_MODE '${status_mode}' is not simple, detailed or streaming"
  elif [[ -n ${callback_url} ]] && ! is_url "${callback_url}"; then
    settings_error="CALLBACK_URL '${callback_url}' is not a URL"
  elif [[ ! -f ${home}/task ]]; then
    settings_error="there is no file task"
  fi
  [[ -z ${settings_error} ]]
}

is_url() { # <text>
  [[ $1 == http?(s)://?* && $1 != *[[:space:]]* ]]
}

# read_boot_id sets boot_id: another one means the guest was rebooted.
read_boot_id() {
  IFS= read -r boot_id </proc/sys/kernel/random/boot_id
}

# runner_alive also sets runner_seen to what the file runner said: empty or one
# that is dead, when false.
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

# --- start -------------------------------------------------------------------

start_job() {
  local tool
  for tool in setsid flock mkfifo stat dd install env; do
    type -P "${tool}" >/dev/null || result_fail dependency "${tool} is missing in the guest" "install coreutils and util-linux"
  done
  require_settings
  [[ -z ${callback_url} ]] || type -P curl >/dev/null \
    || result_fail dependency "curl is missing in the guest" "install curl, or submit the job without callbacks"
  prepare_state
  lock_start
  if runner_alive; then
    wake_runner
    result_line JOB_START already_running
  elif [[ -e ${state}/exit_status && (-z ${callback_url} || -e ${state}/completion) ]]; then
    result_line JOB_START already_finished
  elif [[ -e ${state}/launched ]]; then
    detach_runner
    result_line JOB_START resumed
  else
    files_check_env
    files_install
    detach_runner
    result_line JOB_START started
  fi
}

require_settings() {
  load_settings || result_fail invalid "${home}/settings: ${settings_error}" "upload the job's settings again"
}

# lock_start lets one process at a time decide whether a runner is needed.
lock_start() {
  exec {start_lock}>"${state}/lock"
  flock -w 60 "${start_lock}" || result_fail vm "another start has held ${state}/lock for 60 s" "try again"
}

prepare_state() {
  if ! mkdir -p -- "${state}" 2>/dev/null || [[ ! -w ${state} ]]; then
    local group
    group=$(id -g)
    process_as_root install -d -o "${EUID}" -g "${group}" -- "${state}" \
      || result_fail invalid "cannot make ${state}" "let the login user use sudo without a password"
  fi
  chmod 0700 "${state}"
  [[ -p ${state}/control ]] || mkfifo -m 0600 "${state}/control"
  local name
  for name in runner launched task task_status exit_status completion; do
    [[ -e ${state}/${name} || -e ${state}/${name}.new ]] || printf '%255s\n' '' >"${state}/${name}.new"
  done
}

# detach_runner starts `run` beyond the reach of the SSH session's end, after
# runner_alive said no, and waits until a runner has come up and the task is on
# record: from then on probe knows it. Under systemd it gets a unit, and with it
# a cgroup to hold the task. KillMode=process and Restart: a runner that dies
# leaves the task running, and its successor takes it over.
detach_runner() {
  local name
  local -a environment=("HOME=${HOME:-/}" "PATH=${HOME:-}/.local/bin:${PATH}")
  for name in USER LOGNAME SHELL LANG LC_ALL TZ LINUS_ROOT \
    http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || environment+=("${name}=${!name}")
  done
  local -a unit_options=(--quiet --collect "--unit=linus-job-${job_id}.service" "--uid=${EUID}" "--gid=$(id -g)"
  -p KillMode=process -p Delegate=yes -p Restart=on-failure -p RestartSec=1 -p OOMPolicy=continue
  -p TasksMax=infinity -p EnvironmentFile=-/etc/environment
  -p "StandardOutput=append:${state}/runner.log" -p "StandardError=append:${state}/runner.log")
  : >>"${state}/runner.log"
  if [[ ! -d /run/systemd/system ]] \
    || ! process_as_root systemd-run "${unit_options[@]}" "${environment[@]/#/--setenv=}" -- "${BASH}" "${script}" run >&2; then
    env -i "${environment[@]}" setsid "${BASH}" "${script}" run {start_lock}>&- </dev/null >>"${state}/runner.log" 2>&1 &
  fi
  local -i deadline
  clock_read
  deadline=$((clock_now + 6000))
  local -r dead=${runner_seen}
  while [[ ${runner_seen} == "${dead}" || ! -e ${state}/launched ]]; do
    clock_read
    ((clock_now < deadline)) || result_fail vm "the job runner did not come up in 60 s" "read ${state}/runner.log in the guest"
    sleep 0.05
    read_runner
  done
}

# --- run ---------------------------------------------------------------------

# run_job brings the job to its end from wherever it stands. It runs without
# errexit: whatever fails on the way, the end must be recorded and told.
run_job() {
  umask 077
  load_settings || {
    log_error "${home}/settings: ${settings_error}"
    return 1
  }
  close_inherited
  read_boot_id
  exec {run_lock}>"${state}/run.lock"
  # The last runner's children may hold the lock for a moment longer than it lived.
  flock -w 5 "${run_lock}" || {
    log_info "another runner looks after this job"
    return 0
  }
  process_stat "$$"
  exec {control}<>"${state}/control"
  publish runner "$$ ${process_start} ${boot_id}"
  [[ -e ${state}/exit_status ]] || supervise_task
  [[ -z ${callback_url} || -e ${state}/completion ]] || callback_complete
}

# close_inherited lets go of whatever was open where start was called: somebody
# may be waiting for its end. 255 is bash's own, the script.
close_inherited() {
  local path fd
  for path in "/proc/$$/fd"/*; do
    fd=${path##*/}
    ((fd < 3 || fd == 255)) || exec {fd}>&-
  done
}

# make_cgroup sets cgroup to a cgroup for the task alone, beside the runner in
# its unit's; empty where there is no such unit or no cgroup v2.
make_cgroup() {
  local line root
  cgroup=''
  while IFS= read -r line; do
    [[ ${line} == 0::*/"linus-job-${job_id}.service" ]] || continue
    for root in /sys/fs/cgroup /sys/fs/cgroup/unified; do
      [[ -w ${root}${line#0::}/cgroup.procs ]] || continue
      mkdir -p -- "${root}${line#0::}/task" && cgroup=${root}${line#0::}/task
    done
  done </proc/self/cgroup
}

# pause waits until somebody wakes the runner, but at most so long.
pause() { # <1/100 s>
  local seconds
  printf -v seconds '%d.%02d' "$(($1 / 100))" "$(($1 % 100))"
  IFS= read -r -n 1 -t "${seconds}" -u "${control}" _ || true
}

# supervise_task starts the task, or takes it over from a runner that died, and
# records how it ended.
supervise_task() {
  local boot='' launched=0 started=0 session='' reporter='' code reason detail signal=TERM ended
  if [[ ! -e ${state}/launched ]]; then
    : >"${state}/stdout"
    : >"${state}/stderr"
    clock_read
    make_cgroup
    publish launched "${boot_id} ${clock_now} ${EPOCHSECONDS} ${cgroup}"
    hold_task &
  fi
  read -r boot launched started cgroup <"${state}/launched"
  if [[ ${boot} != "${boot_id}" ]]; then
    record_end -1 lost "${started}" "${EPOCHSECONDS}" 0 "the guest was rebooted while the task ran"
    return
  fi
  await_file task
  { read -r _ _ session <"${state}/task"; } 2>/dev/null
  if [[ -n ${callback_url} ]]; then
    callback_follow_task "${launched}" &
    reporter=$!
  fi
  watch_task "$((launched + timeout * 100))"
  [[ ${reason} != stopped || $(<"${state}/stop") != KILL ]] || signal=KILL
  process_end_tree "${job_id}" "${session}" "${cgroup}" "${signal}" \
    || log_error "something of the task's tree cannot be killed: ${!process_tree[*]}"
  if [[ -n ${reporter} ]]; then
    kill "${reporter}" 2>/dev/null
    wait "${reporter}"
  fi
  [[ ${reason} == lost ]] || await_file task_status
  clock_read
  ended=${clock_now} code=137
  { read -r code ended <"${state}/task_status"; } 2>/dev/null
  [[ ${reason} != lost ]] || code=-1
  record_end "${code}" "${reason}" "${started}" "$((EPOCHSECONDS - (clock_now - ended) / 100))" "$((ended - launched))" "${detail}"
}

# await_file gives the task's parent 10 s to write what it is about to.
await_file() { # <name>
  clock_read
  local -ri deadline=$((clock_now + 1000))
  until [[ -e ${state}/$1 ]] || ((clock_now >= deadline)); do
    pause 10
    clock_read
  done
}

# watch_task returns when the task is to end or has ended; sets reason and
# detail.
watch_task() { # <deadline, uptime in 1/100 s>
  local -r deadline=$1
  local pid='' start=''
  { read -r pid start _ <"${state}/task"; } 2>/dev/null
  reason='' detail=''
  while :; do
    clock_read
    if [[ -e ${state}/task_status ]]; then
      reason="exit"
    elif [[ -e ${state}/stop ]]; then
      reason=stopped detail="stopped on request"
    elif ((clock_now >= deadline)); then
      reason=timeout detail="ran longer than ${timeout} s"
    elif ! process_alive "${pid}" "${start}" && [[ ! -e ${state}/task_status ]]; then
      reason=lost detail="the task's exit status is lost: the process that waited for it was killed"
    else
      pause "$((deadline - clock_now < 100 ? deadline - clock_now : 100))"
      continue
    fi
    return
  done
}

record_end() { # <code> <reason> <started> <ended> <duration, 1/100 s> <text>
  local line
  printf -v line '%d %s %d %d %d.%02d %s' "$1" "$2" "$3" "$4" "$(($5 / 100))" "$(($5 % 100))" "$6"
  log_info "task ended: ${line}"
  until publish exit_status "${line}"; do pause 100; done
}

# hold_task is the task's parent: it outlives a killed runner, so that the exit
# status is never lost with it. Not in the task's cgroup or session, it is not
# killed with them either.
hold_task() {
  trap '' TERM INT HUP QUIT PIPE
  # Here and not as the call's redirections, of which bash keeps copies open.
  exec {control}>&- {run_lock}>&-
  local status
  local -r holder=${BASHPID}
  process_stat "${holder}"
  local -r holder_start=${process_start}
  exec_task </dev/null >"${state}/stdout" 2>"${state}/stderr" &
  publish task "${holder} ${holder_start} $!"
  wait "$!"
  status=$?
  clock_read
  publish task_status "${status} ${clock_now}"
  wake_runner
}

# exec_task becomes the task: in a session of its own, every signal at its
# default. Whatever the job's env holds, bash's own variables among it, arrives
# as given: names bash does not let go of pass through env(1) instead.
exec_task() {
  trap - TERM INT HUP QUIT PIPE
  [[ -z ${cgroup} ]] || printf '%d\n' "${BASHPID}" >"${cgroup}/cgroup.procs"
  umask 022
  cd -- "${HOME}" || cd / || exit 126
  local __linus_entry __linus_task='' __linus_size
  local -a __linus_command __linus_stubborn=() __linus_start
  __linus_start=("$(type -P env)" --default-signal)
  if [[ ${agent} == claude ]]; then
    __linus_command=(claude --print)
    [[ -z ${claude_model} ]] || __linus_command+=(--model "${claude_model}")
    IFS= read -r -d '' __linus_task <"${home}/task"
    # No argument can be that long, or hold a NUL; one with a dash in front
    # would be taken for an option.
    __linus_size=$(stat -c %s -- "${home}/task")
    if [[ ${__linus_size} -lt ${max_argument} && ${__linus_task} != -* ]]; then
      __linus_command+=("${__linus_task}")
    else
      exec <"${home}/task"
    fi
  elif [[ -f ${home}/command ]]; then
    IFS= read -r -d '' __linus_task <"${home}/command"
    __linus_command=("${BASH}" -c -- "${__linus_task}")
    exec <"${home}/task"
  else
    __linus_command=("${BASH}" "${home}/task")
  fi
  __linus_command=("$(type -P setsid)" -- "${__linus_command[@]}")
  export LINUS_JOB_ID="${job_id}" LINUS_TASK_FILE="${home}/task"
  unset -v LINUS_ROOT OLDPWD INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID
  if [[ -e ${home}/env ]]; then
    while IFS= read -r -d '' __linus_entry || [[ -n ${__linus_entry} ]]; do
      if [[ ${__linus_entry} != @(_|POSIXLY_CORRECT)=* ]] && unset -v "${__linus_entry%%=*}" 2>/dev/null; then
        export "${__linus_entry?}" 2>/dev/null
      else
        __linus_stubborn+=("${__linus_entry}")
      fi
    done <"${home}/env"
  fi
  exec "${__linus_start[@]}" "${__linus_stubborn[@]}" "${__linus_command[@]}"
}

# --- probe and stop ----------------------------------------------------------

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
  result_line DURATION "${duration}"
  if runner_alive; then result_line RUNNER_ALIVE yes; else result_line RUNNER_ALIVE no; fi
}

# choose_callback sends callbacks to the URL if the server answers there. A
# completion that waits for its next try is told at once.
choose_callback() { # <url>
  is_url "$1" || result_fail invalid "${1@Q} is not a URL" "give http://HOST:PORT"
  if callback_reaches "$1"; then
    publish callback_url "$1"
    wake_runner
    result_line CALLBACK reached
  else
    result_line CALLBACK unreachable
  fi
}

stop_job() { # <TERM|KILL>
  if [[ $1 != TERM && $1 != KILL ]]; then
    result_fail invalid "cannot stop with ${1@Q}" "use TERM or KILL"
  fi
  if [[ -e ${state}/launched && ! -e ${state}/exit_status ]]; then
    publish stop "$1"
    require_settings
    lock_start
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

main() {
  local -r verb=${1:-}
  if [[ ${verb} == run ]]; then
    run_job
    return
  fi
  set -Eeuo pipefail
  shopt -s inherit_errexit
  trap 'result_end "$?"' EXIT
  trap 'result_unexpected "$?" "${LINENO}" "${BASH_COMMAND}"' ERR
  result_begin 0
  case ${verb} in
    start) start_job ;;
    probe) probe_job ;;
    stop) stop_job "${2:-TERM}" ;;
    callback) choose_callback "${2:-}" ;;
    *) result_fail invalid "${verb@Q} is not a command" "use start, run, probe, stop [TERM|KILL] or callback <url>" ;;
  esac
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then main "$@"; fi
