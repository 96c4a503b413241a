#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC2030,SC2031 # set by the helper; tasks are quoted on purpose

bats_require_minimum_version 1.5.0

setup() {
  load runner
  runner_setup
  others=()
}

teardown() {
  runner_teardown
  local other
  for other in "${others[@]}"; do bash "${other}" stop KILL >/dev/null 2>&1 || true; done
  [[ -z ${user_home:-} ]] || rm -rf "${root}"
}

secrets() { printf '%s\0' "$@" >"${tmpfs}/secrets"; }

@test "jobs side by side in one VM do not touch each other" {
  others=("${runner}")
  local -r first=${runner} first_state=${state} first_id=${job_id}
  task 'echo "first ${LINUS_JOB_ID}"; setsid sleep 300 & sleep 300'
  start
  use_place opt/job-runner/jobs/b var/lib/linus/jobs/b run/linus/jobs/b
  local -r second_state=${state}
  settings STDIN=open
  task 'echo "second ${LINUS_JOB_ID}"; cat "${LINUS_TASK_FILE%/*}/mine" -'
  printf 'my file|' >"${home}/mine"
  start
  printf input | bash "${runner}" input 0
  use_place opt/job-runner/jobs/c var/lib/linus/jobs/c run/linus/jobs/c
  settings TIMEOUT=1
  task 'sleep 300'
  run_to_end
  [[ ${reason} == timeout && ! -e ${second_state}/exit_status && ! -e ${first_state}/exit_status ]]
  bash "${first}" stop
  [[ -e ${first_state}/exit_status && ! -e ${second_state}/exit_status && $(<"${first_state}/stdout") == "first ${first_id}" ]]
  bash "${root}/opt/job-runner/jobs/b/job-runner.sh" close-input
  until_true 20 test -e "${second_state}/exit_status"
  [[ $(<"${second_state}/exit_status") == '0 exit '* && $(<"${second_state}/stdout") == 'second '*$'\nmy file|input' ]]
}

@test "a runner that lies elsewhere does nothing" {
  cp "${runner}" "${BATS_TEST_TMPDIR}/job-runner.sh"
  run bash "${BATS_TEST_TMPDIR}/job-runner.sh" start
  [[ ${status} == 1 && ${output} == *'does not lie in'* ]]
}

@test "a task runs in its working directory, and one that is none is refused" {
  mkdir "${BATS_TEST_TMPDIR}/a b"
  settings "CWD=${BATS_TEST_TMPDIR}/a b"
  task 'pwd'
  run_to_end
  [[ ${code} == 0 && $(<"${state}/stdout") == "${BATS_TEST_TMPDIR}/a b" ]]
  rm -rf "${state}"
  settings "CWD=${BATS_TEST_TMPDIR}/none"
  run start
  [[ ${status} == 1 && ${output} == *"cwd: ${BATS_TEST_TMPDIR}/none is not a directory"* && ! -e ${state}/launched ]]
  # A file that comes with the job makes it.
  job_file 0644 /srv/new/x x
  settings "CWD=${root}/srv/new"
  run_to_end
  [[ ${code} == 0 && $(<"${state}/stdout") == "${root}/srv/new" ]]
}

@test "settings of stdin, terminal, directory and rights that make no sense are refused" {
  task 'true'
  local bad
  for bad in CWD=here SUDO=maybe STDIN=ajar TTY=yes TTY=0x80 TTY=24x TTY=24x80x1 TTY=24x99999; do
    settings "${bad}"
    run start
    echo "${bad}: ${output}"
    [[ ${status} == 1 && ${output} == *LINUS_ERROR:*"${bad%%=*}"* ]]
  done
}

@test "secrets reach the task byte for byte, over its env, and are gone when it runs" {
  secrets 'A=planted-secret' $'B=li\nne \xff "$(id)"' 'C=' 'home=x'
  printf '%s\0' 'A=from env' >"${home}/env"
  task 'declare -p A C home; printf "%s" "$B" | od -An -tx1 | tr -d " \n"; [[ -e '"${tmpfs}"'/secrets ]] || printf gone; ls /proc/self/fd | wc -l'
  run_to_end
  cat "${state}/stdout"
  [[ $(<"${state}/stdout") == 'declare -x A="planted-secret"'$'\n''declare -x C=""'$'\n''declare -x home="x"'$'\n'"$(printf 'li\nne \xff "$(id)"' | od -An -tx1 | tr -d ' \n')gone4" ]]
  [[ ! -e ${tmpfs}/secrets ]]
}

