#!/usr/bin/env bats
# lib/pace.sh: when a guest that boots is asked.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs pace
  run_init
  export LINUS_NET_DIR=${BATS_TEST_TMPDIR}/net
  counter=${LINUS_NET_DIR}/tap100i0/statistics/rx_packets
  mkdir -p "${counter%/*}"
  now=100000
  clock_read() { clock_now=${now}; }
  slept=() sends=-1
  run_pause() { # and the card sends something when it is time
    slept+=("$1")
    now=$((now + 10#${1/./}))
    if ((sends >= 0 && now >= 100000 + sends)); then
      echo 1 >"${counter}"
    fi
  }
  unset SECONDS # so that it is a variable like any other: no second passes on the way
  SECONDS=1000
}

waits() { # <1/100 s> <when the card sends, or -1: never> [<deadline>]
  slept=() sends=$2 now=100000
  pace_start
  echo 0 >"${counter}"
  pace_await 100 "${3:-$((SECONDS + 300))}" 2>/dev/null
  ((now == 100000 + $1)) || {
    printf 'waited %d, expected %d\n' "$((now - 100000))" "$1"
    return 1
  }
}

@test "questions come at once, and then ever rarer" {
  pace_start
  local -i i
  for ((i = 0; i < 7; i += 1)); do
    pace_pause
  done
  [[ ${slept[*]} == '0.20 0.40 0.80 1.60 2.00 2.00 2.00' ]]
}

@test "a guest is asked when its card has sent something, however long the boots before it took" {
  waits 11000 11000
  waits 100 100
  waits 4000 3999
  waits 25 1
}

@test "a card that sends nothing, or is not to be seen, holds nothing up" {
  waits 12000 -1
  waits 0 -1 "${SECONDS}"
  rm "${counter}"
  pace_await 100 "$((SECONDS + 300))"
  pace_await 101 "$((SECONDS + 300))"
  mkdir "${counter}"
  pace_await 100 "$((SECONDS + 300))"
  ((now == 100000))
}

@test "a VM that stops is waited for no longer" {
  run_pause() {
    slept+=("$1")
    rm "${counter}"
  }
  echo 0 >"${counter}"
  pace_start
  pace_await 100 "$((SECONDS + 300))" 2>/dev/null
  ((${#slept[@]} == 1))
}
