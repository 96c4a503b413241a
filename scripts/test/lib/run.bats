#!/usr/bin/env bats
# lib/run.sh: running other programs.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2016,SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs run
  run_init
}

@test "exit status and words are kept apart, stderr first and stdout behind it on one line" {
  run_change 5 sh -c 'echo out; echo err >&2; printf "two\nlines" >&2; exit 7' 2>/dev/null
  [[ ${run_rc} -eq 7 && ${run_out} == out && ${run_said} == 'err two lines (on stdout: out)' ]]
}

@test "what other programs make has the usual mode, whatever this script's is" {
  umask 077
  run_change 5 mkdir "${TMPDIR}/images"
  run_read 5 mkdir "${TMPDIR}/log"
  local modes
  modes=$(stat -c %a "${TMPDIR}/images" "${TMPDIR}/log")
  [[ ${modes} == $'755\n755' ]] || { echo "${modes}" >&2 && false; }
}

@test "what a killed run left goes with the next; what only looks like it stays" {
  local dir
  stat_read "$$"
  local -r live=$$.${stat_start}.other678
  mkdir "${TMPDIR}"/linus.{"${live}",999999.7.aB3dE6gH,2026.11.22,999999.7.backup,999999.7.aB3dE6gH.old}
  run_sweep
  for dir in 2026.11.22 999999.7.backup 999999.7.aB3dE6gH.old "${live}"; do
    [[ -d ${TMPDIR}/linus.${dir} ]] || { echo "gone: ${dir}" >&2 && false; }
  done
  [[ ! -e ${TMPDIR}/linus.999999.7.aB3dE6gH ]]
}

# A directory of its name may be somebody else's by then.
@test "a read that outlives its script and the script's directory writes nothing where that was" {
  local dir script
  mkfifo "${TMPDIR}/go" "${TMPDIR}/ends"
  exec 6<>"${TMPDIR}/ends"
  bash -c 'source "$1/run.sh"; run_init; printf "%s\n" "${run_dir}" >"$2/dir"; run_read 60 bash -c "echo >&20; read -r _ <\"\$1/go\"" bash "$2"' \
    bash "${lib_dir}" "${TMPDIR}" 3>&- 6>&- 20>"${TMPDIR}/ends" &
  script=$!
  exec 5<"${TMPDIR}/ends"
  read -r -u 5 _
  exec 6>&- # not before: until the script has opened its end, nobody else would write
  dir=$(<"${TMPDIR}/dir")
  kill -KILL "${script}"
  rm -r "${dir}"
  mkdir "${dir}"
  echo kept >"${TMPDIR}/other"
  ln -s "${TMPDIR}/other" "${dir}/read.rc"
  echo >"${TMPDIR}/go"
  cat <&5 # until the last of it has ended
  [[ $(<"${TMPDIR}/other") == kept ]]
}

