#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC1003,SC1010,SC2030,SC2031 # set by the helper; tasks are quoted on purpose

setup() {
  load runner
  runner_setup
}

teardown() { runner_teardown; }

@test "the exit code is the task's: 0, 3, 126, 127, 137, 143" {
  local want
  for want in 'true 0' 'exit_3 3' 'notexec 126' 'missing 127' 'kill9 137' 'term 143'; do
    rm -rf "${state}"
    case ${want% *} in
      true) task 'true' ;;
      exit_3) task 'exit 3' ;;
      notexec) task '/etc/passwd' ;;
      missing) task 'no-such-command' ;;
      kill9) task 'kill -KILL $$' ;;
      term) task 'kill -TERM 0; sleep 5' ;;
    esac
    run_to_end
    echo "${want}: ${code} ${reason}"
    [[ ${code} == "${want#* }" && ${reason} == exit ]]
  done
}

@test "start answers, and probe tells the whole story" {
  task "printf out; printf error >&2; until [[ -e ${BATS_TEST_TMPDIR}/go ]]; do sleep 0.05; done; exit 4"
  run probe
  [[ ${output} == *LINUS_JOB_STATE:absent* ]]
  LINUS_NONCE=abc123 run start
  [[ ${status} == 0 && ${output} == *LINUS_BEGIN:abc123*LINUS_JOB_START:started*LINUS_RESULT:SUCCESS*LINUS_END:abc123* ]]
  [[ ${output} == *"LINUS_BOOT_ID:$(</proc/sys/kernel/random/boot_id)"* ]]
  run probe
  [[ ${output} == *LINUS_JOB_STATE:running*LINUS_RUNNER_ALIVE:yes* ]]
  : >"${BATS_TEST_TMPDIR}/go"
  until_true 20 exited
  run probe
  [[ ${output} == *LINUS_JOB_STATE:exited* && ${output} == *LINUS_EXIT_CODE:4* && ${output} == *LINUS_EXIT_REASON:exit* ]]
  [[ ${output} == *LINUS_STDOUT_BYTES:3* && ${output} == *LINUS_STDERR_BYTES:5* && ${output} =~ LINUS_DURATION:[0-9]+\.[0-9]{2} ]]
}

@test "both streams are kept byte for byte: binary, invalid UTF-8, no last newline" {
  head -c 300000 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  task "cat ${BATS_TEST_TMPDIR}/blob; printf 'a\\xff\\xfe\\x00z\\r' >&2"
  run_to_end
  [[ ${code} == 0 ]]
  cmp "${BATS_TEST_TMPDIR}/blob" "${state}/stdout"
  printf 'a\xff\xfe\x00z\r' | cmp - "${state}/stderr"
}

@test "sums are of the beginning of each stream, as much as is asked for" {
  task 'printf 12345; printf abc >&2'
  run_to_end
  run bash "${runner}" sums 3 99
  [[ ${status} == 0 && ${output} == *"LINUS_STDOUT_SHA256:$(printf 123 | sha256sum | cut -c1-64)"* ]]
  [[ ${output} == *"LINUS_STDERR_SHA256:$(printf abc | sha256sum | cut -c1-64)"* ]]
  run bash "${runner}" sums 3
  [[ ${status} == 1 && ${output} == *'are not two numbers'* ]]
  run bash "${runner}" sums 3 -1
  [[ ${status} == 1 ]]
}

@test "20 MB of output are whole" {
  task 'yes 0123456789abcdef | head -c 20000000'
  run_to_end
  [[ ${code} == 0 ]]
  cmp <(yes 0123456789abcdef | head -c 20000000) "${state}/stdout"
}

@test "the task is run byte for byte: quotes, newlines, dollars" {
  task $'printf \'%s|\' "a\'b" \'$(id)\' "x\ny" `printf q`\ncat <<\'E\'\n"$HOME" \\n\nE\nexit 5'
  run_to_end
  [[ ${code} == 5 ]]
  printf '%s' $'a\'b|$(id)|x\ny|q|"$HOME" \\n\n' | cmp - "${state}/stdout"
}

@test "a command gets the task on stdin and its path" {
  settings AGENT=command
  task $'line 1\n$(id)\x01'
  printf '%s' 'cat; cmp - "${LINUS_TASK_FILE}" </dev/null 2>/dev/null || printf "|%s" "${LINUS_JOB_ID}"' >"${home}/command"
  run_to_end
  [[ ${code} == 0 && $(<"${state}/stdout") == $'line 1\n$(id)\x01|'"${job_id}" ]]
}

