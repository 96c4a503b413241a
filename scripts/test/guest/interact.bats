#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC2119,SC2030,SC2031 # set by the helper; tasks are quoted on purpose

setup() {
  load runner
  runner_setup
  settings STDIN=open
}

teardown() { runner_teardown; }

input() { bash "${runner}" input "$1" <<<"$2" >/dev/null; } # <offset> <line>

says() { [[ $(<"${state}/stdout") == *"$1"* ]]; }

kill_runner() {
  local pid
  read -r pid _ <"${state}/runner"
  kill -KILL "${pid}"
  until_true 5 test ! -d "/proc/${pid}"
}

# nobody_runs tells whether nothing of the runner's lives.
nobody_runs() {
  # Named in a file: grep would find itself.
  printf '%s\n' "${runner}" "${state}/stdin" >"${BATS_TEST_TMPDIR}/names"
  ! grep -qaFf "${BATS_TEST_TMPDIR}/names" /proc/[0-9]*/cmdline 2>/dev/null
}

# awaited tells whether somebody waits for the lock on a file.
awaited() { # <file>
  local inode
  inode=$(stat -c %i -- "$1")
  grep -qE -- "-> FLOCK .*:${inode} " /proc/locks
}

# half_taken tells whether a runner has read one byte of input so far.
half_taken() {
  find /proc/[0-9]*/fd -lname "${state}/input.* (deleted)" -exec stat -L -c %s -- {} + 2>/dev/null | grep -qx 1
}

# sleeping tells whether the task runs sleep 300.
sleeping() {
  local pid
  for pid in $(pgrep -xf 'sleep 300'); do
    if grep -qzxF -- "LINUS_JOB_ID=${job_id}" "/proc/${pid}/environ" 2>/dev/null; then
      return 0
    fi
  done
  return 1
}

until_says() { # <text>
  local -r deadline=$((SECONDS + 20))
  until says "$1"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.01
  done
}

@test "a prompt without a newline is in the output while the task waits for its answer" {
  task 'printf "name? "; read -r name; printf "hello %s" "${name}"'
  start
  until_says 'name? '
  [[ ! -e ${state}/exit_status ]]
  run bash "${runner}" input 0 <<<'you'
  [[ ${status} == 0 && ${output} == *LINUS_STDIN_BYTES:4*LINUS_RESULT:SUCCESS* ]]
  until_true 10 exited
  says 'name? hello you'
}

@test "a REPL answers each line" {
  task 'exec bash'
  start
  input 0 'echo $((6 * 7))'
  until_says 42
  local try offset
  for try in 1 2 3; do
    offset=$(stat -c %s "${state}/stdin")
    input "${offset}" "echo answer${try}"
    until_says "answer${try}"
  done
}

@test "1 MiB of binary input in pieces is what the task reads" {
  task 'sha256sum; echo end'
  head -c 1048576 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  start
  local offset
  for ((offset = 0; offset < 1048576; offset += 262144)); do
    tail -c "+$((offset + 1))" "${BATS_TEST_TMPDIR}/blob" | head -c 262144 | bash "${runner}" input "${offset}"
  done
  bash "${runner}" close-input
  until_true 20 exited
  [[ $(<"${state}/stdout") == "$(sha256sum <"${BATS_TEST_TMPDIR}/blob")"$'\nend' ]]
}

@test "1 MiB of input that the task does not read yet is kept for it" {
  task "until [[ -e ${BATS_TEST_TMPDIR}/go ]]; do sleep 0.1; done; sha256sum"
  head -c 1048576 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  start
  bash "${runner}" input 0 <"${BATS_TEST_TMPDIR}/blob"
  bash "${runner}" close-input
  touch "${BATS_TEST_TMPDIR}/go"
  until_true 20 exited
  [[ $(<"${state}/stdout") == "$(sha256sum <"${BATS_TEST_TMPDIR}/blob")" ]]
}

@test "input sent again at the same offset changes nothing, a longer one adds its end" {
  task 'cat'
  start
  printf abc | bash "${runner}" input 0
  run bash "${runner}" input 0 < <(printf abc)
  [[ ${status} == 0 && ${output} == *LINUS_STDIN_BYTES:3* ]]
  run bash "${runner}" input 1 < <(printf bcdef)
  [[ ${status} == 0 && ${output} == *LINUS_STDIN_BYTES:6* ]]
  bash "${runner}" close-input
  until_true 20 exited
  [[ $(<"${state}/stdout") == abcdef ]]
}

@test "a gap in the input is refused, and says what is held" {
  task 'cat'
  start
  printf abc | bash "${runner}" input 0
  run bash "${runner}" input 4 < <(printf x)
  [[ ${status} == 1 && ${output} == *LINUS_STDIN_BYTES:3*LINUS_RESULT:FAILURE*LINUS_ERROR:*offset\ 4* ]]
  run bash "${runner}" input -1 < <(printf x)
  [[ ${status} == 1 && ${output} == *'is not an offset'* ]]
}

