#!/usr/bin/env bats
# lib/retry.sh: changes that count only when they can be read back.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs retry
  run_init
  stub_program sleep :
  export LINUS_SLEEP=sleep
  record=${BATS_TEST_TMPDIR}/tries
  : >"${record}"
}

never() { # nothing ever lands
  retry_landed=no
}

count_tries() { # count
  count=$(wc -l <"${record}")
}

@test "every lock text of Proxmox is worth another try" {
  local text
  for text in 'got timeout' 'got lock request timeout' 'got no worker upid' 'locked command timed out' \
    'VM is locked (clone)' "can't lock file '/var/lock/qemu-server/lock-110.conf' - got timeout"; do
    : >"${record}"
    second_time() {
      count_tries
      if ((count == 2)); then retry_landed=yes; fi
    }
    # shellcheck disable=SC2016 # the inner shell's own variables
    retry_change second_time 5 sh -c 'echo >>"$1"; echo "$2" >&2; exit 255' sh "${record}" "${text}" 2>/dev/null
    [[ ${retry_landed} == yes && ${count} -eq 2 ]]
  done
}

@test "each further try for a lock's sake is told" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_change never 5 sh -c 'echo "got timeout" >&2' >"${BATS_TEST_TMPDIR}/told" 2>/dev/null
  count=$(grep -c '^LINUS_LOCK_RETRY:[1-5]/6$' "${BATS_TEST_TMPDIR}/told")
  [[ ${count} -eq 5 ]]
  retry_change never 5 sh -c 'echo "no space left" >&2' >"${BATS_TEST_TMPDIR}/told" 2>/dev/null
  [[ ! -s ${BATS_TEST_TMPDIR}/told ]]
}

@test "a further try needs nobody who listens" {
  trap : PIPE
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_change never 5 sh -c 'echo >>"$1"; echo "got timeout" >&2' sh "${record}" 2>/dev/null >/dev/full
  count_tries
  [[ ${count} -eq 6 ]]
}

@test "any other error is told at once, its words and exit kept" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_change never 5 sh -c 'echo >>"$1"; echo "no space left" >&2; exit 25' sh "${record}" 2>/dev/null
  count_tries
  [[ ${retry_landed} == no && ${count} -eq 1 && ${run_rc} -eq 25 && ${run_said} == 'no space left' ]]
}

@test "exit 0 is not believed when nothing landed" {
  retry_change never 5 true 2>/dev/null
  [[ ${retry_landed} == no ]]
}

@test "a lost answer is believed when the change landed: no second try" {
  landed() { retry_landed=yes; }
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_change landed 5 sh -c 'echo >>"$1"; echo "got timeout" >&2; exit 255' sh "${record}" 2>/dev/null
  count_tries
  [[ ${retry_landed} == yes && ${count} -eq 1 ]]
}

@test "tries are bounded" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_change never 5 sh -c 'echo >>"$1"; echo "got timeout" >&2' sh "${record}" 2>/dev/null
  count_tries
  [[ ${retry_landed} == no && ${count} -eq 6 ]]
}

@test "the pauses differ and grow, but stay in seconds" {
  # shellcheck disable=SC2016 # the stub's parameter
  stub_program sleep 'echo "$1" >>'"${BATS_TEST_TMPDIR}/pauses"
  retry_change never 5 sh -c 'echo "got timeout" >&2' 2>/dev/null
  local pause
  while read -r pause; do
    [[ ${pause} =~ ^[0-6]\.[0-9]{3}$ ]]
  done <"${BATS_TEST_TMPDIR}/pauses"
}