@test "a command may begin with a dash; a script with a command uses it" {
  printf '%s' '-no-such-thing' >"${home}/command"
  task 'exit 9'
  run_to_end
  [[ ${code} == 127 ]]
}

@test "an agent's command is run word for word, and has the task on stdin" {
  local bin=${BATS_TEST_TMPDIR}/bin
  mkdir "${bin}"
  printf '#!/bin/bash\nprintf "[%%s]" "$@"; cat' >"${bin}/claude"
  chmod +x "${bin}/claude"
  export PATH=${bin}:${PATH}
  settings AGENT=exec
  printf '%s\0' claude --print 'two words' '$(id)' '' >"${home}/command"
  task $'--version "hi"\n'
  run_to_end
  [[ $(<"${state}/stdout") == $'[--print][two words][$(id)][]--version "hi"' ]]
  rm -rf "${state}"
  head -c 1048576 /dev/zero | tr '\0' x >"${home}/task"
  run_to_end
  [[ ${code} == 0 && $(wc -c <"${state}/stdout") == 1048605 ]]
}

@test "env arrives byte for byte, names of bash's own too" {
  local -a entries=($'A=line 1\nline 2' 'B="q" '\''s'\'' $(id) `x` \' $'C=\xff\xfe' 'D=' 'E=ü€=x' 'entry=1' 'state=2' 'home=3'
    'code=4' 'UID=5' 'RANDOM=seed' 'SECONDS=s' 'IFS=x' 'BASHOPTS=' 'holder=6' 'pid=7' '_=8' 'agent=9' 'process_tree=10' "PATH=${BATS_TEST_TMPDIR}/bin:/usr/bin:/bin")
  printf '%s\0' "${entries[@]}" >"${home}/env"
  # A stand-in that is no shell: bash would set some of these anew.
  mkdir "${BATS_TEST_TMPDIR}/bin"
  printf '%s\n' '#!/usr/bin/perl' 'open F, "/proc/self/environ"; print <F>' >"${BATS_TEST_TMPDIR}/bin/claude"
  chmod +x "${BATS_TEST_TMPDIR}/bin/claude"
  settings AGENT=exec
  printf 'claude\0' >"${home}/command"
  task x
  run_to_end
  [[ ${code} == 0 ]]
  local -A got=()
  local entry
  while IFS= read -r -d '' entry; do got["${entry%%=*}"]=${entry#*=}; done <"${state}/stdout"
  for entry in "${entries[@]}"; do
    echo "${entry} / ${got["${entry%%=*}"]-unset}"
    [[ ${got["${entry%%=*}"]-unset} == "${entry#*=}" ]]
  done
  [[ ${got[LINUS_JOB_ID]} == "${job_id}" ]]
}

@test "a bad name in env is refused before anything runs" {
  local bad
  for bad in '1A=x' 'A B=x' '=x' 'A' 'LINUS_JOB_ID=x' $'A\n=x'; do
    printf '%s\0' "${bad}" >"${home}/env"
    task 'true'
    run start
    echo "${output}"
    [[ ${status} == 1 && ${output} == *LINUS_RESULT:FAILURE*LINUS_ERROR:env:*LINUS_REMEDY:* ]]
    [[ ! -e ${state}/launched ]]
  done
}

@test "files are installed with mode, parents and odd names, and again" {
  job_file 0600 $'/srv/a b/\'$(id)".txt' 'one\0\xff'
  job_file 0755 /srv/-x/ü two
  job_file 4711 /srv/link three
  mkdir -p "${root}/srv/-x"
  chmod 750 "${root}/srv/-x"
  printf old >"${root}/srv/-x/ü"
  printf other >"${root}/other"
  ln -s ../other "${root}/srv/link"
  task 'true'
  run_to_end
  printf 'one\0\xff' | cmp - "${root}/srv/a b/"\''$(id)".txt'
  [[ $(stat -c %a "${root}/srv/a b/"\''$(id)".txt') == 600 ]]
  [[ $(<"${root}/srv/-x/ü") == two && $(stat -c %a "${root}/srv/-x/ü" "${root}/srv/-x") == $'755\n750' ]]
  [[ $(<"${root}/srv/link") == three && $(stat -c %a "${root}/srv/link") == 4711 && $(<"${root}/other") == other ]]
}

@test "many files are installed by a handful of processes" {
  local -r packed=${BATS_TEST_TMPDIR}/packed bin=${BATS_TEST_TMPDIR}/bin
  local -i i
  mkdir -p "${packed}/srv/many/"{0..9} "${bin}"
  for ((i = 0; i < 3000; i++)); do
    printf '%d' "${i}" >"${packed}/srv/many/$((i % 10))/${i}"
    printf '0644\0/srv/many/%d/%d\0' "$((i % 10))" "${i}"
  done >"${home}/files.index"
  find "${packed}" -type f -printf '%P\0' | tar -c -f "${home}/files.tar" -C "${packed}" --null -T -
  local tool
  for tool in tar install mkdir chown chmod mv cp; do
    printf '#!/bin/sh\necho %s >>%q\nexec %s "$@"\n' "${tool}" "${BATS_TEST_TMPDIR}/ran" "$(type -P "${tool}")" >"${bin}/${tool}"
    chmod +x "${bin}/${tool}"
  done
  task 'cat /dev/null'
  PATH=${bin}:${PATH} start
  until_true 20 exited
  diff -r "${packed}/srv/many" "${root}/srv/many"
  local -r ran=$(grep -c . "${BATS_TEST_TMPDIR}/ran")
  echo "${ran} processes"
  ((ran < 20))
}

@test "a file's path that is relative, climbs, or names a directory is refused" {
  local bad
  job_file 0644 /srv/fine x
  mkdir -p "${root}/srv/dir"
  for bad in relative /a/../b /srv/ $'/a\nb' /srv/dir; do
    printf '%s\0' 0644 "${bad}" >"${home}/files.index"
    task 'true'
    run start
    echo "${output}"
    [[ ${status} == 1 && ${output} == *LINUS_RESULT:FAILURE* ]]
  done
}

@test "settings that make no sense are refused, with their name" {
  task 'true'
  local bad
  for bad in JOB_ID= 'JOB_ID=a;b' AGENT=perl AGENT=command TIMEOUT= TIMEOUT=0 TIMEOUT=1s STATUS_MODE=loud \
    CALLBACK_URL=ftp://x 'CALLBACK_URL=http://x y' HEARTBEAT_INTERVAL=-1 MAX_OUTPUT_SIZE=10MB; do
    settings "${bad}"
    run start
    echo "${bad}: ${output}"
    [[ ${status} == 1 && ${output} == *LINUS_ERROR:*"${bad%%=*}"* ]]
  done
}

@test "the timeout ends the whole tree and keeps what was printed" {
  settings TIMEOUT=1
  task 'printf before; setsid sleep 300 & (trap "" TERM; exec -a stubborn sleep 300) & env -i sleep 300 & sleep 300'
  run_to_end
  [[ ${reason} == timeout && ${code} == 143 && ${text} == "ran longer than 1 s" ]]
  [[ $(<"${state}/stdout") == before ]]
  no_process
  ((${duration%.*} >= 1 && ${duration%.*} < 15))
}

@test "a task that ignores TERM is killed after 5 s" {
  settings TIMEOUT=1
  task 'trap "" TERM; echo on; while :; do sleep 1; done'
  run_to_end
  [[ ${reason} == timeout && ${code} == 137 ]]
  no_process
}

@test "in a unit's cgroup nothing escapes: no session, no environment, no parent" {
  ((EUID == 0)) || skip "needs root to make a cgroup"
  local root=/sys/fs/cgroup
  [[ -e ${root}/cgroup.procs ]] || root=/sys/fs/cgroup/unified
  local -r unit=${root}/linus-test-${job_id}/linus-job-${job_id}.service
  mkdir -p "${unit}" || skip "no cgroup v2 here"
  task '(env -i setsid bash -c "trap : TERM; echo \$\$; while :; do sleep 1; done" &) | head -n 1; exit 8'
  # A process in it stands for systemd, which makes the unit's cgroup.
  bash -c 'printf "%d\n" $$ >"$1/cgroup.procs"; exec bash "$2" start' _ "${unit}" "${runner}"
  until_true 20 exited
  read_end
  local -r escaped=$(<"${state}/stdout")
  local alive=''
  # A zombie waits for init to read it; it runs no more.
  ! grep -q "^State:.[^Z]" "/proc/${escaped}/status" 2>/dev/null || alive=yes
  until_true 10 rmdir "${unit}/task" "${unit}" "${unit%/*}"
  echo "escaped ${escaped}, alive ${alive}, ${code} ${reason}"
  [[ -z ${alive} && ${code} == 8 && ${reason} == exit && -n ${escaped} ]]
}

@test "what the task leaves in the background ends with it" {
  task 'setsid nohup sleep 300 >/dev/null 2>&1 & sleep 300 & printf done; exit 2'
  run_to_end
  [[ ${reason} == exit && ${code} == 2 && $(<"${state}/stdout") == done ]]
  no_process
}

@test "stop ends the tree, twice is once" {
  task 'printf on; setsid sleep 300 & sleep 300'
  start
  until_true 20 test -s "${state}/stdout"
  run bash "${runner}" stop
  [[ ${status} == 0 && ${output} == *LINUS_JOB_STATE:exited*LINUS_EXIT_REASON:stopped* ]]
  no_process
  run bash "${runner}" stop KILL
  [[ ${status} == 0 && ${output} == *LINUS_EXIT_REASON:stopped* ]]
}

@test "stop KILL does not wait for the task" {
  task 'trap "echo late" TERM; printf on; while :; do sleep 1; done'
  start
  until_true 20 test -s "${state}/stdout"
  bash "${runner}" stop KILL
  read_end
  [[ ${reason} == stopped && ${code} == 137 && $(<"${state}/stdout") == on ]]
}

@test "a job that was stopped before its start does not start" {
  task "echo run >>${BATS_TEST_TMPDIR}/runs"
  run bash "${runner}" stop
  [[ ${status} == 0 && ${output} == *LINUS_JOB_STATE:absent* ]]
  run bash "${runner}" start
  [[ ${status} == 5 && ${output} == *"stopped before it started"* ]]
  run probe
  [[ ${output} == *LINUS_JOB_STATE:absent* && ! -e ${BATS_TEST_TMPDIR}/runs ]]
}

@test "stop without any job, and stop of an ended job, change nothing" {
  mv "${home}/settings" "${home}/later"
  run bash "${runner}" stop
  [[ ${status} == 0 && ${output} == *LINUS_JOB_STATE:absent* && ! -e ${state} ]]
  mv "${home}/later" "${home}/settings"
  task 'exit 3'
  run_to_end
  run bash "${runner}" stop
  [[ ${status} == 0 && ${output} == *LINUS_EXIT_CODE:3*LINUS_EXIT_REASON:exit* ]]
}

@test "start twice runs the task once" {
  task "echo run >>${BATS_TEST_TMPDIR}/runs; until [[ -e ${BATS_TEST_TMPDIR}/over ]]; do sleep 0.1; done"
  start
  run start
  : >"${BATS_TEST_TMPDIR}/over"
  [[ ${status} == 0 && ${output} == *LINUS_JOB_START:already_running* ]]
  until_true 20 exited
  run start
  [[ ${status} == 0 && ${output} == *LINUS_JOB_START:already_* ]]
  [[ $(wc -l <"${BATS_TEST_TMPDIR}/runs") == 1 ]]
}

@test "four starts at once run the task once" {
  task "echo run >>${BATS_TEST_TMPDIR}/runs; sleep 0.2"
  start &
  start &
  start &
  start &
  wait
  until_true 20 exited
  [[ $(wc -l <"${BATS_TEST_TMPDIR}/runs") == 1 ]]
}

kill_runner() {
  local pid
  read -r pid _ <"${state}/runner"
  kill -KILL "${pid}"
  until_true 5 test ! -d "/proc/${pid}"
}

@test "a killed runner's task goes on, and the next start takes it over" {
  task 'printf a; sleep 2; printf b; exit 6'
  start
  until_true 20 test -s "${state}/stdout"
  kill_runner
  run probe
  [[ ${output} == *LINUS_JOB_STATE:running* && ${output} == *LINUS_RUNNER_ALIVE:no* ]]
  run start
  [[ ${output} == *LINUS_JOB_START:resumed* ]]
  until_true 20 exited
  read_end
  [[ ${code} == 6 && ${reason} == exit && $(<"${state}/stdout") == ab ]]
}

@test "a killed runner's successor keeps the timeout of the first" {
  settings TIMEOUT=3
  task 'printf a; sleep 300'
  start
  until_true 20 test -s "${state}/stdout"
  kill_runner
  sleep 2
  start
  until_true 20 exited
  read_end
  [[ ${reason} == timeout && ${duration%.*} -lt 8 ]]
  no_process
}

@test "stop works when the runner was killed" {
  task 'printf a; sleep 300'
  start
  until_true 20 test -s "${state}/stdout"
  kill_runner
  run bash "${runner}" stop
  [[ ${status} == 0 && ${output} == *LINUS_EXIT_REASON:stopped* ]]
  no_process
}

@test "a task whose parent was killed is lost, and its rest ended" {
  task 'printf a; sleep 300'
  start
  until_true 20 test -s "${state}/stdout"
  until_true 20 test -s "${state}/task" # which the runner writes beside the task
  read -r holder _ <"${state}/task"
  kill -KILL "${holder}"
  until_true 20 exited
  read_end
  [[ ${code} == -1 && ${reason} == lost ]]
  no_process
}

@test "a reboot in the middle is told as lost" {
  task 'printf a; sleep 300'
  start
  until_true 20 test -s "${state}/stdout"
  kill_runner
  local boot rest
  read -r boot rest <"${state}/launched"
  printf '00000000-%s %s\n' "${boot#*-}" "${rest}" >"${state}/launched"
  run start
  [[ ${output} == *LINUS_JOB_START:resumed* ]]
  until_true 20 exited
  read_end
  [[ ${code} == -1 && ${reason} == lost && ${text} == *rebooted* ]]
  run probe
  [[ ${output} == *LINUS_EXIT_REASON:lost*LINUS_EXIT_TEXT:*rebooted* ]]
  # The process tree of this test is not really gone; end it.
  read -r _ _ session <"${state}/task"
  kill -KILL -- "-${session}"
}

@test "the runner's start survives the end of the session that called it" {
  task 'sleep 1; printf done'
  setsid bash -c 'bash "$1" start; kill -HUP 0' _ "${runner}" || true
  until_true 20 exited
  read_end
  [[ ${code} == 0 && $(<"${state}/stdout") == done ]]
}

@test "a task finds default signals, its home, and no descriptor of the runner" {
  # 32 and 33 are the C library's own: nobody can set them, so they stay as
  # whoever runs this test has left them.
  task 'read -r _ ignored < <(grep SigIgn /proc/self/status); echo $((16#${ignored} & ~0x180000000)); pwd; ls /proc/self/fd'
  run_to_end
  cat "${state}/stdout"
  [[ $(<"${state}/stdout") == 0$'\n'"${HOME}"$'\n0\n1\n2\n3' ]]
}

@test "a task that fills the disk still has an end" {
  ((EUID == 0)) || skip "needs root to mount a small disk"
  mkdir -p "${state}"
  mount -t tmpfs -o size=1m none "${state}" || skip "cannot mount here"
  task 'head -c 5000000 /dev/zero; exit 7'
  start
  local ended=yes
  until_true 20 exited || ended=''
  [[ -z ${ended} ]] || read_end
  run probe
  until_true 10 bash -c '! fuser -s "$1" 2>/dev/null' _ "${state}" || true
  umount -l "${state}"
  [[ -n ${ended} && ${code} == 7 && ${reason} == exit && ${output} == *LINUS_DISK_FULL:yes* ]]
}

@test "a disk that was full for a while is told, one that was not is not" {
  ((EUID == 0)) || skip "needs root to mount a small disk"
  mkdir -p "${state}"
  mount -t tmpfs -o size=1m none "${state}" || skip "cannot mount here"
  task "head -c 5000000 /dev/zero >'${state}/ballast'; until [[ -s '${state}/full' ]]; do sleep 0.1; done; rm '${state}/ballast'; echo over"
  start
  local ended=yes
  until_true 20 exited || ended=''
  run probe
  until_true 10 bash -c '! fuser -s "$1" 2>/dev/null' _ "${state}" || true
  umount -l "${state}"
  [[ -n ${ended} && ${output} == *LINUS_DISK_FULL:yes* ]]
  rm -rf -- "${state}"
  task 'echo fine'
  run_to_end
  run probe
  [[ ${output} == *JOB_STATE:exited* && ${output} != *DISK_FULL* ]]
}
