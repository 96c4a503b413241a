# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # settings, places and state are the runner's
# Starts a job's supervisor, for a job that is here or still to come. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/files.sh"
source "${BASH_SOURCE[0]%/*}/follow.sh"
source "${BASH_SOURCE[0]%/*}/repository.sh"

nobody='' # the descriptor that nap reads

start_job() {
  local tool
  require_settings
  for tool in setsid flock mkfifo stat dd install env ${tty:+script stty}; do
    type -P "${tool}" >/dev/null || result_fail dependency "${tool} is missing in the guest" "install coreutils and util-linux"
  done
  ! settings_need_sudo || process_as_root true \
    || result_fail dependency "the task is to run as root, and the login user may not use sudo without a password" "allow that in the VM's template, or submit the job without sudo"
  [[ -z ${callback_url} ]] || type -P curl >/dev/null \
    || result_fail dependency "curl is missing in the guest" "install curl, or submit the job without callbacks"
  prepare_state
  lock_start
  [[ ! -e ${state}/stop || -e ${state}/launched ]] || result_fail vm "the task was stopped before it started" "submit the job again"
  if [[ -e ${state}/launched ]] && runner_alive; then
    wake_runner
    result_line JOB_START already_running
  elif [[ -e ${state}/exit_status && (-z ${callback_url} || -e ${state}/completion) ]]; then
    result_line JOB_START already_finished
  elif [[ -e ${state}/launched ]]; then
    detach_runner
    result_line JOB_START resumed
  else
    files_check_env
    repository_install
    files_install
    require_directory
    begin_job
    result_line JOB_START started
  fi
  local boot
  read -r boot _ <"${state}/launched"
  result_line BOOT_ID "${boot}"
  # The secrets were sent again to a task that has read them already.
  [[ ! -e ${state}/session && ! -e ${state}/exit_status ]] || rm -f -- "${tmpfs}/secrets"
}

# launch_job prints the answer of start and, if that succeeded, the task's output and the answer of
# ended.
launch_job() {
  local status
  (answer start)
  status=$?
  ((status == 0)) || return "${status}"
  settings_load
  follow_task || return 0
  (answer ended)
}

# wait_job starts the job's runner, which waits before there is a job. Descriptor 7 holds the lock
# of the place. Another process that is to use the place ends this one first.
wait_job() {
  local status
  (answer prepare)
  status=$?
  ((status == 0)) || return "${status}"
  files_take || return
  exec 7>&-
  (answer placed) && IFS= read -r _ && launch_job
}

# prepare_job starts the runner of a job that is still to come.
prepare_job() {
  job_id=waits-${LINUS_NONCE:-$$}
  prepare_state
  lock_start
  read_runner
  stat_read "$$"
  detach_runner "$$" "${stat_start}"
  result_line WAITING yes
}

# begin_job has the runner that waits in this place begin, or starts a runner.
begin_job() {
  local -i deadline
  : >"${state}/begin"
  wake_runner
  clock_read
  deadline=$((clock_now + 6000))
  while [[ ! -e ${state}/launched ]] && runner_alive && ((clock_now < deadline)); do
    nap
    clock_read
  done
  [[ -e ${state}/launched ]] || detach_runner
}

require_directory() {
  [[ -z ${cwd} || -d ${cwd} ]] || { settings_need_sudo && process_as_root test -d "${cwd}"; } \
    || result_fail invalid "cwd: ${cwd} is not a directory in the VM" "create it first, or leave cwd out"
}

# lock_start lets one process at a time decide whether a runner is needed.
lock_start() {
  exec {start_lock}>"${state}/lock"
  flock -w 60 "${start_lock}" || result_fail vm "another start has held ${state}/lock for 60 s" "try again"
}

prepare_state() {
  if [[ ! -d ${state} || ! -w ${state} || ! -O ${state} ]]; then # linus makes it when it puts the job there
    { mkdir -p -- "${state}" 2>/dev/null && [[ -w ${state} ]]; } \
      || process_as_root install -d -o "${EUID}" -g "${GROUPS[0]}" -- "${state}" \
      || result_fail invalid "cannot make ${state}" "let the login user use sudo without a password"
    chmod 0700 "${state}"
  fi
  [[ -p ${state}/control ]] || mkfifo -m 0600 "${state}/control"
  local name
  for name in runner launched task session task_status exit_status completion full; do
    [[ -e ${state}/${name} || -e ${state}/${name}.new ]] || printf '%255s\n' '' >"${state}/${name}.new"
  done
}

# detach_runner starts `run` beyond the reach of the SSH session's end, after runner_alive said no,
# and waits until a runner is up and the task is on record: from then on probe knows it. Under
# systemd the runner gets a unit, and with it a cgroup to hold the task. KillMode=process and
# Restart: a runner that dies leaves the task running, and its successor takes it over. With
# arguments the runner waits for begin, for as long as that process lives.
detach_runner() { # [<pid> <start>]
  local name
  local -a environment=("HOME=${HOME:-/}" "PATH=${HOME:-}/.local/bin:${PATH}")
  for name in USER LOGNAME SHELL LANG LC_ALL TZ \
    http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!name:-} ]] || environment+=("${name}=${!name}")
  done
  local -a unit_options=(--quiet --collect "--unit=linus-job-${job_id}.service" "--uid=${EUID}" "--gid=${GROUPS[0]}"
    -p KillMode=process -p Delegate=yes -p Restart=on-failure -p RestartSec=1 -p OOMPolicy=continue
    -p TasksMax=infinity -p EnvironmentFile=-/etc/environment
    -p "StandardOutput=append:${state}/runner.log" -p "StandardError=append:${state}/runner.log")
  : >>"${state}/runner.log"
  if [[ ! -d /run/systemd/system ]] \
    || ! process_as_root systemd-run "${unit_options[@]}" "${environment[@]/#/--setenv=}" -- "${BASH}" "${script}" run "$@" >&2; then
    env -i "${environment[@]}" setsid "${BASH}" "${script}" run "$@" {start_lock}>&- </dev/null >>"${state}/runner.log" 2>&1 &
  fi
  local -i deadline
  clock_read
  deadline=$((clock_now + 6000))
  local -r dead=${runner_seen}
  while [[ ${runner_seen} == "${dead}" || ($# == 0 && ! -e ${state}/launched) ]]; do
    clock_read
    ((clock_now < deadline)) || result_fail vm "the job runner did not come up in 60 s" "read ${state}/runner.log in the guest"
    nap
    read_runner
  done
}

# nap sleeps for 1/100 s without starting a process: nobody writes to what it reads.
nap() {
  # shellcheck disable=SC2312
  [[ -n ${nobody} ]] || exec {nobody}<> <(:)
  read -r -t 0.01 -u "${nobody}" _ || true
}
