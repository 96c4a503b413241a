#!/usr/bin/env bats
# lib/log.sh: the log for people.

source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs log
}

@test "the log goes to stderr only, with time and level" {
  local out
  out=$(log_warn 'a' 'b' 2>"${BATS_TEST_TMPDIR}/err")
  [[ -z ${out} && $(<"${BATS_TEST_TMPDIR}/err") =~ ^[0-9:]{8}\ warn\ \ a\ b$ ]]
}

@test "a closed stderr stops nothing" {
  set -e
  log_info 'nobody reads this' 2>&-
}
