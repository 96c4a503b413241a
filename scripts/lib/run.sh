# shellcheck shell=bash
# Runs other programs: limited in time, with their output kept, and ended when this script is to
# stop.
#
# Every program runs under timeout(1), which puts it into a process group of its own. So a Ctrl-C or
# a hang-up meant for this script never interrupts a qm (which would leave a lock and half a VM
# behind).
#
# Cancellation is state, not a signal: run_stop is empty, or the status to exit with. It is set by
# an operation's file LINUS_STOP (operation.sh), by the trap of a signal sent by hand (script.sh),
# and by nothing else. It is checked after each command and while a read is waited for. A change is
# allowed to finish, a read is ended. Then the script exits, and what it made is undone in one
# place, script_finish, which nothing stops any more (run_stoppable=no).
#
# Answers land in globals, not on stdout:
#   run_rc   exit status (124: out of time)
#   run_out  the first 64 KiB of stdout, trailing newlines off
#   run_said one line of its output, stdout in parentheses after stderr: for people and for
#            matching
#
# Output may be long, and may come from a guest. bash's patterns take a time that grows with the
# square of a text's length, or worse, and no signal is handled meanwhile. So patterns are used only
# on text that was cut. Lists that may be longer are read by lines (run_lines).
#
# Files are read without $( ), too: bash (5.2) parses it again each time, and a trap that comes just
# then is lost, with its signal.
#
# Files of linus belong to root alone (operation.sh). Files of Proxmox do not: others on the host
# read its task logs, and work with its images and locks.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/tools.sh"

run_init() {
  run_sweep
  stat_read "$$"
  run_dir=$(mktemp -d "${TMPDIR:-/tmp}/linus.$$.${stat_start}.XXXXXXXX")
  # shellcheck disable=SC2312 # `:` cannot fail
  exec {run_bell}<> <(:) # a pipe: a line for each read that has ended
  declare -gA run_pids=() run_signals=()
  tools_init
  run_stop=''
  run_stoppable=yes
  run_rc=0
  run_out=''
  run_said=''
}

