#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312 # set by the helper; tasks are quoted on purpose

bats_require_minimum_version 1.5.0

setup() {
  load runner
  runner_setup
}

teardown() { runner_teardown; }

# last_body prints the body of the last request to a route.
last_body() { # <route>
  local number
  number=$(grep -n "/callback/${job_id}/$1" "${server}/requests" | tail -n 1)
  cat "${server}/body.${number%%:*}"
}

beats() { (($(requests heartbeat) >= $1)); }
completes() { (($(requests complete) >= $1)); }

@test "completion tells code and duration, and is recorded once" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}/"
  task 'sleep 1.2; exit 3'
  run_to_end
  until_true 20 completed
  [[ $(<"${state}/completion") == 'recorded 200'* ]]
  run last_body complete
  echo "${output}"
  [[ ${output} =~ ^\{\"job_id\":\"${job_id}\",\"status\":\"failed\",\"exit_code\":3,\"output\":\"\",\"duration_seconds\":[1-9]\.[0-9]{2}\}$ ]]
  run start
  [[ ${output} == *already_* ]]
  [[ $(requests complete) == 1 ]]
}

@test "success, timeout and stop are told as such, in JSON" {
  serve
  local url="CALLBACK_URL=http://127.0.0.1:${port}"
  settings "${url}"
  task 'true'
  run_to_end
  until_true 20 completed
  [[ $(last_body complete | jq -r '.status, .exit_code, has("reason"), has("error")') == $'success\n0\nfalse\nfalse' ]]
  rm -rf "${state}"
  settings "${url}" TIMEOUT=1
  task 'sleep 300'
  run_to_end
  until_true 20 completed
  [[ $(last_body complete | jq -r '.status, .exit_code, .reason, .error') == $'failed\n143\ntimeout\nran longer than 1 s' ]]
  rm -rf "${state}"
  settings "${url}"
  start
  bash "${runner}" stop
  until_true 20 completed
  [[ $(last_body complete | jq -r '.status, .reason') == $'failed\nstopped' ]]
}

@test "heartbeats come while the task runs, and output only over SSH in simple mode" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'echo text; sleep 3'
  start
  until_true 10 beats 2
  until_true 20 completed
  [[ $(requests output) == 0 && $(requests status) == 0 ]]
  local -r then=$(requests heartbeat)
  sleep 1.5
  [[ $(requests heartbeat) == "${then}" ]]
}

@test "streaming sends output as it is written, whole and in order" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}" STATUS_MODE=streaming
  head -c 700000 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  task "printf first; sleep 2; cat ${BATS_TEST_TMPDIR}/blob; printf 'e\\xff\\x00' >&2"
  start
  until_true 10 test -s "${server}/got.stdout"
  [[ ! -e ${state}/exit_status ]]
  until_true 20 completed
  cmp "${state}/stdout" "${server}/got.stdout"
  cmp "${state}/stderr" "${server}/got.stderr"
  [[ $(last_body status | jq -r .progress) == 'running for '* ]]
}

@test "output is sent up to MAX_OUTPUT_SIZE; the rest stays in the guest" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}" STATUS_MODE=detailed MAX_OUTPUT_SIZE=1000
  task 'head -c 5000 /dev/zero'
  run_to_end
  until_true 20 completed
  [[ $(stat -c %s "${state}/stdout") == 5000 && $(stat -c %s "${server}/got.stdout") == 1000 ]]
}

@test "a sender resumes from the length the server holds" {
  serve
  printf abc >"${server}/got.stdout"
  settings "CALLBACK_URL=http://127.0.0.1:${port}" STATUS_MODE=detailed
  task 'printf abcdef; sleep 1'
  run_to_end
  until_true 20 completed
  [[ $(<"${server}/got.stdout") == abcdef ]]
}

@test "completion is tried until a server that was down is up" {
  serve
  kill "${server_pid}"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'exit 5'
  run_to_end
  sleep 1
  [[ ${code} == 5 && ! -e ${state}/completion ]]
  serve "${port}"
  until_true 20 completed
  [[ $(last_body complete | jq .exit_code) == 5 ]]
}

@test "completion is tried until an error of the server has passed" {
  serve
  printf 503 >"${server}/answer"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'true'
  run_to_end
  until_true 20 completes 2
  [[ ! -e ${state}/completion ]]
  rm "${server}/answer"
  # A start of a job whose runner waits makes it try at once.
  run start
  [[ ${output} == *already_running* ]]
  until_true 20 completed
}