@test "a secret is in no argument list, no file but the tmpfs', and no other environment" {
  secrets 'KEY=planted-secret'
  settings STDIN=open TTY=24x80
  task 'printf on; while sleep 0.1; do [ -n "$KEY" ]; done'
  local -r planted=${BATS_TEST_TMPDIR}/planted
  printf 'planted-secret' >"${planted}"
  local seen=''
  start &
  while [[ ! -s ${state}/stdout ]]; do
    ! grep -laFf "${planted}" /proc/[0-9]*/cmdline 2>/dev/null || seen=yes
  done
  wait "$!"
  [[ -z ${seen} ]]
  run ! grep -rlFf "${planted}" "${root}"
  # The task and its children alone have it, not those who wait for it.
  local entry
  local -i count=0
  while read -r entry; do
    [[ -e ${entry} ]] || continue # a child that has ended
    grep -qzxF "LINUS_JOB_ID=${job_id}" "${entry}" || [[ ! -s ${entry} ]]
    ((count += 1))
  done < <(grep -laFf "${planted}" /proc/[0-9]*/environ 2>/dev/null)
  ((count > 0))
}

@test "secrets sent again to a task that has them are removed" {
  secrets 'A=one'
  task 'printf "%s" "$A"; sleep 2'
  start
  until_true 20 test -s "${state}/stdout"
  secrets 'A=two'
  run start
  [[ ${output} == *already_running* && ! -e ${tmpfs}/secrets ]]
  until_true 20 exited
  [[ $(<"${state}/stdout") == one ]]
  secrets 'A=three'
  start
  [[ ! -e ${tmpfs}/secrets ]]
}

@test "secrets of a task that never came to run are removed with its end" {
  settings SUDO=no "CWD=${BATS_TEST_TMPDIR}"
  secrets 'A=one'
  task 'sleep 300'
  # A reboot before the task could read them.
  bash -c 'source "$1"; find_place; settings_load; umask 077; prepare_state; read_boot_id; publish launched "not-this-boot 1 1 "; run_job' _ "${runner}" || true
  read_end
  [[ ${reason} == lost && ! -e ${tmpfs}/secrets ]]
}

@test "a secret that only an argument list could hand on is refused" {
  task 'true'
  local bad
  for bad in UID=1 _=1 BASHOPTS=x POSIXLY_CORRECT=y LINUS_JOB_ID=x '1A=x' novalue; do
    secrets "${bad}"
    run start
    echo "${bad}: ${output}"
    [[ ${status} == 1 && ${output} == *'LINUS_ERROR:secrets:'* && ! -e ${state}/launched ]]
  done
}

# as_user runs the runner as a login user who may use sudo without a password;
# in a mount namespace, where that is true for this process alone.
as_user() { # <command...>
  unshare -m bash -c 'mount --bind "$1" /etc/sudoers && shift && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"' _ \
    "${BATS_FILE_TMPDIR}/sudoers" env "HOME=${user_home}" USER=nobody "$@"
}

use_sudo() { # [<rule>]
  ((EUID == 0)) || skip "needs root to become another user"
  type -P sudo >/dev/null || skip "needs sudo"
  # As Debian and Ubuntu have it: sudo makes a terminal of its own in one.
  printf '%s\n' "${1:-nobody ALL=(ALL) NOPASSWD:ALL}" 'Defaults env_reset, use_pty' \
    'Defaults secure_path="/usr/local/bin:/usr/bin:/bin"' >"${BATS_FILE_TMPDIR}/sudoers"
  chmod 440 "${BATS_FILE_TMPDIR}/sudoers"
  # Where that user can go: bats' own directory is root's alone.
  root=$(mktemp -d)
  chmod 755 "${root}"
  user_home=${root}/home
  mkdir "${user_home}"
  use_place opt/job-runner var/lib/linus/job run/linus
  settings SUDO=yes
}

# The user owns all that linus puts there for them.
as_user_start() {
  mkdir -p "${state}"
  chown -R 65534:65534 "${root}"
  as_user bash "${runner}" start
}

@test "a task with sudo is root, with its env, secrets, directory and exit code" {
  use_sudo
  secrets 'KEY=planted-secret' 'LD_X=1' 'PYTHONPATH=/x'
  printf '%s\0' $'V=a\nb' >"${home}/env"
  task 'id -u; pwd; echo "$HOME $SUDO_USER"; printf "%s|%s|%s|%s|%s\n" "$V" "$KEY" "$PYTHONPATH" "$LD_X" "$LINUS_JOB_ID"; umask; exit 9'
  as_user_start
  until_true 20 exited
  read_end
  cat "${state}/stdout" "${state}/stderr" "${state}/runner.log"
  [[ ${code} == 9 && $(<"${state}/stdout") == $'0\n'"${user_home}"$'\n/root nobody\na\nb|planted-secret|/x|1|'"${job_id}"$'\n0022' ]]
  [[ ! -e ${tmpfs}/secrets && $(stat -c %u "${state}/exit_status") == 65534 ]]
}