@test "the cause is said, not the progress before it" {
  # As qm imports a disk.
  run_change 5 bash -c 'echo "unable to create VM 727 - copy failed: command qemu-img convert -p -n failed: exit code 1" >&2
    for ((i = 0; i < 37; i += 1)); do echo "transferred ${i}.0 MiB of 2.0 GiB (${i}.00%)"; done
    printf "\r   (12.00/100%%)\r   (13.00/100%%)\n"
    echo "qemu-img: error while writing at byte 2097152: No space left on device"; exit 255' 2>/dev/null
  [[ ${run_said} == 'unable to create VM 727 '*'exit code 1 (on stdout: qemu-img: error while writing at byte 2097152: No space left on device)' ]]
  [[ ${run_said} != *transferred* && ${run_said} != *100%* ]]
  # Before a flood of other words, and after one.
  run_change 5 bash -c 'echo first >&2; for ((i = 0; i < 9000; i += 1)); do echo "line ${i}"; echo "line ${i}" >&2; done; echo cause; echo why >&2' 2>/dev/null
  [[ ${run_said} == first* && ${run_said} == *' why (on stdout: '*' cause)' && ${#run_said} -lt 1300 ]]
}

# A guest, its SSH server and the network may say this.
@test "no text of whatever length and kind holds a run up, nor makes it say more than a line" {
  local kind
  for kind in '\n' '\r' ' ' '\1' '%' '\377' 'x\n' '\0'; do
    # shellcheck disable=SC2016 # the inner shell's parameters
    timeout 120 bash -c 'source "$1/run.sh"; run_init
      run_read 60 perl -e "print STDOUT eval(qq(\"\$ARGV[0]\")) x 120000; print STDERR eval(qq(\"\$ARGV[0]\")) x 120000" -- "$2"
      run_lines read
      run_clean
      [[ ${run_rc} -eq 0 && -n ${run_lines[*]+set} && ${#run_out} -le 65536 && ${#run_said} -lt 1300 && ${run_said} != *[[:cntrl:]]* ]]' bash "${lib_dir}" "${kind}"
  done
}

# setsid: timeout's signals do not reach it, as they do not what is started just then.
@test "what an ended read has left writes into no later one's answer" {
  local -r fifo=${BATS_TEST_TMPDIR}/fifo
  mkfifo "${fifo}" "${fifo}.written"
  run_start read 60 bash -c 'setsid bash -c "read -r _ <\"$1\"; printf %040d 7; echo >\"$1.written\"" & sleep 300' bash "${fifo}"
  exec {go}>"${fifo}" # it has begun
  run_stop=143 run_stoppable=no
  run_abandon
  run_start read 60 bash -c 'echo 755; read -r _ <"$1.written"' bash "${fifo}"
  until [[ -s ${run_dir}/read.out ]]; do
    sleep 0.05
  done
  echo >&"${go}"
  run_wait read
  [[ ${run_rc} -eq 0 && ${run_out} == 755 ]]
}

@test "a command that does not end in time is ended, and that is said" {
  run_read 0.2 sleep 20
  [[ ${run_rc} -eq 124 && ${run_said} == 'no answer in time.'* ]]
}

@test "reads run side by side and can be taken up twice" {
  run_start a 5 sh -c 'sleep 0.3; echo A'
  run_start b 5 sh -c 'sleep 0.3; echo B; exit 3'
  run_wait b
  [[ ${run_rc} -eq 3 && ${run_out} == B ]]
  run_wait a
  [[ ${run_rc} -eq 0 && ${run_out} == A ]]
  run_wait b
  [[ ${run_rc} -eq 3 && ${run_out} == B ]]
}

@test "a command that changes something is out of reach of the group's signals" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  run_change 5 sh -c 'ps -o pgid= -p $$' 2>/dev/null
  local own
  own=$(ps -o pgid= -p "${BASHPID}")
  [[ ${run_out// /} =~ ^[0-9]+$ && ${run_out// /} != "${own// /}" ]]
}

@test "abandoned reads end, and the directory goes" {
  run_start slow 60 sleep 60
  local -r pid=${run_pids[slow]}
  run_abandon
  for _ in {1..500}; do # it was told to end, and takes its time on a busy machine
    kill -0 "${pid}" 2>/dev/null || break
    sleep 0.02
  done
  run kill -0 "${pid}"
  [[ ${status} -ne 0 ]]
  run_clean
  [[ ! -e ${run_dir} ]]
}

@test "a signal that does not end the script does not end a read either" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  run bash -c 'source "$1/run.sh"; trap : TERM; run_init
    (sleep 0.2; kill -TERM "$$"; sleep 0.2; kill -TERM "$$") &
    run_read 20 sh -c "sleep 1; echo answer; exit 3"
    printf "%s %s\n" "${run_rc}" "${run_out}"; run_clean' bash "${lib_dir}"
  [[ ${output} == '3 answer' ]]
}

# Bash's own wait told of the signal once in twenty, not of how the read had ended.
@test "a signal that is held as a read ends does not stand for the read's answer" {
  cat >"${BATS_TEST_TMPDIR}/reads" <<'EOF'
source "$1/run.sh"
run_init
trap 'run_stop=143' TERM
run_stoppable=no
while kill -TERM "$$" 2>/dev/null; do sleep "0.0$((RANDOM % 20))"; done 3>&- &
for ((i = 0; i < 300; i += 1)); do
  run_read 5 sh -c 'echo answer; exit 3'
  [[ ${run_rc} -eq 3 && ${run_out} == answer ]] || printf '%s %s\n' "${run_rc}" "${run_out}"
done
run_clean
EOF
  run bash "${BATS_TEST_TMPDIR}/reads" "${lib_dir}"
  [[ -z ${output} ]]
}

# Bash's wait and its $( ) lose what a signal meets in them: one run in twenty did
# not end before its last child, and one in a hundred did not end at all.
@test "a signal in the middle of a read: what is left of the script waits for no other child" {
  local i
  cat >"${BATS_TEST_TMPDIR}/reads" <<'EOF'
source "$1/run.sh"
trap 'run_abandon; run_clean' EXIT
run_init
trap 'run_stop=143' TERM
sleep 20 >/dev/null 2>&1 3>&- &
while :; do run_read 5 true; done
EOF
  for ((i = 0; i < 100; i += 1)); do
    run timeout -k 5 "0.0$((20 + RANDOM % 30))" bash "${BATS_TEST_TMPDIR}/reads" "${lib_dir}"
    [[ ${status} -eq 124 ]] # 137: killed, for it did not end
  done
}

@test "a read whose shell was killed has failed" {
  run_start slow 60 sleep 60
  until [[ -s ${run_dir}/slow.pid ]]; do sleep 0.02; done
  local -r pid=$(<"${run_dir}/slow.pid")
  kill -KILL "${run_pids[slow]}"
  run_wait slow
  kill "${pid}"
  [[ ${run_rc} -eq 137 ]]
}

@test "no command keeps a lock of the script, whatever becomes of that; a download keeps its file's" {
  local fd
  cat >"${BATS_TEST_TMPDIR}/locks" <<'EOF'
source "$1/run.sh"
run_init
for fd in 4 5 6 7 8 9; do
  eval "exec ${fd}>>\"\$2/${fd}.lock\""
  run_lock 5 "${fd}"
  [[ ${run_rc} -eq 0 ]]
done
reads() { run_alone sh -c "$1"; }
run_start one 60 reads "echo \$\$ >\"$2/one\"; exec sleep 60"
run_start two 60 sh -c "echo \$\$ >\"$2/two\"; exec sleep 60"
run_kept=8
run_start three 60 sh -c "echo \$\$ >\"$2/three\"; exec sleep 60"
run_kept=''
run_change 60 sh -c "echo \$\$ >\"$2/four\"; exec sleep 60"
EOF
  bash -Ee "${BATS_TEST_TMPDIR}/locks" "${lib_dir}" "${BATS_TEST_TMPDIR}" 2>/dev/null 3>&- &
  local -r pid=$!
  for fd in one two three four; do
    until [[ -s ${BATS_TEST_TMPDIR}/${fd} ]]; do sleep 0.02; done
  done
  run flock -n "${BATS_TEST_TMPDIR}/9.lock" true
  [[ ${status} -ne 0 ]] # while the script lives, they are its own
  kill -KILL "${pid}"
  wait "${pid}" || :
  for fd in 4 5 6 7 9; do
    flock -n "${BATS_TEST_TMPDIR}/${fd}.lock" true || { echo "held: ${fd}" >&2 && false; }
  done
  run flock -n "${BATS_TEST_TMPDIR}/8.lock" true
  [[ ${status} -ne 0 ]]
  for fd in one two three four; do
    kill "$(<"${BATS_TEST_TMPDIR}/${fd}")"
  done
}

@test "a function is run as a command is: its words, its end, in its time, stopped with the script" {
  answers() {
    echo out
    echo err >&2
    return 3
  }
  run_read 5 answers
  [[ ${run_rc} -eq 3 && ${run_out} == out && ${run_said} == 'err (on stdout: out)' ]]
  run_read 5 run_alone sh -c 'echo program; exit 4'
  [[ ${run_rc} -eq 4 && ${run_out} == program ]]
  run_read 0.2 run_alone sleep 60
  [[ ${run_rc} -eq 124 && ${run_said} == 'no answer in time.'* ]]
  local run_guard="${BATS_TEST_FILENAME} of-another-file"
  run_read 5 answers
  [[ ${run_rc} -eq 75 && ${run_said} == *' has changed since it was read: not begun' && -z ${run_out} ]]
  unset run_guard
  # One that hears no signal but KILL.
  run bash -c 'source "$1/run.sh"; run_init; trap "run_abandon; run_clean" EXIT
    holds() { trap "" TERM; run_stop=143; : >"$1"; while :; do :; done; }
    run_start held 600 holds "$2"
    until [[ -e $2 && -s ${run_dir}/held.pid ]]; do :; done
    cat "${run_dir}/held.pid"
    run_stop=143
    run_await held' bash "${lib_dir}" "${BATS_TEST_TMPDIR}/begun"
  [[ ${status} -eq 143 && ${output} =~ ^[0-9]+$ ]]
  run kill -0 "${output}"
  [[ ${status} -ne 0 ]]
}

@test "a pause takes its time, starts no program, and ends when the script is to stop" {
  local began
  clock_read
  began=${clock_now}
  PATH='' run_pause 0.35
  clock_read
  ((clock_now - began >= 35 && clock_now - began < 500))
  run_rc=7
  echo rung >&"${run_bell}" # a read that ends meanwhile
  began=${clock_now}
  run_pause 0.05
  clock_read
  ((run_rc == 7 && clock_now - began >= 5))
}

@test "what a killed run has left goes with the next; what lives or is not ours stays" {
  local -r own=${run_dir}
  # shellcheck disable=SC2016 # the inner shell's own variables
  bash -c 'source "$1/run.sh"; run_init; : >"${run_dir}/file"; kill -KILL "$$"' bash "${lib_dir}" || :
  local -ra left=("${TMPDIR}"/linus.*)
  [[ ${#left[@]} -eq 2 ]]
  mkdir "${TMPDIR}/linus.1.1.recycled" "${TMPDIR}/linus.notes" "${TMPDIR}/precious"
  : >"${TMPDIR}/precious/file"
  ln -s precious "${TMPDIR}/linus.1.1.link"
  run_init
  [[ -d ${own} && -d ${run_dir} && -d ${TMPDIR}/linus.notes && -e ${TMPDIR}/precious/file && -L ${TMPDIR}/linus.1.1.link ]]
  local -ra kept=("${TMPDIR}"/linus.*.*.*/)
  [[ ${#kept[@]} -eq 3 ]] # the link is the third
}

@test "how a function has ended is not lost, however fast it ends" {
  one_that_ends() { exit 3; }
  local -i i times=200
  [[ ${LINUS_TEST_LOOP:-} != nightly ]] || times=3000
  for ((i = 0; i < times; i += 1)); do
    run_read 30 one_that_ends
    [[ ${run_rc} -eq 3 ]]
  done
}
