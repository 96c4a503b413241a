#!/usr/bin/env bats
# lib/script.sh: the frame of every host script, seen from outside.

# shellcheck source=../helper/lib.bash
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

# A script of one step, as a process.
run_framed() { # <the step's body>
  # shellcheck disable=SC2016 # the framed script's parameter
  printf '%s\n' 'for lib in log result script run; do source "$1/${lib}.sh"; done' \
    'undo() { echo "LINUS_UNDONE:yes"; }' "step() { $1" '}' \
    'set -Eeuo pipefail; shopt -s inherit_errexit' 'script_begin 1 undo' 'result_run_step step stepping' >"${BATS_TEST_TMPDIR}/framed"
  # shellcheck disable=SC2030,SC2031 # for this test alone
  export LINUS_NONCE=n TMPDIR=${BATS_TEST_TMPDIR}
  run --separate-stderr bash "${BATS_TEST_TMPDIR}/framed" "${lib_dir}"
}

bats_require_minimum_version 1.5.0

@test "a step that fails without a word is named, undone and framed" {
  run_framed 'false'
  [[ ${status} -eq 1 && ${lines[0]} == LINUS_BEGIN:n && ${lines[-1]} == LINUS_END:n ]]
  [[ ${output} == *LINUS_UNDONE:yes*LINUS_RESULT:FAILURE*"LINUS_ERROR:unexpected exit status 1 of 'false'"* ]]
}

@test "a step that uses an unset variable fails too" {
  # shellcheck disable=SC2016 # the framed script's variable
  run_framed 'echo "${nothing_of_that_name}"'
  [[ ${status} -ne 0 && ${output} == *LINUS_RESULT:FAILURE*'while: stepping'* ]]
}

@test "a failure inside a command substitution is one" {
  # shellcheck disable=SC2016 # the framed script's variable
  run_framed 'local x; x=$(false; echo on)'
  [[ ${status} -eq 1 && ${output} == *LINUS_RESULT:FAILURE* ]]
}

@test "each signal has its exit code, and roll-back runs once" {
  local pair
  for pair in HUP=129 INT=130 PIPE=141 TERM=143; do
    # shellcheck disable=SC2016 # the framed script's variable
    run_framed "kill -${pair%=*}"' $$; while :; do sleep 0.1; done'
    [[ ${status} -eq ${pair#*=} && ${output} == *LINUS_UNDONE*LINUS_RESULT:FAILURE*'LINUS_ERROR:stopped by a signal'* ]]
    [[ ${output} != *LINUS_UNDONE*LINUS_UNDONE* ]]
  done
}

@test "an option that a script has is taken, anything else refused by name" {
  # shellcheck disable=SC2016 # the framed script's variable
  local -r tell='; echo "LINUS_DRY:${dry_run}"'
  run_framed "script_read_options --dry-run${tell}"
  [[ ${status} -eq 0 && ${lines[2]} == LINUS_DRY:no ]]
  run_framed "script_read_options --dry-run --dry-run${tell}"
  [[ ${status} -eq 0 && ${lines[2]} == LINUS_DRY:yes ]]
  local arguments
  for arguments in "--dry-run --dry-run '--all'" "'' '--dry-run'" "--dry-run ''" "'' ''"; do
    run_framed "script_read_options ${arguments}${tell}"
    [[ ${status} -eq 1 && ${output} == *"LINUS_ERROR:unknown argument ${arguments##* }"* && ${output} != *LINUS_DRY* ]]
  done
  [[ ${output} == *'LINUS_REMEDY:the only option is --help; all else comes by environment'* ]]
}

@test "children read nothing of the script's stdin, and no file is left" {
  run_framed 'cat'
  [[ ${status} -eq 0 && ${lines[-1]} == LINUS_END:n ]]
  run find "${BATS_TEST_TMPDIR}" -name 'linus.*'
  [[ -z ${output} ]]
}
