#!/usr/bin/env bats
# lib/script.sh: the frame of every host script, seen from outside.

source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

framed_by=('--default-signal=HUP,INT,PIPE,TERM')   # env's options: whoever runs the tests may ignore some
as_operation=('--ignore-signal=HUP,INT,PIPE,TERM') # starts its script with these ignored

# A script of one step, as a process.
run_framed() { # <the step's body>
  # shellcheck disable=SC2016 # the framed script's parameter
  printf '%s\n' 'source "$1/script.sh"' \
    'undo() { echo "LINUS_UNDONE:yes"; }' "step() { $1" '}' \
    'main() { script_begin 1 undo; result_run_step step stepping; }' 'script_run "$@"' >"${BATS_TEST_TMPDIR}/framed"
  # shellcheck disable=SC2030,SC2031 # for this test alone
  export LINUS_NONCE=n TMPDIR=${BATS_TEST_TMPDIR}
  run --separate-stderr env "${framed_by[@]}" bash "${BATS_TEST_TMPDIR}/framed" "${lib_dir}"
}

bats_require_minimum_version 1.5.0

@test "a step that fails without a word is named, undone and framed" {
  run_framed 'false'
  [[ ${status} -eq 1 && ${lines[0]} == LINUS_BEGIN:n && ${lines[-1]} == LINUS_END:n ]]
  [[ ${output} == *LINUS_UNDONE:yes*LINUS_RESULT:FAILURE*"LINUS_ERROR:unexpected exit status 1 of 'false'"* ]]
}

@test "what the host exports for every bash does not change how a script, or a bash of its, is run" {
  local way signals=${framed_by[0]}
  for way in SHELLOPTS=noclobber SHELLOPTS=noglob BASHOPTS=failglob POSIXLY_CORRECT=1 "BASH_ENV=${BATS_TEST_TMPDIR}/startup"; do
    echo 'set -C' >"${BATS_TEST_TMPDIR}/startup"
    framed_by=("${signals}" "${way}")
    # shellcheck disable=SC2016 # the framed script's variables
    run_framed 'echo LINUS_OPTIONS:$-,$(shopt -p failglob),$(bash -c "echo \$-; shopt -p failglob"),$(env | grep -cE "^(SHELLOPTS|BASHOPTS|BASH_ENV|POSIXLY_CORRECT)=")'
    [[ ${status} -eq 0 && ${output} == *'LINUS_OPTIONS:ehuBE,shopt -u failglob,hBc shopt -u failglob,0'* ]] || {
      echo "${way}: ${output}" >&2
      return 1
    }
  done
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

# shellcheck disable=SC2030 # each test is a subshell
@test "each signal has its exit code, and roll-back runs once" {
  local pair
  for pair in HUP=129 INT=130 PIPE=141 TERM=143; do
    # shellcheck disable=SC2016 # the framed script's variable
    run_framed "kill -${pair%=*}"' $$; while :; do run_pause 0.1; done'
    [[ ${status} -eq ${pair#*=} && ${output} == *LINUS_UNDONE*LINUS_RESULT:FAILURE*'LINUS_ERROR:stopped by a signal'* ]]
    [[ ${output} != *LINUS_UNDONE*LINUS_UNDONE* ]]
  done
}

# The file comes when the step has got that far.
run_stopped() { # <the step's body, which makes the file begun>
  # shellcheck disable=SC2030,SC2031 # for this test alone
  export begun=${BATS_TEST_TMPDIR}/begun LINUS_STOP=${BATS_TEST_TMPDIR}/stop
  rm -f "${begun}" "${LINUS_STOP}"
  (until [[ -e ${begun} ]]; do sleep 0.05; done && : >"${LINUS_STOP}") 3>&- &
  # shellcheck disable=SC2030,SC2031 # for this test alone
  framed_by=("${as_operation[@]}")
  run_framed "$1"
  # shellcheck disable=SC2031 # run_framed's run has set them
  [[ ${status} -eq 143 && ${output} == *LINUS_UNDONE*LINUS_RESULT:FAILURE* && ${output} != *LINUS_UNDONE*LINUS_UNDONE* && ${output} != *LINUS_ON* ]]
}

@test "a stop ends a read under way, and a pause" {
  # shellcheck disable=SC2016 # the framed script's variables
  local -r tell='; echo "LINUS_ON:yes"'
  # shellcheck disable=SC2016 # the framed script's variables
  run_stopped 'run_read 600 sh -c ": >\"\${begun}\"; exec sleep 600"'"${tell}"
  # shellcheck disable=SC2016 # the framed script's variables
  run_stopped ': >"${begun}"; run_pause 600'"${tell}"
  # shellcheck disable=SC2016 # the framed script's variables
  run_stopped 'run_start a 600 sleep 600; run_read 600 sh -c ": >\"\${begun}\"; exec sleep 600"'"${tell}"
}

@test "a stop lets a change end, and roll-back is not stopped" {
  # shellcheck disable=SC2016 # the framed script's variables
  run_stopped 'undo() { run_read 60 sh -c "sleep 0.3; echo whole"; run_pause 0.1; run_change 60 true; echo "LINUS_UNDONE:${run_rc} ${run_out}"; }
    run_change 60 sh -c ": >\"\${begun}\"; until [ -e \"\${LINUS_STOP}\" ]; do sleep 0.05; done; sleep 0.3; : >\"\${begun}.whole\""; echo "LINUS_ON:yes"'
  [[ -e ${begun}.whole && ${output} == *'LINUS_UNDONE:0 '* ]]
}

@test "signals do not reach an operation's script" {
  # shellcheck disable=SC2030,SC2031 # for this test alone
  framed_by=("${as_operation[@]}")
  # shellcheck disable=SC2016 # the framed script's variables
  run_framed 'for signal in HUP INT PIPE TERM; do kill -${signal} $$; run_pause 0.1; done; result_line RESULT SUCCESS'
  [[ ${status} -eq 0 && ${output} == *LINUS_RESULT:SUCCESS* ]]
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
