#!/usr/bin/env bats
# lib/destroy.sh: the lock that a stop and a destroy are done under. What they do
# is tested with destroy-vm.sh and create-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
# shellcheck source=../helper/lib.bash
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs log stat run vm destroy
  run_init
}

@test "locks lie in a directory of ours alone, which is made" {
  local dir=${BATS_TEST_TMPDIR}/locks
  stub_program qm 'echo called >>'"${BATS_TEST_TMPDIR}/calls"
  LINUS_LOCK_DIR=${dir} vm_lock 100
  [[ ${vm_locked} == yes && -e ${dir}/linus-vm-100.lock ]]
  local mode
  mode=$(stat -c %a "${dir}")
  [[ ${mode} == 700 ]]
  vm_unlock
  ln -s "${dir}" "${dir}.link"
  mkdir "${dir}.open" "${dir}.group"
  chmod 1777 "${dir}.open"
  chmod 0770 "${dir}.group"
  : >"${dir}.file"
  for dir in "${dir}.link" "${dir}.open" "${dir}.group" "${dir}.file"; do
    LINUS_LOCK_DIR=${dir} vm_destroy 100 pve
    [[ ${vm_outcome} == failed && ${vm_reason} == *"could not take a lock in ${dir}"* ]]
    [[ ! -e ${dir}/linus-vm-100.lock ]]
  done
  [[ ! -e ${BATS_TEST_TMPDIR}/calls ]]
}

@test "a lock that cannot be had refuses the destroy" {
  stub_program qm 'echo called >>'"${BATS_TEST_TMPDIR}/calls"
  LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/none/locks vm_destroy 100 pve
  [[ ${vm_outcome} == failed && ${vm_reason} == *'could not take a lock'* && ! -e ${BATS_TEST_TMPDIR}/calls ]]
}
