# shellcheck shell=bash
# Running other programs: bounded in time, their words kept, signals handled.
#
# Every program runs under timeout(1), which puts it into a process group of
# its own. A Ctrl-C or a hang-up meant for this script therefore never cuts a
# qm in the middle (which would leave a lock and half a VM behind).
#
# Answers land in globals, not on stdout: a $( ) around a qm would die of the
# signal while its qm ran on.
#   run_rc   exit status (124: out of time)
#   run_out  the first 64 KiB of stdout, trailing newlines off
#   run_said one line of what it said, stderr first: for people and for matching
#
# What is said may be long, and come from a guest. bash's patterns take a time that
# grows with the square of a text's length, or worse, and hear no signal meanwhile:
# no pattern is used on a text that was not cut. Lists that may be longer are
# read by lines (run_lines).
#
# Files are read without $( ), too: bash (5.2) parses one anew each time, and a
# trap that comes just then is lost, and its signal with it.

run_init() {
  run_sweep
  stat_read "$$"
  run_dir=$(mktemp -d "${TMPDIR:-/tmp}/linus.$$.${stat_start}.XXXXXXXX")
  declare -gA run_pids=()
  run_rc=0
  run_out=''
  run_said=''
}

# What a killed run has left goes with the next one: the directory's name tells
# whose it is.
run_sweep() {
  local dir pid started
  for dir in "${TMPDIR:-/tmp}"/linus.[0-9]*.[0-9]*.*; do
    IFS=. read -r _ pid started _ <<<"${dir##*/}"
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
  mapfile -t lines <<<"${run_text}"
  local -i count=${#lines[@]}
  while ((count > 0)) && [[ -z ${lines[count - 1]} ]]; do
    count+=-1
  done
  run_text="${lines[*]:0:count}"
}

run_slurp_end() { # <file>; run_text: all of it, or its first and last 4 KiB
  run_slurp "$1"
  if ((${#run_text} > 8192)); then
    local -r head=${run_text:0:4096} # and both by whole lines
    tail -c 4096 -- "$1" >"${run_dir}/end"
    run_slurp "${run_dir}/end"
    run_text=${head%$'\n'*}$'\n'${run_text#*$'\n'}
  fi
}

run_lines() { # <tag of a finished run>; run_lines: the lines of its stdout, whatever their number
  mapfile -t run_lines <"${run_dir}/$1.out"
}

run_load() { # <tag>
  local out
  run_slurp "${run_dir}/$1.out"
  run_out=${run_text}
  run_slurp_end "${run_dir}/$1.out"
  run_condense "${run_text}" 0 400
  out=${run_gist}
  run_slurp_end "${run_dir}/$1.err"
  run_condense "${run_text}" 300 400
  run_said=${run_gist}${out:+${run_gist:+ }${out}}
  if ((run_rc == 124)); then
    run_said="no answer in time. ${run_said}"
  fi
}

# The cause of a failure stands last, often after many lines of progress.
# run_gist: the text in one line without them; where it is longer, its beginning and its end.
run_condense() { # <text of some KiB> <length of the beginning> <length of the end>
  local -r progress='(^|[ :,])transferred:? [0-9.]+ |^ *\(?[0-9.]+(/100)?%|[0-9]% complete'
  local line
  run_gist=''
  while IFS= read -r line; do
    line=${line##*$'\r'}
    if [[ -n ${line} && ! ${line} =~ ${progress} ]]; then
      run_gist+="${run_gist:+ }${line}"
    fi
  done <<<"$1"
  if ((${#run_gist} > $2 + $3)); then
    run_gist="${run_gist:0:$2}... ${run_gist: -$3}"
  fi
  run_gist=${run_gist//[[:cntrl:]]/ }
}

# A command that changes something runs in the foreground: a signal waits until
# it has ended, so roll-back never works against a command still running.
# Descriptor 9 is a lock of ours (vm.sh) that no child may inherit.
run_change() { # <seconds> <command...>
  local -r seconds=$1
  shift
  log_info "run: ${*@Q}"
  run_rc=0
  timeout -k 30 "${seconds}" "$@" >"${run_dir}/change.out" 2>"${run_dir}/change.err" 9>&- || run_rc=$?
  run_load change
  if ((run_rc != 0)); then
    log_warn "exit ${run_rc}: ${run_said}"
  fi
}

# Commands that only read run in the background: several at once where asked
# for (each start of Proxmox's tools takes most of a second), and a signal ends
# the wait at once.
run_start() { # <tag> <seconds> <command...>
  local -r tag=$1 seconds=$2
  shift 2
  timeout -k 5 "${seconds}" "$@" >"${run_dir}/${tag}.out" 2>"${run_dir}/${tag}.err" 9>&- &
  run_pids[${tag}]=$!
}

run_wait() { # <tag>
  run_rc=0
  if [[ -n ${run_pids[$1]:-} ]]; then
    wait "${run_pids[$1]}" || run_rc=$?
    # A signal that no longer ends the script (roll-back) ended only the wait.
    while ((run_rc > 128)) && run_lives "${run_pids[$1]}"; do
      run_rc=0
      wait "${run_pids[$1]}" || run_rc=$?
    done
    unset "run_pids[$1]"
    printf '%s' "${run_rc}" >"${run_dir}/$1.rc"
  else
    run_slurp "${run_dir}/$1.rc"
    run_rc=${run_text}
  fi
  run_load "$1"
}

# Where a signal no longer ends the script (roll-back), and comes as the read
# ends, bash (5.2) tells of the signal and has lost the exit status: the read is
# made again.
run_read() { # <seconds> <command...>
  while :; do
    run_struck=no
    run_start read "$@"
    run_wait read
    if ((run_rc <= 128)) || [[ ${run_struck} == no ]]; then
      return 0
    fi
  done
}

# A question to Proxmox. A node under load may not answer one in time, which says
# nothing of what was asked: it is asked again, twice at most.
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
    run_start "${tag}" 60 "$@"
    run_wait "${tag}"
  done
}

# From here on these do not end the script. Where two came together, the trap of
# one has ended it and the other still stands out: bash (5.2) would not get to it,
# and would break off every wait for it. One more makes it look.
run_hold_signals() { # <signal...>
  trap 'run_struck=yes' "$@"
  kill -s "$1" "$$"
}

# For the EXIT trap: ends the reads still under way. Their end is looked for,
# not waited for: where a signal has just ended a wait, bash (5.2) may have lost
# that end, and would wait until the last of all children is gone.
run_abandon() {
  local pid
  for pid in "${run_pids[@]}"; do
    kill -TERM "${pid}" 2>/dev/null || :
  done
  for pid in "${run_pids[@]}"; do
    while run_lives "${pid}"; do
      sleep 0.02
    done
  done
  run_pids=()
}

run_lives() { # <pid of a child>
  stat_read "$1"
  [[ -n ${stat_start} ]]
}

run_clean() {
  if [[ -n ${run_dir:-} ]]; then
    rm -rf -- "${run_dir}"
  fi
}