@test "input waits for other input, and input whose sender is silent holds up none" {
  task 'cat'
  start
  local lock silent
  exec {lock}>"${state}/stdin.lock"
  flock "${lock}"
  printf abc | bash "${runner}" input 0 {lock}>&- &
  until_true 10 awaited "${state}/stdin.lock"
  [[ ! -s ${state}/stdin ]]
  flock -u "${lock}"
  wait "$!"
  [[ $(<"${state}/stdin") == abc ]]
  exec {silent}> >(bash "${runner}" input 3)
  printf 'd' >&"${silent}"
  until_true 10 half_taken
  printf 'xyz' | bash "${runner}" input 3
  exec {silent}>&-
  until_says abcxyz
}

@test "the end comes after all input, when it is closed, and not before" {
  task 'cat; printf end'
  start
  printf abc | bash "${runner}" input 0
  until_says abc
  printf d | bash "${runner}" input 3
  until_says abcd # it still reads
  run bash "${runner}" probe
  [[ ${output} == *LINUS_JOB_STATE:running* && ${output} == *LINUS_STDIN_BYTES:4*LINUS_STDIN_CLOSED:no* ]]
  run bash "${runner}" close-input
  [[ ${status} == 0 && ${output} == *LINUS_STDIN_BYTES:4* ]]
  until_true 5 exited
  [[ $(<"${state}/stdout") == abcdend ]]
  run bash "${runner}" probe
  [[ ${output} == *LINUS_STDIN_CLOSED:yes* ]]
}

@test "after the end, and after the task, only what was sent before is taken again" {
  task 'cat; until [[ -e ${LINUS_TASK_FILE}.go ]]; do sleep 0.1; done'
  start
  printf abc | bash "${runner}" input 0
  bash "${runner}" close-input
  bash "${runner}" close-input
  run bash "${runner}" input 3 < <(printf d)
  [[ ${status} == 1 && ${output} == *'was closed'* ]]
  run bash "${runner}" input 0 < <(printf abc)
  [[ ${status} == 0 ]]
  touch "${home}/task.go"
  until_true 20 exited
  run bash "${runner}" input 3 < <(printf d)
  [[ ${status} == 1 && ${output} == *'has ended'* ]]
  run bash "${runner}" input 0 < <(printf abc)
  [[ ${status} == 0 && ${output} == *LINUS_STDIN_BYTES:3* ]]
}

@test "where stdin is not open, the task reads its end and input is refused" {
  settings
  task 'cat; printf end; sleep 1'
  run bash "${runner}" input 0 </dev/null
  [[ ${status} == 1 && ${output} == *'not been started'* ]]
  start
  run bash "${runner}" input 0 < <(printf x)
  [[ ${status} == 1 && ${output} == *'is closed'* ]]
  until_true 20 exited
  [[ $(<"${state}/stdout") == end ]]
}

@test "a task that closes or ignores its stdin ends, and what fed it with it" {
  task 'exec <&-; printf done'
  start
  until_true 20 exited
  until_true 5 nobody_runs
  read_end
  [[ ${code} == 0 && $(<"${state}/stdout") == 'done' ]]
}

@test "input reaches a task whose runner was killed" {
  task 'while read -r line; do echo "got ${line}"; done; echo end'
  start
  input 0 one
  until_says 'got one'
  kill_runner
  input 4 two
  until_says 'got two'
  bash "${runner}" close-input
  until_says end
  [[ ! -e ${state}/exit_status ]]
  start
  until_true 20 exited
  read_end
  [[ ${code} == 0 && ${reason} == exit ]]
}

@test "what feeds a task ends when the task's parent was killed" {
  task 'printf on; sleep 300'
  start
  until_says on
  local holder
  read -r holder _ <"${state}/task"
  kill -KILL "${holder}"
  until_true 20 exited
  until_true 5 nobody_runs
}

@test "a command's open stdin is the input, its task in a file" {
  settings AGENT=command STDIN=open
  task 'the text'
  printf '%s' 'cat; cat "${LINUS_TASK_FILE}"' >"${home}/command"
  start
  printf 'input|' | bash "${runner}" input 0
  bash "${runner}" close-input
  until_true 20 exited
  [[ $(<"${state}/stdout") == 'input|the text' ]]
}

@test "a terminal is one: size, type, echo, both streams" {
  settings TTY=33x99 STDIN=open
  task '[[ -t 0 && -t 1 && -t 2 ]] && stty size && echo "${TERM}" && echo error >&2; read -rp "name? " name; echo "<${name}>"; exit 7'
  start
  until_says 'name? '
  input 0 me
  until_true 20 exited
  read_end
  cat -A "${state}/stdout"
  [[ ${code} == 7 && $(<"${state}/stdout") == $'33 99\r\nxterm-256color\r\nerror\r\nname? me\r\n<me>\r' && ! -s ${state}/stderr ]]
}

