#!/usr/bin/env bats
# lib/process.sh: in what order a task's tree is signalled. The rest of it is
# tested with the job runner.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs process
}

@test "a tree is signalled from its root on" {
  local job=0a1b2c3d-0000-4000-8000-000000000001 first
  LINUS_JOB_ID=${job} setsid bash -c 'for i in {1..40}; do sleep 1000 & done; wait; sleep 1000' 3>&- &
  first=$!
  local -a order=()
  kill() { order+=("${@: -1}"); }
  declare -ga process_tree=()
  for _ in {1..300}; do
    process_find_tree "${job}" '' ''
    ((${#process_tree[@]} < 41)) || break
    sleep 0.1
  done
  process_signal_tree TERM
  unset -f kill
  kill -KILL -- "${!process_tree[@]}"
  [[ ${#order[@]} -ge 41 && ${order[0]} == "${first}" ]]
  local pid last=0
  for pid in "${order[@]}"; do
    ((pid > last))
    last=${pid}
  done
}
