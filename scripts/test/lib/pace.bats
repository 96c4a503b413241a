#!/usr/bin/env bats
# lib/pace.sh: when a guest that boots is asked.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs pace
  run_init
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host
  boots=${LINUS_HOST_DIR}/boots
  mkdir -p "${LINUS_HOST_DIR}"
  now=100000
  clock_read() { clock_now=${now}; }
  run_pause() { slept+=("$1"); }
  slept=()
}

waits() { # <sleep, or empty: none> <template> [<deadline>]
  slept=()
  pace_start
  pace_await "$2" "${3:-$((SECONDS + 300))}" 2>/dev/null
  [[ ${slept[*]} == "$1" ]] || {
    printf 'slept %s, expected %s\n' "${slept[*]}" "$1"
    return 1
  }
}

boots_take() { # <template> <1/100 s...>
  local boot
  for boot in "${@:2}"; do
    pace_start
    now=$((now + boot))
    pace_ask
    pace_note "$1"
  done
}

@test "a template nobody knows is asked at once, then at once again and ever rarer" {
  waits '' 9000
  local -i i
  for ((i = 0; i < 7; i += 1)); do
    pace_pause
  done
  [[ ${slept[*]} == '0.20 0.40 0.80 1.60 2.00 2.00 2.00' ]]
}

@test "the shortest of the last five boots counts, and three quarters of it are waited" {
  boots_take 9000 4000 2000 3000
  [[ $(<"${boots}") == '9000 3000 2000 4000' ]]
  waits 15.00 9000
  waits '' 9001
  waits '' ''
  boots_take 9000 100 4000 4000 4000 4000
  waits 0.75 9000
  boots_take 9000 4000
  waits 30.00 9000
  [[ $(<"${boots}") == '9000 4000 4000 4000 4000 4000' ]]
  boots_take 9000 0
  waits '' 9000
}

@test "what has passed is not waited for, nor what is past the deadline, nor ever more than two minutes" {
  unset SECONDS # so that it is a variable like any other: no second passes on the way
  SECONDS=1000
  boots_take 9000 4000
  pace_start
  now=$((now + 2500))
  pace_await 9000 "$((SECONDS + 300))" 2>/dev/null
  [[ ${slept[*]} == 5.00 ]]
  waits 10.00 9000 "$((SECONDS + 10))"
  waits '' 9000 "${SECONDS}"
  boots_take slow 900000
  waits 120.00 slow
}

@test "a template that boots faster than it did is found out" {
  boots_take 9000 10000
  local -i i
  # It answers after a second: the first question is put at the end of the wait.
  for ((i = 0; i < 20; i += 1)); do
    pace_start
    slept=()
    pace_await 9000 "$((SECONDS + 300))" 2>/dev/null
    if [[ -n ${slept[*]} ]]; then
      now=$((now + 10#${slept[0]/./}))
    fi
    pace_ask
    pace_note 9000
  done
  ((${#slept[@]} == 0 || 10#${slept[0]/./} < 100))
}

@test "a file of any content is read as far as it makes sense, and never run" {
  local text
  for text in '' '9000' '9000 x' '9000 08' '9000 -5' '9000 99999999' "9000 a[\$(touch ${BATS_TEST_TMPDIR}/ran)]" '9000 1 2 3 4 5 6' $'\x01\xff'; do
    printf '%s\n' "${text}" >"${boots}"
    waits '' 9000
  done
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
  perl -e 'print "9000 4000 " x 1000000' >"${boots}"
  waits '' 9000
  printf '9000 4000\n' >"${boots}.target"
  rm "${boots}"
  ln -s "${boots}.target" "${boots}"
  waits '' 9000
  rm "${boots}"
  mkdir "${boots}"
  waits '' 9000
  boots_take 9000 100 2>/dev/null
  rm -r "${boots}" "${boots}".[0-9]* 2>/dev/null || :
  if ((EUID == 0)); then
    printf '9000 4000\n' >"${boots}"
    chown 65534 "${boots}"
    waits '' 9000
  fi
}

@test "twenty templates are kept, the last ones, and root alone reads them" {
  local -i i
  for ((i = 0; i < 30; i += 1)); do
    boots_take "$((9000 + i))" 4000
  done
  mapfile -t lines <"${boots}"
  [[ ${#lines[@]} -eq 20 && ${lines[0]} == '9029 4000' && ${lines[19]} == '9010 4000' ]]
  boots_take debian-12 4000
  waits 30.00 debian-12
  local mode
  mode=$(stat -c %a "${boots}")
  [[ ${mode} == 600 ]]
}
