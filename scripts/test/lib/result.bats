#!/usr/bin/env bats
# lib/result.sh: the answer on stdout.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs result
  unset LINUS_NONCE
  result_begin 3 >/dev/null
}

@test "a value is all that follows the first colon" {
  run result_line VM_HOST_KEY 'a:b  c'
  [[ ${status} -eq 0 && ${output} == 'LINUS_VM_HOST_KEY:a:b  c' ]]
}

@test "a value that could forge a key is refused" {
  local value
  for value in $'x\nLINUS_VM_IP:6.6.6.6' $'x\rLINUS_VM_IP:6.6.6.6' $'\e[2K'; do
    run result_line VM_NAME "${value}"
    [[ ${status} -eq 5 && $'\n'${output} != *$'\n'LINUS_VM* ]]
  done
  run result_line 'VM:X' y
  [[ ${status} -eq 5 ]]
}

@test "free text is folded to one bounded line" {
  local long
  printf -v long '%5000s' x
  run result_text ERROR $'a\nLINUS_VM_IP:6\tb\r'
  [[ ${output} == 'LINUS_ERROR:a LINUS_VM_IP:6 b ' ]]
  run result_text ERROR "${long}"
  ((${#output} < 1600))
}

@test "a step says which, of how many, its function and its text, then runs" {
  dig() { printf 'dug\n'; }
  run result_run_step dig 'digging'
  [[ ${lines[0]} == 'LINUS_STEP:1/3:dig:digging' && ${output} == *dug ]]
}

@test "each kind of failure has its exit code" {
  local pair
  for pair in invalid=1 dependency=2 config=3 offline=4 vm=5 timeout=6; do
    run result_fail "${pair%=*}" what remedy
    [[ ${status} -eq ${pair#*=} ]]
  done
}

@test "the last words: FAILURE, ERROR, REMEDY; nothing but END on success" {
  result_nonce=n1
  result_error=$'it\nbroke' result_remedy='mend it'
  run result_end 5
  [[ ${output} == $'LINUS_RESULT:FAILURE\nLINUS_ERROR:it broke\nLINUS_REMEDY:mend it\nLINUS_END:n1' ]]
  run result_end 0
  [[ ${output} == LINUS_END:n1 ]]
}

@test "a failure nobody named still says what was under way" {
  result_step_text='digging'
  run result_end 143
  [[ ${output} == *'LINUS_ERROR:stopped by a signal (exit 143) while: digging'* ]]
  run result_end 1
  [[ ${output} == *'LINUS_ERROR:exit status 1 while: digging'* ]]
}

@test "an unexpected exit names the command, and never hides a named failure" {
  result_error=''
  result_unexpected 7 42 'false x'
  [[ ${result_error} == *"exit status 7 of 'false x' in line 42"* ]]
  result_error=named
  result_unexpected 7 42 'false x'
  [[ ${result_error} == named ]]
}

@test "a nonce that could break the frame is refused" {
  LINUS_NONCE='a:b' run result_begin 1
  [[ ${status} -eq 1 && ${output} != *LINUS_BEGIN* ]]
  run result_begin 1
  [[ ${status} -eq 0 && -z ${output} ]]
  run result_end 0
  [[ -z ${output} ]]
  LINUS_NONCE='aB-_9' run result_begin 1
  [[ ${status} -eq 0 && ${output} == LINUS_BEGIN:aB-_9 ]]
}
