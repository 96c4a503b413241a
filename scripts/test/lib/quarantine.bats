#!/usr/bin/env bats
# lib/quarantine.sh: which VM IDs are not clean, and when they are again. What is done with
# them is tested with create-vm.sh, destroy-vm.sh and list-vms.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs quarantine log
  run_init
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host
  dir=${LINUS_HOST_DIR}/quarantine
  # shellcheck disable=SC2016 # the stub's own variable
  stub_program pvesm 'echo "$2" >>'"${BATS_TEST_TMPDIR}"'/asked
    cat '"${BATS_TEST_TMPDIR}"'/"$2"'
}

on() { # <storage> <volume...>: what is there
  printf '%s\n' 'Volid Format Type Size VMID' "${@:2}" >"${BATS_TEST_TMPDIR}/$1"
}

@test "an ID is not clean while one of its volumes is there, and only these are named" {
  on local-lvm 'local-lvm:vm-205-disk-3   raw  images  4194304 205' 'local-lvm:vm-2050-disk-1 raw images 1 2050'
  on other 'other:vm-9-disk-0 raw images 1 9'
  run quarantine_add 205 local-lvm:vm-205-disk-3 local-lvm:vm-205-disk-4 other:vm-205-disk-0
  [[ ${status} -eq 0 && -z ${output} ]]
  quarantine_add 206 other:vm-206-disk-0 local-lvm:vm-205-disk
  quarantine_read
  [[ ${!quarantined[*]}/${quarantined[*]} == 205/local-lvm:vm-205-disk-3 && -e ${dir}/205 && ! -e ${dir}/206 ]]
  [[ $(sort "${BATS_TEST_TMPDIR}/asked") == $'local-lvm\nother' ]] # each once
  on local-lvm
  quarantine_read
  [[ ${#quarantined[@]} -eq 0 && ! -e ${dir}/205 ]]
}

@test "a storage that does not answer frees no ID" {
  on other
  quarantine_add 205 local-lvm:vm-205-disk-3 other:vm-205-disk-0
  quarantine_read
  [[ ${quarantined[205]} == local-lvm:vm-205-disk-3 && -e ${dir}/205 ]]
}

@test "what is no file of an ID's is left alone" {
  mkdir -p "${dir}/206"
  echo gone:vm-207-disk-0 >"${dir}/207.old"
  on gone
  quarantine_read
  [[ ${#quarantined[@]} -eq 0 && -e ${dir}/206 && -e ${dir}/207.old && ! -e ${BATS_TEST_TMPDIR}/asked ]]
}

@test "what cannot be noted is told" {
  : >"${LINUS_HOST_DIR}"
  run quarantine_add 205 local-lvm:vm-205-disk-3
  [[ ${status} -eq 0 && ${output} == *"could not note in ${dir} that volumes of VM 205 were left"* ]]
}