@test "a runner killed before its completion was recorded is resumed by start" {
  serve
  printf 503 >"${server}/answer"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'exit 4'
  run_to_end
  until_true 20 completes 1
  local pid
  read -r pid _ <"${state}/runner"
  kill -KILL "${pid}"
  until_true 5 test ! -d "/proc/${pid}"
  rm "${server}/answer"
  run start
  [[ ${output} == *LINUS_JOB_START:resumed* ]]
  until_true 20 completed
  [[ $(last_body complete | jq .exit_code) == 4 ]]
}

@test "callbacks move to a URL the server answers at, while the task runs" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:9" # nothing listens there
  task 'sleep 4'
  start
  run bash "${runner}" callback "http://127.0.0.1:${port}"
  [[ ${status} == 0 && ${output} == *LINUS_CALLBACK:reached* ]]
  until_true 10 beats 1
  until_true 20 completed
}

@test "a completion that waits for its next try goes to the new URL at once" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:9"
  task 'exit 6'
  run_to_end
  sleep 8 # the next try is about 8 s away
  [[ ! -e ${state}/completion ]]
  bash "${runner}" callback "http://127.0.0.1:${port}"
  until_true 3 completed
  [[ $(last_body complete | jq .exit_code) == 6 ]]
}

@test "callbacks stay where they go when no linus server answers at a URL" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'sleep 2'
  start
  run bash "${runner}" callback http://127.0.0.1:9
  [[ ${status} == 0 && ${output} == *LINUS_CALLBACK:unreachable* ]]
  printf '<html>please log in</html>' >"${server}/health" # somebody answers, but not linus
  run bash "${runner}" callback "http://127.0.0.1:${port}"
  [[ ${output} == *LINUS_CALLBACK:unreachable* ]]
  [[ ! -e ${state}/callback_url ]]
  run bash "${runner}" callback 'file:///etc/passwd'
  [[ ${status} == 1 && ${output} == *'is not a URL'* ]]
  until_true 20 completed
}

@test "a wrong token is refused, and the right one heals it" {
  serve
  printf wrong >"${tmpfs}/token"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'true'
  run_to_end
  until_true 20 completes 2
  [[ ! -e ${state}/completion && $(<"${server}/requests") != *' 200'* ]]
  printf 'the-secret-token\n' >"${tmpfs}/token"
  until_true 20 completed
}

@test "completion is given up when the server has refused for too long" {
  serve
  printf 404 >"${server}/answer"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'true'
  # An hour is too long for a test: the function itself, with a shorter one.
  bash -c 'source "$1"; give_up_after=1; umask 077; set +e; find_place; mkdir -p "${state}"; prepare_state; run_job' _ "${runner}" || true
  [[ $(<"${state}/completion") == 'given_up 404'* ]]
  run start
  [[ ${output} == *already_finished* ]]
}

@test "a runner whose job was removed from the VM ends" {
  serve
  printf 404 >"${server}/answer"
  settings "CALLBACK_URL=http://127.0.0.1:${port}"
  task 'true'
  run_to_end
  local pid
  read -r pid _ <"${state}/runner"
  rm -rf "${home}" "${state}" "${tmpfs}"
  until_true 20 test ! -d "/proc/${pid}"
}

@test "a server that never answers does not hold up the timeout" {
  # A listener that accepts and stays silent.
  perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 9); open F, ">", $ARGV[0]; print F $s->sockport; close F; push @c, $_ while $_ = $s->accept' "${server}/port" 3>&- &
  server_pid=$!
  until_true 10 test -s "${server}/port"
  settings "CALLBACK_URL=http://127.0.0.1:$(<"${server}/port")" TIMEOUT=1 STATUS_MODE=streaming
  task 'sleep 300'
  run_to_end
  [[ ${reason} == timeout && ${duration%.*} -lt 8 ]]
}

@test "the token is never in a process's arguments or in the runner's log" {
  serve
  settings "CALLBACK_URL=http://127.0.0.1:${port}" STATUS_MODE=streaming
  task 'for i in $(seq 30); do echo $i; sleep 0.1; done'
  start
  local seen='' try
  for ((try = 0; try < 300; try += 1)); do
    ! grep -laFf "${tmpfs}/token" /proc/[0-9]*/cmdline 2>/dev/null || seen=yes
    [[ ! -e ${state}/completion ]] || break
  done
  [[ -z ${seen} ]]
  run ! grep -rqF the-secret-token "${state}"
}
