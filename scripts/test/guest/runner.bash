# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034,SC2119,SC2120,SC2312 # bats sets its own, tests read ours
# What the job runner's tests share: a guest under a prefix, filled as linus
# fills it, and a callback server. Everything started is ended by its job id.

runner_setup() {
  root=${BATS_TEST_TMPDIR}/guest
  server=${BATS_TEST_TMPDIR}/server
  mkdir -p "${server}"
  printf 'the-secret-token' >"${server}/token"
  server_pid=''
  use_place opt/job-runner var/lib/linus/job run/linus
}

# use_place puts the runner of a new job where linus puts it.
use_place() { # <home> <state> <tmpfs>, all below root
  home=${root}/$1 state=${root}/$2 tmpfs=${root}/$3
  runner=${home}/job-runner.sh
  job_id=$(</proc/sys/kernel/random/uuid)
  mkdir -p "${home}" "${tmpfs}"
  cp "${server}/token" "${tmpfs}/token"
  awk -v dir="${BATS_TEST_DIRNAME}/../.." -v script=guest/job-runner.sh -f "${BATS_TEST_DIRNAME}/../helper/in-one-piece.awk" >"${runner}"
  settings
}

runner_teardown() {
  local pid start
  [[ -z ${server_pid} ]] || kill "${server_pid}" 2>/dev/null || true
  if [[ -e ${state}/runner ]]; then
    LINUS_NONCE='' bash "${runner}" stop KILL >/dev/null 2>&1 || true
    read -r pid start _ <"${state}/runner"
    source "${BATS_TEST_DIRNAME}/../../lib/process.sh"
    ! process_alive "${pid}" "${start}" || kill -KILL "${pid}" 2>/dev/null || true
  fi
}

settings() { # <KEY=VALUE...>: over the defaults
  printf '%s\n' "JOB_ID=${job_id}" AGENT=script TIMEOUT=60 STATUS_MODE=simple HEARTBEAT_INTERVAL=1 \
    MAX_OUTPUT_SIZE=10485760 "$@" >"${home}/settings"
}

task() { # <text>
  printf '%s' "$1" >"${home}/task"
}

job_file() { # <mode> <path> <content, with printf's escapes>: one more, as linus packs them
  local -r packed=${BATS_TEST_TMPDIR}/packed
  mkdir -p "${packed}${2%/*}"
  # shellcheck disable=SC2059 # the escapes are the point
  printf "$3" >"${packed}$2"
  chmod "$1" "${packed}$2"
  printf '%s\0' "$1" "$2" >>"${home}/files.index"
  tar -r -f "${home}/files.tar" -C "${packed}" -- ".$2"
}

start() { bash "${runner}" start; }
probe() { bash "${runner}" probe; }

until_true() { # <seconds> <command...>
  local -r deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    if ((SECONDS >= deadline)); then
      echo "never true: $*" >&2
      cat -- "${state}/runner.log" >&2 || true
      return 1
    fi
    sleep 0.05
  done
}

exited() { [[ -e ${state}/exit_status ]]; }
completed() { [[ -e ${state}/completion ]]; }

run_to_end() { # sets code reason duration text
  start
  until_true 40 exited
  read_end
}

read_end() {
  read -r code reason _ _ duration text <"${state}/exit_status"
}

# has_process tells whether any process carries the job's id.
has_process() {
  grep -lzxF -- "LINUS_JOB_ID=${job_id}" /proc/[0-9]*/environ 2>/dev/null | grep -q .
}
no_process() { ! has_process; }

serve() { # [<port>]
  rm -f "${server}/port"
  perl "${BATS_TEST_DIRNAME}/callback-server.pl" "${server}" "$@" 3>&- >/dev/null 2>&1 &
  server_pid=$!
  until_true 10 test -e "${server}/port"
  port=$(<"${server}/port")
}

requests() { # <route>: how many
  grep -c "/callback/${job_id}/$1" "${server}/requests" 2>/dev/null || true
}