@test "a terminal gets another size, and what runs in it is told" {
  settings TTY=24x80 STDIN=open
  # stty tells of the rows first, and of the columns by a second signal, which may come
  # just before a shell begins to wait: it looks again and again.
  task 'trap "told=yes" WINCH; echo on; until [[ ${told-} && $(stty size) == "50 132" ]]; do sleep 0.05; done
    stty size; read -r line; echo "<${line}>"'
  start
  until_says on
  run bash "${runner}" resize 50x132
  [[ ${status} == 0 && ${output} == *LINUS_RESULT:SUCCESS* ]]
  until_says '50 132'
  for size in '' 50 0x80 50x132x1 99999x1 '1x1;id'; do
    run bash "${runner}" resize "${size}"
    [[ ${status} == 1 && ${output} == *'is not ROWSxCOLUMNS'* ]]
  done
  input 0 end
  until_true 20 exited
  says '<end>'
  run bash "${runner}" resize 50x132
  [[ ${status} == 1 && ${output} == *'no terminal now'* ]]
}

@test "what runs without a terminal has no size" {
  settings STDIN=open
  task 'echo on; read -r line'
  start
  until_says on
  run bash "${runner}" resize 50x132
  [[ ${status} == 1 && ${output} == *'no terminal now'* ]]
}

@test "^C by input interrupts what runs in a terminal, and not the shell" {
  settings TTY=24x80 STDIN=open
  task 'exec bash --norc -i'
  start
  input 0 'PS1=; sleep 300; echo "after $?"'
  until_true 20 sleeping
  printf '\x03' | bash "${runner}" input 33
  input 34 'echo on $((1 + 1))'
  until_says 'on 2'
  bash "${runner}" close-input
  until_true 20 exited
  read_end
  [[ ${reason} == exit ]]
  no_process
}

@test "a closed terminal reads ^D: a REPL ends" {
  settings TTY=24x80 STDIN=open
  task 'cat; echo end'
  start
  input 0 line
  until_says line
  bash "${runner}" close-input
  until_true 10 exited
  read_end
  [[ ${code} == 0 ]] && says end
}

@test "a terminal without input has its end at once, and the exit code is the task's" {
  local want
  for want in 'exit_3 3' 'kill9 137' 'missing 127' 'cat 0'; do
    rm -rf "${state}"
    settings TTY=24x80
    case ${want% *} in
      exit_3) task 'exit 3' ;;
      kill9) task 'kill -KILL $$' ;;
      missing) task 'no-such-command' ;;
      cat) task 'cat' ;;
    esac
    run_to_end
    echo "${want}: ${code} ${reason}"
    [[ ${code} == "${want#* }" && ${reason} == exit ]]
  done
}

@test "5 MB through a terminal are whole" {
  settings TTY=24x80
  task 'stty -opost; yes 0123456789abcdef | head -c 5000000'
  run_to_end
  [[ ${code} == 0 ]]
  cmp <(yes 0123456789abcdef | head -c 5000000) "${state}/stdout"
}

@test "a terminal's whole tree ends with its timeout, also what ignores its end" {
  settings TTY=24x80 STDIN=open TIMEOUT=2
  task 'trap "" HUP; sleep 300 & setsid sleep 300 & env -i bash -c "trap : HUP; sleep 300" & echo on; wait'
  run_to_end
  [[ ${reason} == timeout && ${code} == 143 && ! -s ${state}/stderr ]] && says on
  no_process
}

@test "a task in a terminal goes in its own way when it is stopped" {
  settings TTY=24x80 STDIN=open
  task 'trap "sleep 1; echo bye; exit 5" TERM; printf on; while :; do sleep 0.1; done'
  start
  until_says on
  bash "${runner}" stop
  read_end
  [[ ${reason} == stopped && ${code} == 5 && ! -s ${state}/stderr ]] && says bye
}

@test "a terminal's background ends with the task though its parent is gone" {
  settings TTY=24x80
  task '(env -i bash -c "trap : HUP TERM; echo \$\$ >\$0; while :; do sleep 1; done" '"${BATS_TEST_TMPDIR}/alive"' </dev/null >/dev/null 2>&1 &); sleep 1.5; echo on'
  run_to_end
  local pid
  pid=$(<"${BATS_TEST_TMPDIR}/alive")
  # A zombie waits for init to read it; it runs no more.
  [[ ${code} == 0 && -n ${pid} ]] && ! grep -q '^State:.[^Z]' "/proc/${pid}/status" 2>/dev/null
}

@test "stop sends the signal that is asked for, and ends what does not go" {
  local signal
  for signal in TERM INT HUP QUIT; do
    rm -rf "${state}"
    task "trap 'echo got ${signal}; exit 5' ${signal}; printf on; while :; do sleep 0.1; done"
    start
    until_says on
    run bash "${runner}" stop "${signal}"
    echo "${signal}: ${output}"
    read_end
    [[ ${status} == 0 && ${reason} == stopped && ${code} == 5 ]] && says "got ${signal}"
  done
  rm -rf "${state}"
  task 'trap "" INT; printf on; while :; do sleep 0.1; done'
  start
  until_says on
  bash "${runner}" stop INT
  read_end
  [[ ${reason} == stopped && ${code} == 137 ]]
  no_process
  run bash "${runner}" stop STOP
  [[ ${status} == 1 && ${output} == *'cannot stop with'* ]]
}
