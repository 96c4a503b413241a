#!/usr/bin/env bats
# lib/destroy.sh: the lock that a stop and a destroy are done under. What they do
# is tested with destroy-vm.sh and create-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs destroy
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
  mkdir "${dir}.open" "${dir}.group" "${dir}.others"
  chmod 1777 "${dir}.open"
  chmod 0702 "${dir}.others"
  chmod 0770 "${dir}.group"
  : >"${dir}.file"
  mkdir -m 0700 "${dir}.theirs"
  ((EUID != 0)) || chown 65534 "${dir}.theirs"
  local -a wrong=("${dir}.link" "${dir}.open" "${dir}.group" "${dir}.others" "${dir}.file")
  ((EUID != 0)) || wrong+=("${dir}.theirs")
  for dir in "${wrong[@]}"; do
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

until_awaited() { # <inode>: until somebody waits for the lock on it
  local -r deadline=$((SECONDS + 20))
  until grep -qE -- "-> FLOCK .*:$1 " /proc/locks; do
    ((SECONDS < deadline)) || return 1
    sleep 0.02
  done
}

# The file goes with the lock: what was taken of a file that is gone keeps nobody out.
@test "who waited for a lock whose file went takes the lock of the next one" {
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks
  local next inode
  vm_lock 100
  inode=$(stat -c %i "${vm_lock_file}")
  (
    exec 9>&-
    vm_lock 100
    echo "${vm_locked}" >"${BATS_TEST_TMPDIR}/locked"
  ) 3>&- &
  until_awaited "${inode}"
  rm -f -- "${vm_lock_file}"
  exec {next}>>"${vm_lock_file}"
  flock "${next}"
  exec 9>&-
  inode=$(stat -c %i "${vm_lock_file}")
  until_awaited "${inode}"
  [[ ! -e ${BATS_TEST_TMPDIR}/locked ]]
  exec {next}>&-
  wait "$!"
  [[ $(<"${BATS_TEST_TMPDIR}/locked") == yes ]]
}

# A roll-back destroys under the lock, and lets go of what its script holds: by then the file may be another's.
@test "a lock that was given back is not taken from who has it by then" {
  load_libs power
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks
  vm_lock 100
  vm_unlock
  : >"${vm_lock_file}"
  power_let_go
  [[ -e ${vm_lock_file} ]]
}