@test "a root task's tree ends with it, in a terminal too, and with its signal" {
  local mode
  for mode in STDIN=closed TTY=24x80; do
    use_sudo
    settings SUDO=yes "${mode}" TIMEOUT=2
    task 'setsid sleep 300 & (env -i bash -c "trap : TERM HUP; while :; do sleep 1; done" &); printf on; sleep 300'
    as_user_start
    until_true 30 exited
    read_end
    echo "${mode}: ${code} ${reason}"
    cat -A "${state}/runner.log" "${state}/stdout" "${state}/stderr"
    [[ ${reason} == timeout && ${code} == 143 && $(<"${state}/stdout") == on* ]]
    no_process
    rm -rf "${root}"
  done
}

@test "a root task is answered, and stopped by its user" {
  use_sudo
  settings SUDO=yes STDIN=open TTY=30x90
  task 'stty size; printf "line? "; read -r line; echo "<${line}>"; stty size; sleep 300'
  as_user_start
  until_true 20 grep -q 'line? ' "${state}/stdout"
  as_user bash "${runner}" resize 40x100
  as_user bash "${runner}" input 0 <<<hello
  until_true 10 grep -q '^40 100' "${state}/stdout"
  run as_user bash "${runner}" stop
  cat -A "${state}/stdout"
  [[ ${status} == 0 && ${output} == *LINUS_EXIT_REASON:stopped* && $(<"${state}/stdout") == $'30 90\r'* ]]
  no_process
}

@test "a root task's open stdin is exact, and a closed one has its end in a terminal too" {
  use_sudo
  settings SUDO=yes STDIN=open
  head -c 300000 /dev/urandom >"${root}/blob"
  task 'sha256sum'
  as_user_start
  as_user bash "${runner}" input 0 <"${root}/blob"
  as_user bash "${runner}" close-input
  until_true 20 exited
  [[ $(<"${state}/stdout") == "$(sha256sum <"${root}/blob")" ]]
  rm -rf "${state}"
  settings SUDO=yes TTY=24x80
  task 'cat; exit 4'
  as_user_start
  until_true 20 exited
  read_end
  [[ ${code} == 4 && ${reason} == exit && ! -s ${state}/stdout ]]
}

@test "files go where root alone may write, and are the user's all the same" {
  use_sudo
  settings SUDO=no
  mkdir -p "${root}/srv/old"
  job_file 0640 /srv/new/deep/a one
  job_file 4755 /srv/old/b two
  job_file 0600 /home/c three
  task 'true'
  mkdir -p "${state}"
  chown -R 65534:65534 "${root}"
  chown 0:0 "${root}" "${root}/srv" "${root}/srv/old"
  as_user bash "${runner}" start
  until_true 20 exited
  [[ $(cat "${root}/srv/new/deep/a" "${root}/srv/old/b" "${user_home}/c") == onetwothree ]]
  [[ $(stat -c '%a %u:%g' "${root}"/srv/{new,new/deep,new/deep/a,old,old/b}) == $'755 65534:65534\n755 65534:65534\n640 65534:65534\n755 0:0\n4755 65534:65534' ]]
  # Without sudo it cannot be, and is said.
  use_sudo 'nobody ALL=(ALL) ALL'
  settings SUDO=no
  mkdir -p "${root}/srv" "${state}"
  job_file 0640 /srv/a one
  task 'true'
  chown -R 65534:65534 "${root}"
  chown 0:0 "${root}" "${root}/srv"
  run as_user bash "${runner}" start
  echo "${output}"
  [[ ${status} == 1 && ${output} == *"LINUS_ERROR:cannot install the job's files: "*password*LINUS_REMEDY:* && ! -e ${state}/launched ]]
}

@test "what a root task leaves to root alone is found, and lent to its user" {
  use_sudo
  printf '%s\0' 'out/**' >"${home}/artifacts"
  task 'umask 077; mkdir out; printf mine >out/a; umask 022; printf all >out/b'
  as_user_start
  until_true 20 exited
  LINUS_NONCE=n run as_user env LINUS_NONCE=n bash "${runner}" artifacts 10 1000 1000
  echo "${output}"
  [[ ${status} == 0 && ${output} == *LINUS_ARTIFACTS:2*LINUS_RESULT:SUCCESS*LINUS_END:n* ]]
  local -a fields
  mapfile -d '' -t fields <"${state}/artifacts.index"
  [[ ${fields[0]} == out/a && ${fields[3]} == 0600 && ${fields[5]} == out/b ]]
  [[ $(as_user cat "${fields[1]}") == mine && $(as_user cat "${fields[6]}") == all ]]
}

@test "sudo that asks for a password is refused before anything runs" {
  use_sudo 'nobody ALL=(ALL) ALL'
  task 'true'
  run as_user_start
  [[ ${status} == 2 && ${output} == *LINUS_ERROR:*sudo*LINUS_REMEDY:* && ! -e ${state}/launched ]]
}
