# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # clock_now is clock.sh's
# Identifies processes so that a recycled pid is never mistaken for one of them, and finds the whole
# tree of a job's task. It reads /proc with builtins only, because a fork costs much more than a
# read on an emulated guest.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/stat.sh"

# process_as_root runs a command as root: directly, or by sudo, which must not ask for a password.
process_as_root() { # <command...>
  if ((EUID == 0)); then "$@"; else sudo -n -- "$@"; fi
}

# process_alive tells whether the process that had <pid> when it started at <start> still runs.
process_alive() { # <pid> <start>
  [[ $1 == [1-9]* ]] || return 1
  stat_read "$1"
  [[ -n ${stat_start} && ${stat_start} == "$2" ]]
}

# process_has_job tells whether a process was started with LINUS_JOB_ID=<job>.
process_has_job() { # <pid> <job_id>
  local -a entries
  { mapfile -d '' -t entries <"/proc/$1/environ"; } 2>/dev/null || return 1
  local IFS=$'\n'
  [[ $'\n'"${entries[*]}"$'\n' == *$'\n'"LINUS_JOB_ID=$2"$'\n'* ]]
}

# process_find_tree fills process_tree, an array whose indices are the pids of the job's task, and
# so in order: all processes in its cgroup (when it has one), all in its sessions, all that carry
# its job id, and their descendants. Without a cgroup, a process that took a session of its own,
# dropped its environment and lost its parent is not found.
process_find_tree() { # <job_id> <sessions, blanks between> <cgroup directory, or empty>
  local -r job_id=$1 sessions=" $2 " cgroup=$3
  local -A parents=()
  local entry pid file grew
  process_tree=()
  if [[ -n ${cgroup} ]]; then
    shopt -s globstar
    for file in "${cgroup}"/**/cgroup.procs; do
      while read -r pid; do
        # 0 is a process of another pid namespace, which only cgroup.kill reaches.
        [[ ${pid} == 0 ]] || process_tree["${pid}"]=1
      done 2>/dev/null <"${file}"
    done
  fi
  for entry in /proc/[0-9]*; do
    pid=${entry#/proc/}
    stat_read "${pid}"
    if [[ -z ${stat_start} ]]; then
      unset "process_tree[${pid}]"
      continue
    fi
    parents["${pid}"]=${stat_parent}
    if [[ ${sessions} == *" ${stat_session} "* ]] || process_has_job "${pid}" "${job_id}"; then
      process_tree["${pid}"]=1
    fi
  done
  grew=yes
  while [[ -n ${grew} ]]; do
    grew=
    for pid in "${!parents[@]}"; do
      if [[ -z ${process_tree["${pid}"]:-} && -n ${process_tree["${parents["${pid}"]}"]:-} ]]; then
        process_tree["${pid}"]=1
        grew=yes
      fi
    done
  done
  # Never the caller itself: a task may run the runner's own commands.
  unset "process_tree[$$]" "process_tree[${BASHPID}]"
}

# process_signal_tree sends a signal to the processes that process_find_tree found, except those of
# one session. Parents come before their children, because a shell that outlives the command it
# waits for would run its next one. A task may have become another user by sudo; then the signal is
# sent by sudo, too.
process_signal_tree() { # <signal> [<session>]
  local pid
  for pid in "${!process_tree[@]}"; do
    stat_read "${pid}"
    [[ -z ${2:-} || ${stat_session} != "$2" ]] || continue
    kill -s "$1" -- "${pid}" 2>/dev/null || [[ ! -e /proc/${pid} ]] \
      || process_as_root kill -s "$1" -- "${pid}" 2>/dev/null || true
  done
}

# process_end_tree ends the whole tree: it sends the signal and, unless that is KILL, waits up to 5
# s; then it sends KILL until nothing is left. <spared> is a session that is to end by itself and
# gets only KILL. False when something still lives after 10 s of KILL, which only a process stuck in
# the kernel does.
process_end_tree() { # <job_id> <sessions> <cgroup> <signal> [<spared>]
  local -r cgroup=$3
  local -i deadline
  declare -ga process_tree=()
  process_find_tree "$1" "$2" "${cgroup}"
  ((${#process_tree[@]} > 0)) || return 0
  if [[ $4 != KILL ]]; then
    process_signal_tree "$4" "${5:-}"
    clock_read
    deadline=$((clock_now + 500))
    while ((clock_now < deadline)); do
      sleep 0.1
      process_find_tree "$1" "$2" "${cgroup}"
      ((${#process_tree[@]} > 0)) || return 0
      clock_read
    done
  fi
  clock_read
  deadline=$((clock_now + 1000))
  while ((clock_now < deadline)); do
    if [[ -n ${cgroup} && -w ${cgroup}/cgroup.kill ]]; then
      printf '1\n' >"${cgroup}/cgroup.kill" || true
    fi
    process_signal_tree KILL
    process_find_tree "$1" "$2" "${cgroup}"
    ((${#process_tree[@]} > 0)) || return 0
    sleep 0.1
    clock_read
  done
  return 1
}
