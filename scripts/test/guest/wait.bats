#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312 # set by the helper; tasks are quoted on purpose
# A runner that waits for its job.

setup() {
  load runner
  runner_setup
  export LINUS_NONCE=n
}

teardown() { runner_teardown; }

# await starts the runner as linus does in a VM that is to have a job soon, with its
# stdin open until hang_up.
await() { # [<command that starts it>...]
  rm -f "${home}/settings" "${tmpfs}/token"
  mkfifo "${BATS_TEST_TMPDIR}/line"
  "$@" bash "${runner}" wait <"${BATS_TEST_TMPDIR}/line" >"${BATS_TEST_TMPDIR}/said" 2>"${BATS_TEST_TMPDIR}/errors" 3>&- &
  waits=$!
  exec {line}>"${BATS_TEST_TMPDIR}/line"
  until_true 20 said LINUS_WAITING:yes
}

hang_up() { exec {line}>&-; }

said() { grep -aqxF -- "$1" "${BATS_TEST_TMPDIR}/said"; }

# put sends the settings, a token and the task, with printf's escapes.
put() { # <task>
  {
    printf '%s\n' 'secret token text' 't0ken\0012' 'job task text' "$1" 'job settings text'
    printf '%s\\0012' "JOB_ID=${job_id}" AGENT=script TIMEOUT=60 HEARTBEAT_INTERVAL=1 MAX_OUTPUT_SIZE=10485760
    printf '\nend\n'
  } >&"${line}"
  until_true 20 said LINUS_PLACED:yes
}

runner_gone() {
  local pid
  read -r pid _ <"${state}/runner"
  [[ ! -d /proc/${pid} ]]
}

@test "a runner that waits takes its job, begins on a word, and tells of the task" {
  await
  put 'echo "<$LINUS_JOB_ID>"; exit 6'
  [[ $(<"${tmpfs}/token") == t0ken && ! -e ${state}/launched ]]
  printf 'launch\n' >&"${line}"
  wait "${waits}"
  said LINUS_JOB_START:started
  said LINUS_EXIT_CODE:6
  said "<${job_id}>"
  [[ ! -s ${BATS_TEST_TMPDIR}/errors ]]
}

@test "files arrive byte for byte, as a line or as so many bytes" {
  head -c 700000 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  await
  {
    printf 'job blob 700000\n'
    cat "${BATS_TEST_TMPDIR}/blob"
    printf 'job line text\n  \\0000\\0134n%%s"$(id)\\0377 \n'
  } >&"${line}"
  put 'true'
  cmp "${home}/blob" "${BATS_TEST_TMPDIR}/blob"
  printf '  \0\\n%%s"$(id)\377 ' | cmp - "${home}/line"
}

@test "without a word it does nothing, and ends with its connection" {
  await
  put "touch ${root}/ran"
  hang_up
  wait "${waits}" || true
  until_true 20 runner_gone
  [[ ! -e ${root}/ran && ! -e ${state}/launched ]]
}

@test "a connection that is cut within a file puts no job in place" {
  await
  printf 'secret token text\nt0k' >&"${line}"
  hang_up
  ! wait "${waits}" || false
  [[ ! -e ${home}/settings ]]
  [[ $(<"${BATS_TEST_TMPDIR}/said") != *PLACED* ]]
  until_true 20 runner_gone
}

@test "another start uses the runner that waits; the task runs once" {
  await
  put "echo x >>${root}/ran"
  run start
  [[ ${output} == *LINUS_JOB_START:started* ]]
  printf 'launch\n' >&"${line}"
  wait "${waits}"
  [[ $(<"${root}/ran") == x ]]
}

@test "a runner that was killed while it waited is replaced" {
  await
  local pid
  read -r pid _ <"${state}/runner"
  kill -KILL "${pid}"
  put "echo x >>${root}/ran"
  printf 'launch\n' >&"${line}"
  wait "${waits}"
  said LINUS_EXIT_CODE:0
  [[ $(<"${root}/ran") == x ]]
}

@test "what was stopped before it began does not begin" {
  await
  put "touch ${root}/ran"
  LINUS_NONCE='' bash "${runner}" stop TERM
  printf 'launch\n' >&"${line}"
  ! wait "${waits}" || false
  grep -q 'the task was stopped before it started' "${BATS_TEST_TMPDIR}/said"
  until_true 20 runner_gone
  [[ ! -e ${root}/ran ]]
}

@test "directory, terminal and open stdin are the job's, though its runner waited" {
  await
  {
    printf 'secret token text\nt\njob task text\npwd; stty size; read -r x; echo "<$x>"\njob settings text\n'
    printf '%s\\0012' "JOB_ID=${job_id}" AGENT=script TIMEOUT=60 "CWD=${root}" STDIN=open TTY=30x90
    printf '\nend\nlaunch\n'
  } >&"${line}"
  until_true 20 test -e "${state}/session"
  LINUS_NONCE='' bash "${runner}" input 0 <<<hello
  wait "${waits}"
  [[ $(tr -d '\r' <"${state}/stdout") == "${root}"$'\n30 90\nhello\n<hello>' ]]
}

# In a PID namespace of its own the last PID counts all processes.
@test "from its files to its first output a job takes few processes" {
  ((EUID == 0)) || skip "needs root for a PID namespace"
  await unshare --pid --fork --mount-proc
  local inside before after
  inside=$(pgrep -P "${waits}")
  before=$(nsenter -t "${inside}" -p -m awk '{ print $5 }' /proc/loadavg)
  put 'echo first; read -r _ _ _ _ last </proc/loadavg; echo "last ${last}"; sleep 1'
  printf 'launch\n' >&"${line}"
  until_true 20 said first
  wait "${waits}"
  after=$(sed -n 's/^last //p' "${state}/stdout")
  echo "${before} to ${after}"
  ((after - before <= 16))
}
