# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154,SC2034 # state is the runner's; task_stdin is task_hold's
# A task's open stdin: what is sent is kept in the state's file stdin, at its offset, so that
# sending it again changes nothing, and flows from there to the task. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/result.sh"

# stdin_feed sets task_stdin to a descriptor that reads what has been and will be kept, and ends
# once stdin is closed and all was read. Call it in the task's parent, which reaps the process that
# waits for the close: the reader of the file ends when that process is gone, and a zombie is not
# gone.
stdin_feed() {
  local -r parent=${BASHPID} # in the next line it is another
  stdin_await_close "${parent}" &
  local -r waiter=$!
  exec {task_stdin}< <(
    trap - TERM INT HUP QUIT PIPE
    exec tail -c +1 -f -s 0.1 --pid="${waiter}" -- "${state}/stdin" 2>/dev/null
  )
}

# stdin_await_close returns when stdin is closed or the process is gone.
stdin_await_close() { # <pid>
  local bell
  exec {bell}<>"${state}/bell"
  until [[ -e ${state}/stdin_closed || ! -d /proc/$1 ]]; do
    IFS= read -r -n 1 -t 1 -u "${bell}" _ || true
  done
}

# stdin_lock lets one process at a time change what is kept.
stdin_lock() {
  [[ -e ${state}/stdin ]] || result_fail invalid "the stdin of this job's task is closed" "submit the job with stdin open"
  exec {stdin_lock}>"${state}/stdin.lock"
  flock -w 30 "${stdin_lock}" || result_fail vm "somebody has held ${state}/stdin.lock for 30 s" "try again"
}

# stdin_take keeps what comes on this process's stdin as what follows the first <offset> bytes. What
# is kept already is skipped; a gap is refused.
stdin_take() { # <offset>
  local sizes size held error write read
  [[ $1 =~ ^(0|[1-9][0-9]{0,14})$ ]] || result_fail invalid "${1@Q} is not an offset" "give the count of bytes sent before"
  # All input is read first: a sender that falls silent half-way must not hold the lock. The file
  # loses its name before it is filled, so that it cannot be left over.
  exec {write}>"${state}/input.$$" {read}<"${state}/input.$$"
  rm -f -- "${state}/input.$$"
  cat >&"${write}"
  stdin_lock
  sizes=$(stat -L -c %s -- "/proc/self/fd/${read}" "${state}/stdin")
  size=${sizes%$'\n'*} held=${sizes#*$'\n'}
  if (($1 > held)); then
    result_line STDIN_BYTES "${held}"
    result_fail invalid "input at offset $1, and only ${held} bytes are held" "send what is missing first"
  fi
  if (($1 + size > held)); then
    [[ ! -e ${state}/task_status && ! -e ${state}/exit_status ]] || result_fail invalid "the task has ended" "read its output"
    [[ ! -e ${state}/stdin_closed ]] || result_fail invalid "the stdin of this job's task was closed" "send nothing more"
    error=$(tail -c "+$((held - $1 + 1))" 2>&1 <&"${read}" >>"${state}/stdin") \
      || result_fail vm "cannot keep the input: ${error}" "free some space on the VM's disk, and send it again"
    held=$(($1 + size))
  fi
  result_line STDIN_BYTES "${held}"
}

# stdin_close lets the task read the end once it has read what is kept.
stdin_close() {
  stdin_lock
  local held
  held=$(stat -c %s -- "${state}/stdin")
  if [[ ! -e ${state}/stdin_closed ]]; then
    publish stdin_closed "${held}"
    printf . 1<>"${state}/bell"
  fi
  result_line STDIN_BYTES "${held}"
}

stdin_tell() {
  [[ -e ${state}/stdin ]] || return 0
  local held closed=no
  held=$(stat -c %s -- "${state}/stdin")
  [[ ! -e ${state}/stdin_closed ]] || closed=yes
  result_line STDIN_BYTES "${held}"
  result_line STDIN_CLOSED "${closed}"
}
