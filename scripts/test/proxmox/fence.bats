#!/usr/bin/env bats
bats_require_minimum_version 1.5.0
# The fence against engines that others have taken for dead, and what heeds it.

# Each test is a subshell.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

dead=01920000-0000-7000-8000-00000000dead
alive=01920000-0000-7000-8000-00000000a11e

setup() {
  setup_stub
  mkdir -p "${LINUS_PVE_DIR}/priv"
  fences=${LINUS_PVE_DIR}/priv/linus
  operation=${host_scripts}/operation.sh
  operations=${BATS_TEST_TMPDIR}/operations
  script=${BATS_TEST_TMPDIR}/script.sh
}

fenced() {
  FENCE_ENGINE=${dead} run_script fence-engine
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
}

@test "a fence is a file on pmxcfs, and old ones go" {
  mkdir "${fences}"
  touch -d '40 days ago' "${fences}/fence-${alive}"
  fenced
  [[ -e ${fences}/fence-${dead} && ! -e ${fences}/fence-${alive} ]]
  fenced # again
  FENCE_ENGINE=../x run_script fence-engine
  assert_status 1
}

@test "without quorum there is no fence, and the script says so" {
  answer /cluster/status '[{"type":"cluster","quorate":0},{"type":"node","name":"pve","local":1,"online":1}]'
  FENCE_ENGINE=${dead} run_script fence-engine
  assert_status 3
  assert_says 'LINUS_ERROR:the cluster has no quorum'
  [[ ! -e ${fences}/fence-${dead} ]]
}

@test "a fence that cannot be written is a failure" {
  rm -d "${LINUS_PVE_DIR}/priv"
  : >"${LINUS_PVE_DIR}/priv" # where root may write anything
  FENCE_ENGINE=${dead} run_script fence-engine
  assert_status 3
  assert_says 'could not write the fence'
}

@test "a VM is not destroyed for a fenced engine, and is for another" {
  add_our_vm 205
  fenced
  VM_ID=205 LINUS_ENGINE=${dead} run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:fenced
  refute_called 'qm .*'
  VM_ID=205 LINUS_ENGINE=${alive} run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  assert_nothing_left
}

@test "the fence is looked for inside the lock: one that comes while the lock is waited for counts" {
  add_our_vm 205
  exec 8>>"${LINUS_LOCK_DIR}/linus-vm-205.lock"
  flock 8
  VM_ID=205 LINUS_ENGINE=${dead} bash "${host_scripts}/destroy-vm.sh" >"${BATS_TEST_TMPDIR}/destroy" 2>&1 3>&- 8>&- &
  until grep -q 'destroying the VM' "${BATS_TEST_TMPDIR}/destroy"; do command sleep 0.05; done
  fenced
  exec 8>&-
  local -i code=0
  wait "$!" || code=$?
  ((code == 5))
  grep -qx LINUS_VM_OUTCOME:fenced "${BATS_TEST_TMPDIR}/destroy"
  [[ -f ${PVE_STUB}/vm/205 ]]
}

@test "a VM is not started, stopped or suspended for a fenced engine" {
  local action
  add_our_vm 205
  fenced
  for action in start shutdown suspend; do
    ACTION=${action} VM_ID=205 LINUS_ENGINE=${dead} run_script power-vm
    assert_status 5
    assert_line LINUS_VM_OUTCOME:fenced
  done
  refute_called 'qm .*'
  assert_nothing_left
}

@test "roll-back of a fenced engine's create goes on: whoever joined it stops it" {
  fault set 1 skip 'no'
  fenced
  LINUS_ENGINE=${dead} run_script create-vm
  assert_status 5
  assert_no_vm_of_ours
  assert_nothing_left
}

@test "no operation is started, stopped or settled for a fenced engine" {
  local verb
  # shellcheck disable=SC2016 # for the script to expand
  printf 'echo run >>%q; until [[ -e $LINUS_STOP ]]; do sleep 0.05; done\n' "${BATS_TEST_TMPDIR}/runs" >"${script}"
  rm "${BATS_TEST_TMPDIR}/bin/sleep"
  LINUS_ENGINE=${dead} bash "${operation}" start "${operations}" one "${script}"
  until [[ -s ${BATS_TEST_TMPDIR}/runs ]]; do command sleep 0.05; done
  fenced
  run -76 env LINUS_ENGINE="${dead}" bash "${operation}" start "${operations}" two "${script}"
  [[ ${output} == *'taken it for dead'* && ! -e ${operations}/two ]]
  run -76 env LINUS_ENGINE="${dead}" bash "${operation}" start "${operations}" one "${script}"
  for verb in stop settle; do
    run -76 env LINUS_ENGINE="${dead}" bash "${operation}" "${verb}" "${operations}/one" 10
    [[ ! -e ${operations}/one/stop ]]
  done
  # Its successor joins the one that has begun, and settles it.
  LINUS_ENGINE=${alive} bash "${operation}" start "${operations}" one "${script}"
  LINUS_ENGINE=${alive} bash "${operation}" settle "${operations}/one" 10
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == run && ! -e ${operations}/one ]]
}

@test "starts and settles for engines take turns" {
  mkdir "${operations}"
  exec 8<"${operations}"
  flock 8
  printf 'echo run\n' >"${script}"
  LINUS_ENGINE=${alive} bash "${operation}" start "${operations}" one "${script}" >/dev/null 2>&1 3>&- 8<&- &
  until pgrep -P "$!" -x flock >/dev/null; do command sleep 0.05; done
  LINUS_ENGINE=${alive} bash "${operation}" settle "${operations}/none" 10 3>&- 8<&- &
  until pgrep -P "$!" -x flock >/dev/null; do command sleep 0.05; done
  [[ ! -e ${operations}/one ]]
  exec 8<&-
  wait
  [[ -e ${operations}/one ]]
}

@test "clones for engines take one of three slots, and leave it before the VM starts" {
  local -i i
  for ((i = 1; i <= 3; i += 1)); do
    eval "exec 2${i}>>'${LINUS_LOCK_DIR}/clone-${i}.lock'; flock 2${i}"
  done
  stub_program sleep 'exec /bin/sleep 0.1'
  # shellcheck disable=SC2016 # for the hook to expand
  hook start 'exec 8>>"${LINUS_LOCK_DIR}/clone-2.lock"; flock -n 8 || touch "${LINUS_LOCK_DIR}/held"'
  LINUS_ENGINE=${alive} bash "${host_scripts}/create-vm.sh" >"${BATS_TEST_TMPDIR}/create" 2>&1 3>&- 21>&- 22>&- 23>&- &
  until [[ /proc/$!/fd/5 -ef ${LINUS_LOCK_DIR}/clone-3.lock ]]; do command sleep 0.05; done # it has tried them all
  refute_called 'qm clone.*'
  exec 22>&-
  wait "$!" || :
  assert_called 'qm clone.*'
  [[ ! -e ${LINUS_LOCK_DIR}/held ]]
  exec 21>&- 23>&-
}
