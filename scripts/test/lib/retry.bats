#!/usr/bin/env bats
# lib/retry.sh: changes that count only when they can be read back.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
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
  [[ ${count} -eq 5 && $(grep -c LINUS_LOCK_RETRY "${BATS_TEST_TMPDIR}/told") -eq 5 ]]
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

@test "Proxmox is told of the config that a change was chosen by, where it takes that" {
  # shellcheck disable=SC2016 # the inner shell's own variables
  local -r told=(sh -c 'echo "$*" >"$0"' "${record}")
  vm_digest=0123
  retry_by=digest retry_change never 5 "${told[@]}" 2>/dev/null
  [[ $(<"${record}") == '--digest 0123' ]]
  local LINUS_PVE_DIR=${BATS_TEST_TMPDIR} vm_asked=100
  mkdir "${LINUS_PVE_DIR}/qemu-server"
  : >"${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_digest=da39a3ee5e6b4b0d3255bfef95601890afd80709 # of nothing
  retry_by=guard retry_change never 5 "${told[@]}" 2>/dev/null
  [[ -z $(<"${record}") ]]
  retry_change never 5 "${told[@]}" 2>/dev/null
  [[ -z $(<"${record}") ]]
  vm_digest=''
  retry_by=digest retry_change never 5 "${told[@]}" 2>/dev/null
  [[ -z $(<"${record}") ]]
}

@test "a further try for which the way is not clear is not made" {
  clear_way() { retry_landed=hopeless; }
  # shellcheck disable=SC2016 # the inner shell's own variables
  retry_clear=clear_way retry_change never 5 sh -c 'echo >>"$1"; echo "got timeout" >&2' sh "${record}" 2>/dev/null
  count_tries
  [[ ${retry_landed} == hopeless && ${count} -eq 1 ]]
}

@test "a change that did not land is told with what helps: quorum, room, or the caller's word" {
  declare -gA vm_config=([scsi0]='local-lvm:vm-100-disk-0,size=10G')
  helps() { # <what Proxmox says> <kind> <what helps>
    run_said=$1 result_remedy=''
    result_fail() {
      [[ -n ${result_remedy} ]] || result_remedy="$1: $3"
    }
    retry_fail what remedy
    [[ ${result_remedy} == "$2: $3"* ]]
  }
  helps 'cluster not ready - no quorum?' config 'bring the other nodes'
  helps "unable to open file '/etc/pve/nodes/pve/qemu-server/100.conf.tmp.1' - Permission denied" config 'bring the other nodes'
  helps "unable to open file '/etc/other' - Permission denied" vm remedy
  helps 'write error: No space left on device' vm 'free some space on local-lvm '
}
