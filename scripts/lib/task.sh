# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # settings, places and descriptors are the runner's
# The task as a process: the parent that waits for it; the way into its cgroup, terminal and root's
# rights; and the last step, which becomes the task. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/settings.sh"
source "${BASH_SOURCE[0]%/*}/stat.sh"
source "${BASH_SOURCE[0]%/*}/stdin.sh"

# task_make_cgroup sets cgroup to a cgroup for the task alone, beside the runner in its unit's;
# empty if there is no such unit or no cgroup v2.
task_make_cgroup() {
  local line root
  cgroup=''
  while IFS= read -r line; do
    [[ ${line} == 0::*/linus-job-*.service ]] || continue
    for root in /sys/fs/cgroup /sys/fs/cgroup/unified; do
      [[ -w ${root}${line#0::}/cgroup.procs ]] || continue
      [[ -d ${root}${line#0::}/task ]] || mkdir -- "${root}${line#0::}/task" || continue
      cgroup=${root}${line#0::}/task
    done
  done </proc/self/cgroup
}

# task_hold is the task's parent. It outlives a killed runner, so that neither the exit status nor
# the way to the task's stdin is lost with the runner. It is not in the task's cgroup or session, so
# it is not killed with them either.
task_hold() {
  trap '' TERM INT HUP QUIT PIPE
  # Closed here and not by the call's redirections, because bash keeps copies of those open.
  exec {control}>&- {run_lock}>&-
  local status task_stdin holder=${BASHPID} # not read-only: the task's env may have these names
  stat_read "${holder}"
  local holder_start=${stat_start}
  if [[ ${stdin} == open ]]; then
    stdin_feed
  else
    exec {task_stdin}</dev/null
  fi
  task_enter <&"${task_stdin}" >"${state}/stdout" 2>"${state}/stderr" &
  local -r task=$!
  publish task "${holder} ${holder_start} ${task}"
  wait "${task}"
  status=$?
  clock_read
  publish task_status "${status} ${clock_now}"
  wake_runner
}

# task_enter goes to where the task is to run, in a session of its own, as root and in a terminal if
# these are asked for, and becomes the task. sudo would not pass on the job's env, and a terminal's
# command passes through a shell, so both start the runner again, which then becomes the task. The
# terminal is within sudo: a sudo inside it would make another of its own, and lose an end of input
# that comes meanwhile.
task_enter() {
  trap - TERM INT HUP QUIT PIPE
  exec {task_stdin}<&-
  task_join_cgroup
  umask 022
  cd -- "${HOME}" || cd / || exit 126
  if [[ -z ${tty} ]] && ! settings_need_sudo; then
    task_become "${BASHPID}" setsid --
  fi
  local -a command=("${BASH}" "${script}" task)
  local line
  if [[ -n ${tty} ]]; then
    printf -v line '%q ' exec "${command[@]}"
    command=(script -q -e -c "${line}" /dev/null)
  fi
  ! settings_need_sudo || command=(sudo -n -- "${command[@]}")
  exec setsid -- "${command[@]}"
}

task_join_cgroup() {
  [[ -z ${cgroup} ]] || printf '%d\n' "${BASHPID}" >"${cgroup}/cgroup.procs"
}

# task_become turns this process into the task: in its directory, with its env and secrets, every
# signal at its default. Whatever the env holds, even variables of bash's own, arrives as given:
# names that bash cannot unset pass through env(1) instead.
task_become() { # <its session> [<command that starts it>...]
  umask 022
  if [[ -n ${tty} ]]; then
    stty rows "${tty%x*}" cols "${tty#*x}" echo
    export TERM=xterm-256color
  fi
  [[ -z ${cwd} ]] || cd -- "${cwd}" || exit 126
  local __linus_entry
  local -a __linus_command __linus_entries=() __linus_stubborn=() __linus_start
  task_command
  __linus_start=("${@:2}" "$(type -P env)" --default-signal)
  [[ ! -e ${home}/env ]] || mapfile -d '' -t __linus_entries <"${home}/env"
  [[ ! -e ${tmpfs}/secrets ]] || mapfile -d '' -t -O "${#__linus_entries[@]}" __linus_entries <"${tmpfs}/secrets"
  [[ ! -e ${tmpfs}/secrets ]] || rm -f -- "${tmpfs}/secrets"
  publish session "$1"
  export LINUS_JOB_ID="${job_id}" LINUS_TASK_FILE="${home}/task"
  unset -v OLDPWD INVOCATION_ID JOURNAL_STREAM SYSTEMD_EXEC_PID
  for __linus_entry in "${__linus_entries[@]}"; do
    if [[ ${__linus_entry} != @(_|POSIXLY_CORRECT)=* ]] && unset -v "${__linus_entry%%=*}" 2>/dev/null; then
      export "${__linus_entry?}" 2>/dev/null
    else
      __linus_stubborn+=("${__linus_entry}")
    fi
  done
  exec "${__linus_start[@]}" "${__linus_stubborn[@]}" "${__linus_command[@]}"
}

# task_again is the runner on the other side of sudo or a terminal.
task_again() {
  settings_load || {
    log_error "${home}/settings: ${settings_error}"
    exit 126
  }
  # A login through PAM, which sudo may make, can have moved this process.
  IFS=' ' read -r _ _ _ cgroup <"${state}/launched"
  task_join_cgroup
  stat_read "$$"
  task_become "${stat_session}"
}

# task_command sets __linus_command to the command that runs the task. A command, given as words
# (exec) or as text for the shell, reads the task's text on stdin, unless stdin is open for others.
task_command() {
  local text=''
  if [[ ${agent} == exec ]]; then
    mapfile -d '' -t __linus_command <"${home}/command"
    exec <"${home}/task"
  elif [[ -f ${home}/command ]]; then
    IFS= read -r -d '' text <"${home}/command"
    __linus_command=("${BASH}" -c -- "${text}")
    [[ ${stdin} == open || -n ${tty} ]] || exec <"${home}/task"
  else
    __linus_command=("${BASH}" "${home}/task")
  fi
}
