#!/usr/bin/env bats
bats_require_minimum_version 1.5.0
# operation.sh on its own; what it does for a create, over connections that
# break, is tested in internal/proxmox.

setup() {
  operation=${BATS_TEST_DIRNAME}/../../proxmox/operation.sh
  operations=${BATS_TEST_TMPDIR}/operations
  script=${BATS_TEST_TMPDIR}/script.sh
  # shellcheck disable=SC2016 # for the script to expand
  printf 'echo "hello $WHO"\n' >"${script}"
}

@test "a script's output is followed from any byte, as often as asked" {
  WHO=world bash "${operation}" start "${operations}" one "${script}"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *'hello world'*':exit:0' ]]
  run -0 bash "${operation}" follow "${operations}/one" 6
  [[ ${output} == *$'\nworld'*':exit:0' ]]
}

@test "a second start finds the first, and does not run the script again" {
  printf 'echo run >>%q\n' "${BATS_TEST_TMPDIR}/runs" >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" follow "${operations}/one" 0
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == run ]]
}

@test "what nobody settled goes after a week, with the next start" {
  mkdir -p "${operations}/old/below"
  touch -d '8 days ago' "${operations}/old"
  bash "${operation}" start "${operations}" one "${script}"
  [[ ! -e ${operations}/old ]]
}

@test "a start does not mind that others come and go while it clears" {
  mkdir -p "${BATS_TEST_TMPDIR}/bin"
  printf '#!/bin/sh\necho "find: .new.x: No such file or directory" >&2\nexit 1\n' >"${BATS_TEST_TMPDIR}/bin/find"
  chmod +x "${BATS_TEST_TMPDIR}/bin/find"
  PATH=${BATS_TEST_TMPDIR}/bin:${PATH} run -0 bash "${operation}" start "${operations}" one "${script}"
}

@test "following what is not there says so by its exit code" {
  run -66 bash "${operation}" follow "${operations}/none" 0
}

@test "a script that did not hear it is told again" {
  # shellcheck disable=SC2016 # for the script to expand
  printf '%s\n' "trap 'n=\$((n + 1)); [[ \${n} -lt 2 ]] || exit 143' TERM" 'n=0' 'for ((i = 0; i < 250; i += 1)); do sleep 0.1; done' >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" stop "${operations}/one"
  bash "${operation}" settle "${operations}/one" 20
  [[ ! -e ${operations}/one ]]
}

@test "a settled operation is gone, and its script was told to end" {
  printf 'trap "echo told >%q; exit 143" TERM\nwhile :; do sleep 0.1; done\n' "${BATS_TEST_TMPDIR}/told" >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" settle "${operations}/one" 20
  [[ $(<"${BATS_TEST_TMPDIR}/told") == told && ! -e ${operations}/one ]]
}
