# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # settings, places and state are the runner's
# The supervisor of a job, from the task's start to the report of its end. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/callback.sh"
source "${BASH_SOURCE[0]%/*}/process.sh"
source "${BASH_SOURCE[0]%/*}/task.sh"

# run_job brings the job to its end from whatever state it is in. It runs without errexit: whatever
# fails on the way, the end must be recorded and reported. With arguments it first waits for begin,
# for as long as that process lives.
run_job() { # [<pid> <start>]
  umask 077
  close_inherited
  read_boot_id
  exec {run_lock}>"${state}/run.lock"
  # The last runner's children may hold the lock for a moment longer than the runner lived.
  flock -w 5 "${run_lock}" || {
    log_info "another runner is in charge of this job"
    return 0
  }
  stat_read "$$"
  exec {control}<>"${state}/control"
  publish runner "$$ ${stat_start} ${boot_id}"
  (($# == 0)) || await_begin "$@" || return 0
  settings_load || {
    log_error "${home}/settings: ${settings_error}"
    return 1
  }
  [[ -e ${state}/exit_status ]] || supervise_task
  [[ -z ${callback_url} || -e ${state}/completion ]] || callback_complete
}

# await_begin returns when there is something to begin, and false when nobody is left who could have
# it begin.
await_begin() { # <pid> <start>
  task_make_cgroup
  until [[ -e ${state}/begin ]]; do
    process_alive "$1" "$2" || [[ -e ${state}/begin ]] || return
    pause 200
  done
}

# close_inherited closes whatever was open where start was called, because somebody may be waiting
# for its end. 255 is bash's own descriptor, the script.
close_inherited() {
  local path fd
  for path in "/proc/$$/fd"/*; do
    fd=${path##*/}
    ((fd < 3 || fd == 255)) || exec {fd}>&-
  done
}

# supervise_task starts the task, or takes it over from a runner that died, and
# records how it ended.
supervise_task() {
  local boot='' launched=0 started=0 session='' inner='' spared='' reporter='' code reason detail signal=TERM ended
  if [[ ! -e ${state}/launched ]]; then
    : >"${state}/stdout"
    : >"${state}/stderr"
    if [[ ${stdin} == open ]]; then
      : >"${state}/stdin"
      [[ -p ${state}/bell ]] || mkfifo -m 0600 "${state}/bell"
    fi
    clock_read
    task_make_cgroup
    publish launched "${boot_id} ${clock_now} ${EPOCHSECONDS} ${cgroup}"
    task_hold &
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
  [[ ${reason} != stopped ]] || signal=$(<"${state}/stop")
  { read -r inner <"${state}/session"; } 2>/dev/null
  # The holder of the task's terminal ends when the task does, and then tells its exit code.
  [[ -z ${inner} || ${inner} == "${session}" ]] || spared=${session}
  process_end_tree "${job_id}" "${session} ${inner}" "${cgroup}" "${signal}" "${spared}" \
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

# await_file gives the task's parent 10 s to write a file that is due.
await_file() { # <name>
  clock_read
  local -ri deadline=$((clock_now + 1000))
  until [[ -e ${state}/$1 ]] || ((clock_now >= deadline)); do
    pause 10
    clock_read
  done
}

# note_full_disk records that there is no room. What the task prints then is lost, and nobody else
# notices, because the task writes to its files itself. Each time, blocks are taken and given back,
# without a process for it.
note_full_disk() {
  local full=''
  [[ ! -e ${state}/full ]] || return 0
  { printf '%8192s' '' >"${state}/room"; } 2>/dev/null || full=yes
  : >"${state}/room"
  [[ -n ${full} ]] || return 0
  publish full "${clock_now}"
  log_warn "the disk is full: what the task prints may be lost"
}

# watch_task returns when the task has to end or has ended. It sets reason and detail.
watch_task() { # <deadline, uptime in 1/100 s>
  local -r deadline=$1
  local pid='' start=''
  { read -r pid start _ <"${state}/task"; } 2>/dev/null
  reason='' detail=''
  while :; do
    clock_read
    note_full_disk
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
  [[ ! -e ${tmpfs}/secrets ]] || rm -f -- "${tmpfs}/secrets" # a task that never ran has not read them
}
