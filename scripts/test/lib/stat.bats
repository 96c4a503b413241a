#!/usr/bin/env bats
# lib/stat.sh: one process, as /proc has it.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs stat
}

@test "start, parent and session are read whatever a process is called" {
  local file pid
  for file in plain 'a ) Z 1 2 3 (b'; do
    cp /bin/sleep "${BATS_TEST_TMPDIR}/${file}"
    setsid "${BATS_TEST_TMPDIR}/${file}" 60 3>&- &
    pid=$!
    until [[ $(<"/proc/${pid}/comm") == "${file:0:15}" ]]; do sleep 0.02; done
    stat_read "${pid}"
    kill "${pid}"
    [[ ${stat_start} =~ ^[0-9]{3,}$ && ${stat_parent} == "${BASHPID}" && ${stat_session} == "${pid}" ]]
  done
}

@test "what is not there, or has ended and is not waited for, is none" {
  local pid
  stat_read 999999999
  [[ -z ${stat_start}${stat_parent}${stat_session} ]]
  # Bash would wait for its children by itself.
  : >"${BATS_TEST_TMPDIR}/pid"
  perl -e '$| = 1; my $child = fork // die; exit if !$child; print "$child\n"; sleep 60' >"${BATS_TEST_TMPDIR}/pid" 3>&- &
  for _ in {1..500}; do
    pid=$(<"${BATS_TEST_TMPDIR}/pid")
    [[ -z ${pid} ]] || ! grep -q '^State:[[:space:]]*Z' "/proc/${pid}/status" || break
    sleep 0.02
  done
  stat_read "${pid}"
  kill "$!"
  [[ -z ${stat_start} ]]
}