# Removes what killed runs have left: the directory's name tells whose it is.
run_sweep() {
  local dir pid started
  local -r form='^linus\.([1-9][0-9]*)\.([0-9]+)\.[A-Za-z0-9]{8}$'
  for dir in "${TMPDIR:-/tmp}"/linus.[0-9]*.[0-9]*.*; do
    if [[ ! ${dir##*/} =~ ${form} ]]; then
      continue
    fi
    pid=${BASH_REMATCH[1]} started=${BASH_REMATCH[2]}
    stat_read "${pid}"
    if [[ ${stat_start} != "${started}" && -d ${dir} && ! -L ${dir} && -O ${dir} ]]; then
      rm -rf -- "${dir}"
    fi
  done
}

run_slurp() { # <file>; run_text: its first 64 KiB, trailing newlines off
  local -a lines
  local IFS=$'\n'
  run_text=''
  IFS= read -r -N 65536 run_text <"$1" || :
  if [[ ${run_text} == *$'\n' ]]; then
    run_text=${run_text:0:${#run_text}-1}
  fi
  if [[ ${run_text} != *$'\n' ]]; then # one was cut: most have no more, and this is quicker
    return 0
  fi
  mapfile -t lines <<<"${run_text}"
  local -i count=${#lines[@]}
  while ((count > 0)) && [[ -z ${lines[count - 1]} ]]; do
    count+=-1
  done
  run_text="${lines[*]:0:count}"
}

run_slurp_end() { # <file>, which run_slurp has just read; run_text: all of it, or its first and last 4 KiB
  if ((${#run_text} > 8192)); then
    local -r head=${run_text:0:4096} # both by whole lines
    tail -c 4096 -- "$1" >"${run_dir}/end"
    run_slurp "${run_dir}/end"
    run_text=${head%$'\n'*}$'\n'${run_text#*$'\n'}
  fi
}

run_lines() { # <tag of a finished run>; run_lines: the lines of its stdout, however many
  mapfile -t run_lines <"${run_dir}/$1.out"
}

run_load() { # <tag>
  local out
  run_slurp "${run_dir}/$1.out"
  run_out=${run_text}
  run_slurp_end "${run_dir}/$1.out"
  run_condense "${run_text}" 0 400
  out=${run_gist}
  run_slurp "${run_dir}/$1.err"
  run_slurp_end "${run_dir}/$1.err"
  run_condense "${run_text}" 300 400
  run_said=${run_gist:-${out}}
  if [[ -n ${run_gist} && -n ${out} ]]; then
    run_said+=" (on stdout: ${out})"
  fi
  if ((run_rc == 124)); then
    run_said="no answer in time. ${run_said}"
  fi
}

# The cause of a failure comes last, often after many lines of progress. run_gist: the text in one
# line without progress; if it is longer, its beginning and its end.
run_condense() { # <text of some KiB> <length of the beginning> <length of the end>
  local -r progress='(^|[ :,])transferred:? [0-9.]+ |^ *\(?[0-9.]+(/100)?%|[0-9]% complete'
  local line text=$1
  run_gist=''
  if [[ ${text} != *[%$'\r']* && ${text} != *transferred* && $'\n'${text} != *$'\n\n'* ]]; then # most have no progress
    run_gist=${text//$'\n'/ } text=''
  fi
  while [[ -n ${text} ]]; do
    line=${text%%$'\n'*}
    text=${text:${#line}+1}
    line=${line##*$'\r'}
    if [[ -n ${line} && ! ${line} =~ ${progress} ]]; then
      run_gist+="${run_gist:+ }${line}"
    fi
  done
  if ((${#run_gist} > $2 + $3)); then
    run_gist="${run_gist:0:$2}... ${run_gist: -$3}"
  fi
  run_gist=${run_gist//[[:cntrl:]]/ }
}

# Ends the script if it is to stop.
run_exit_if_stopped() {
  if run_is_stopped; then
    exit "${run_stop}"
  fi
}

run_is_stopped() {
  if [[ -z ${run_stop} && -n ${LINUS_STOP:-} && -e ${LINUS_STOP} ]]; then
    run_stop=143
  fi
  [[ ${run_stoppable} == yes && -n ${run_stop} ]]
}

# Runs a command that changes something. The command is always allowed to finish, so that the
# roll-back never works against one that still runs.
run_change() { # <seconds> <command...>
  local -r seconds=$1
  shift
  log_info "run: ${*@Q}"
  local run_guard=''
  if [[ ${run_guarded:-} == guard && -n ${vm_digest:-} ]]; then
    run_guard="${LINUS_PVE_DIR:-/etc/pve}/qemu-server/${vm_asked}.conf ${vm_digest}"
  fi
  run_rc=0
  tools_asked=no
  if tools_can "$1"; then
    run_forget change
    tools_ask change "${seconds}" 30 "$@"
  fi
  if [[ ${tools_asked} == yes ]]; then
    while run_lives change; do
      IFS= read -r -t 0.2 -u "${run_bell}" _ || :
    done
    run_slurp "${run_dir}/change.rc"
    run_rc=${run_text:-137}
  else
    (
      umask 022
      run_let_go
      run_hold_guard || exit
      exec timeout -k 30 "${seconds}" "$@" <"${run_stdin:-/dev/null}"
    ) >"${run_dir}/change.out" 2>"${run_dir}/change.err" || run_rc=$?
  fi
  run_load change
  if ((run_rc != 0)); then
    log_warn "exit ${run_rc}: ${run_said}"
  fi
  run_exit_if_stopped
}

# Does what the tool server does before a call: run_guard is empty, or a file and the sha1 that it
# must still have.
run_hold_guard() {
  local sum=''
  if [[ -z ${run_guard:-} ]]; then
    return 0
  fi
  # shellcheck disable=SC2312 # a file that cannot be read has no sum
  read -r sum _ < <(sha1sum <"${run_guard% *}") || :
  if [[ ${sum} != "${run_guard##* }" ]]; then
    printf 'linus: %s has changed since it was read: not begun\n' "${run_guard% *}" >&2
    return 75
  fi
}

# Descriptors 4 to 9 are locks (lease.sh, slot.sh, address.sh, sweep.sh, egress.sh, image.sh,
# destroy.sh): a command that outlives a killed script must not hold a lock under which nobody works
# any more.
run_let_go() { # closes all but run_kept
  local fd
  for fd in 4 5 6 7 8 9; do
    if [[ ${fd} != "${run_kept:-}" ]]; then
      exec {fd}>&-
    fi
  done
}

# Commands that only read run beside the script, several at once where asked for, because each start
# of Proxmox's tools takes most of a second. Each has a shell that notes how it ended, because
# bash's own wait (5.2) can lose that to a signal.
#
# A function can be such a command, too. Its time limit needs no program: its end of a pipe closes
# when it ends. It is ended by KILL, so it may only read, and may start programs only with
# run_alone.
#
# Proxmox's commands go to the tool server, if there is one (lib/tools.sh).
run_start() { # <tag> <seconds> <command...>
  tools_asked=no
  run_forget "$1"
  if tools_can "$3"; then
    tools_ask "$1" "$2" 5 "${@:3}"
  fi
  if [[ ${tools_asked} == no ]]; then
    run_start_plain "$1" "$2" 5 "${@:3}"
  fi
}

run_forget() { # <tag>
  local kind
  for kind in pid rc out err; do # a call that was killed as it began has none
    : >"${run_dir}/$1.${kind}"
  done
  unset "tools_since[$1]" "run_pids[$1]"
}

run_start_plain() { # <tag> <seconds> <seconds from TERM to KILL> <command...>
  local -r tag=$1 seconds=$2 grace=$3
  shift 3
  unset "tools_since[${tag}]"
  run_signals[${tag}]=TERM
  if declare -F "$1" >/dev/null; then
    run_signals[${tag}]=KILL
  fi
  {
    trap '' HUP INT TERM
    run_let_go
    exec {run_ended}>"${run_dir}/${tag}.rc" # the name may be another script's when this one has gone
    umask 022
    run_rc=0
    run_hold_guard 2>"${run_dir}/${tag}.err" || run_rc=$?
    if ((run_rc == 0)) && [[ ${run_signals[${tag}]} == KILL ]]; then
      run_watch "$@"
    elif ((run_rc == 0)); then
      timeout -k "${grace}" "${seconds}" "$@" <"${run_stdin:-/dev/null}" >"${run_dir}/${tag}.out" 2>"${run_dir}/${tag}.err" {run_ended}>&- &
      printf '%s' "$!" >"${run_dir}/${tag}.pid"
      wait "$!" || run_rc=$?
    fi
    printf '%s' "${run_rc}" >&"${run_ended}"
    printf '\n' >&"${run_bell}"
  } >/dev/null 2>&1 &
  run_pids[${tag}]=$!
}

# The function's end of a pipe tells when it has ended, and bash's wait tells how. Of a process
# substitution that would be lost, one time in a thousand (5.2).
run_watch() { # <function> <argument...>; run_start's tag and seconds; run_rc
  local pipe end begun
  exec {pipe}<<<'' # bash (5.1) makes a pipe for this, and starts no shell
  IFS= read -r -u "${pipe}" _
  exec {end}<"/proc/self/fd/${pipe}" {begun}>"/proc/self/fd/${pipe}" {pipe}<&-
  {
    exec {end}<&-
    "$@"
  } >"${run_dir}/${tag}.out" 2>"${run_dir}/${tag}.err" &
  printf '%s' "$!" >"${run_dir}/${tag}.pid"
  exec {begun}>&-
  IFS= read -r -t "${seconds}" -u "${end}" _ || run_rc=$?
  if ((run_rc > 128)); then
    kill -KILL "$!"
    run_rc=124
  else
    run_rc=0
    wait "$!" || run_rc=$?
  fi
}

run_alone() { # <program...>: a program without children; for run_start
  exec "$@"
}

run_wait() { # <tag>
  run_await "$1"
  run_slurp "${run_dir}/$1.rc"
  run_rc=${run_text:-137} # it was killed with its shell
  run_load "$1"
}

run_await() { # <tag>
  while run_lives "$1"; do
    if run_is_stopped; then
      run_end "$1"
    fi
    IFS= read -r -t 0.2 -u "${run_bell}" _ || :
  done
  unset "run_pids[$1]" "tools_since[$1]"
  run_exit_if_stopped
}

run_lives() { # <tag>
  if [[ -n ${tools_since[$1]:-} ]]; then
    tools_see "$1"
    if [[ ${tools_seen} == untaken ]]; then
      run_guard=${tools_call[8]} run_stdin=${tools_call[6]} run_start_plain "$1" "${tools_call[4]}" "${tools_call[5]}" "${tools_call[@]:10+tools_call[9]}"
    fi
    [[ ${tools_seen} != ended ]] # no return: in a trap it returns the status from before the trap
  else
    [[ -n ${run_pids[$1]:-} && ! -s ${run_dir}/$1.rc ]] && kill -0 "${run_pids[$1]}" 2>/dev/null
  fi
}

run_end() { # <tag>
  if [[ -n ${tools_since[$1]:-} ]]; then
    tools_end "$1"
    return 0
  fi
  run_slurp "${run_dir}/$1.pid"
  if [[ -n ${run_text} ]]; then
    kill -"${run_signals[$1]}" "${run_text}" 2>/dev/null || :
  fi
}

# Ends the reads still under way when the script exits. Processes left by one of them may still
# write, so the reads from now on have files of their own.
run_abandon() {
  local tag
  for tag in "${!run_pids[@]}" "${!tools_since[@]}"; do
    while run_lives "${tag}"; do
      run_end "${tag}"
      IFS= read -r -t 0.2 -u "${run_bell}" _ || :
    done
  done
  run_pids=() tools_since=()
  if [[ -n ${run_stop:-} ]]; then
    rm -f -- "${run_dir}"/*.{out,err}
  fi
}

run_pause() { # <seconds>: run_rc and the other results stay as they are
  local end slice
  if [[ -n ${LINUS_SLEEP:-} ]]; then # set by tests: `:`, or a program
    "${LINUS_SLEEP}" "$1" || :
    run_exit_if_stopped
    return 0
  fi
  clock_read
  printf -v end '%.0f' "$1e2"
  end=$((clock_now + end))
  while ((clock_now < end)) && ! run_is_stopped; do
    printf -v slice '0.%02d' "$((end - clock_now < 20 ? end - clock_now : 20))"
    IFS= read -r -t "${slice}" -u "${run_bell}" _ || :
    clock_read
  done
  run_exit_if_stopped
}

# Waits for a lock on a descriptor of this script. The script keeps the lock.
run_lock() { # <seconds> <descriptor>; run_rc
  local run_kept=$2
  run_read "$1" run_alone flock "$2"
}

run_read() { # <seconds> <command...>
  run_start read "$@"
  run_wait read
}

# Asks Proxmox a question. A node under load may not answer in time, which says nothing about what
# was asked, so the question is asked again, twice at most.
run_ask() { # <command...>
  run_read 60 "$@"
  run_ask_again read "$@"
}

run_ask_again() { # <tag of a finished run> <command...>
  local -r tag=$1
  local -i tries=1
  shift
  while ((run_rc == 124 && tries < 3)); do
    tries+=1
    log_info "no answer in time: ask ${tries} of 3: ${*@Q}"
    rm -f -- "${run_dir}/${tag}".{out,err}
    run_start "${tag}" 60 "$@"
    run_wait "${tag}"
  done
}

run_clean() {
  if [[ -n ${run_dir:-} ]]; then
    rm -rf -- "${run_dir}"
  fi
}
