#!/usr/bin/env bats
bats_require_minimum_version 1.5.0
# operation.sh on its own; what it does for a create, over connections that
# break, is tested in internal/proxmox.

# Each test is a subshell.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  rm "${BATS_TEST_TMPDIR}/bin/sleep"
  unset LINUS_SLEEP
  operation=${host_scripts}/operation.sh
  operations=${BATS_TEST_TMPDIR}/operations
  script=${BATS_TEST_TMPDIR}/script.sh
  # shellcheck disable=SC2016 # for the script to expand
  printf 'echo "hello $WHO"\n' >"${script}"
}

# A script of ours that works until it is told to stop, and then undoes that.
slow_script() {
  # shellcheck disable=SC2016 # for the script to expand
  printf '%s\n' 'source "$LIBS/script.sh"' \
    'undo() { echo undone; }' 'set -Eeuo pipefail' 'script_begin 1 undo' 'echo begun' 'run_pause 600' >"${script}"
  export LIBS=${scripts_dir}/lib
}

wait_for() { # <text in the output of operation one>
  until grep -q "$1" "${operations}/one/out" 2>/dev/null; do command sleep 0.05; done
}

is_gone() { # <id>: its unit, not at once but soon
  local -i i
  for ((i = 0; i < 200; i += 1)); do
    systemctl is-active --quiet "linus-$1" || return 0
    command sleep 0.05
  done
  fail "the unit linus-$1 is there"
}

@test "a script's output is followed from any byte, as often as asked" {
  WHO=world bash "${operation}" start "${operations}" one "${script}"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *'hello world'*':exit:0' ]]
  run -0 bash "${operation}" follow "${operations}/one" 6
  [[ ${output} == *$'\nworld'*':exit:0' ]]
}

@test "what the host exports for every bash changes neither an operation nor its script" {
  echo 'set -Eeuo pipefail; : >one; : >one; compgen -e | grep -cE "^(SHELLOPTS|BASHOPTS)$" || :' >"${script}"
  cd "${BATS_TEST_TMPDIR}"
  local -r foreign=(env SHELLOPTS=noclobber:xtrace BASHOPTS=failglob)
  "${foreign[@]}" bash "${operation}" start "${operations}" one "${script}" 2>/dev/null
  run -0 --separate-stderr "${foreign[@]}" bash "${operation}" follow "${operations}/one" 0
  # shellcheck disable=SC2154 # run sets it
  [[ ${output##*$'\n'} == 0 && ${stderr} == *':exit:0' ]]
  "${foreign[@]}" bash "${operation}" settle "${operations}/one" 10
}

@test "a second start finds the first, and does not run the script again" {
  printf 'echo run >>%q\n' "${BATS_TEST_TMPDIR}/runs" >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" follow "${operations}/one" 0
  is_gone one
  bash "${operation}" start "${operations}" one "${script}"
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == run ]]
}

@test "a start that looked before the first had begun, and comes after its end, does no harm" {
  printf 'echo run >>%q\n' "${BATS_TEST_TMPDIR}/runs" >"${script}"
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program systemd-run 'printf "%s\0" "$@" >"${PVE_STUB}/unit"; exec "${BATS_RUN_TMPDIR}/systemd-run" "$@"'
  ln -sf pvelab "${BATS_RUN_TMPDIR}/systemd-run"
  bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" follow "${operations}/one" 0
  is_gone one
  local -a unit
  mapfile -d '' -t unit <"${PVE_STUB}/unit"
  systemd-run "${unit[@]}"
  is_gone one
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == run && $(<"${operations}/one/exit") == 0 ]]
}

@test "starts at the same time run the script once" {
  local -i i
  printf 'echo run >>%q; sleep 0.3\n' "${BATS_TEST_TMPDIR}/runs" >"${script}"
  for ((i = 0; i < 6; i += 1)); do
    bash "${operation}" start "${operations}" one "${script}" >"${BATS_TEST_TMPDIR}/start.${i}" 3>&- &
  done
  wait
  bash "${operation}" follow "${operations}/one" 0
  is_gone one
  [[ $(<"${BATS_TEST_TMPDIR}/runs") == run ]]
  # shellcheck disable=SC2312 # what is compared tells
  [[ $(sort -u "${BATS_TEST_TMPDIR}"/start.*) == "LINUS_OPERATION:$(<"${operations}/one/nonce")" ]]
}

@test "a start that was cut off before its unit was there is taken up by the next" {
  WHO=first bash "${operation}" start "${operations}" one "${script}"
  bash "${operation}" follow "${operations}/one" 0
  is_gone one
  rm "${operations}"/one/{log,exit}
  : >"${operations}/one/out"
  WHO=second bash "${operation}" start "${operations}" one "${script}"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *'hello first'*':exit:0' ]]
}

@test "what was begun before on the same VM stops as another begins, and nothing else does" {
  local id
  slow_script
  for id in power-vm1-a power-vm1-b power-vm2-a; do
    bash "${operation}" start "${operations}" "${id}" "${script}"
  done
  for id in 1 2; do # again, as where its answer was lost
    bash "${operation}" start "${operations}" power-vm1-b "${script}" power-vm1-
  done
  run -0 --separate-stderr bash "${operation}" follow "${operations}/power-vm1-a" 0
  [[ ${output} == *undone* && ${stderr} == *:exit:143* ]]
  [[ ! -e ${operations}/power-vm1-b/stop && ! -e ${operations}/power-vm2-a/stop ]]
  for id in power-vm1-b power-vm2-a; do
    bash "${operation}" settle "${operations}/${id}" 20
  done
}

@test "an operation's end rings its bell, and one without a bell is followed, too" {
  printf 'until [[ -e %q ]]; do sleep 0.05; done\n' "${BATS_TEST_TMPDIR}/go" >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  exec 8<>"${operations}/one/bell"
  run -142 read -r -t 0.3 -u 8
  : >"${BATS_TEST_TMPDIR}/go"
  read -r -t 20 -u 8
  rm "${operations}/one/bell"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *':exit:0' ]]
}

@test "what is written while somebody follows comes whole, whatever bytes it has, by no program" {
  # shellcheck disable=SC2016 # for the script to expand
  printf '%s\n' 'until [[ -e $WHO ]]; do command sleep 0.02; done; cat "$WHO.bytes"; echo' \
    'for i in {1..20}; do printf "%s\0part" "$i"; command sleep 0.02; done; cat "$WHO.bytes"' >"${script}"
  perl -e 'print map { chr } 0 .. 255, 0 .. 255, 1, 127, 127, 1, 0' >"${BATS_TEST_TMPDIR}/go.bytes"
  local tool
  WHO=${BATS_TEST_TMPDIR}/go bash "${operation}" start "${operations}" one "${script}"
  for tool in cat tail; do
    # shellcheck disable=SC2016 # the stub's own variables
    stub_program "${tool}" 'echo "${0##*/}" >>"${PVE_STUB}/relays"; exec "/usr/bin/${0##*/}" "$@"'
  done
  bash "${operation}" follow "${operations}/one" 0 >"${BATS_TEST_TMPDIR}/followed" 2>"${BATS_TEST_TMPDIR}/end" 3>&- &
  until [[ -s ${PVE_STUB}/relays ]]; do command sleep 0.02; done # nothing is there to be had yet
  : >"${BATS_TEST_TMPDIR}/go"
  wait "$!"
  grep -q ':exit:0$' "${BATS_TEST_TMPDIR}/end"
  printf 'LINUS_OPERATION:%s\n' "$(<"${operations}/one/nonce")" >"${BATS_TEST_TMPDIR}/told"
  cat "${operations}/one/out" >>"${BATS_TEST_TMPDIR}/told"
  cmp "${BATS_TEST_TMPDIR}/told" "${BATS_TEST_TMPDIR}/followed"
  [[ $(<"${PVE_STUB}/relays") == $'tail\ncat\ncat\ncat' ]] || fail "$(<"${PVE_STUB}/relays")"
}

@test "what nobody settled goes after a week, with the next start in an hour" {
  mkdir -p "${operations}/old/below"
  touch -d '8 days ago' "${operations}/old"
  bash "${operation}" start "${operations}" one "${script}"
  [[ ! -e ${operations}/old ]]
  local cleared
  for cleared in "$((EPOCHSECONDS - 3600))" "$((EPOCHSECONDS + 60))" '' x; do
    mkdir "${operations}/old"
    touch -d '8 days ago' "${operations}/old"
    echo "$((EPOCHSECONDS - 60))" >"${operations}/.cleared"
    bash "${operation}" start "${operations}" "next-${EPOCHREALTIME}" "${script}"
    [[ -e ${operations}/old ]]
    echo "${cleared}" >"${operations}/.cleared"
    bash "${operation}" start "${operations}" "next-${EPOCHREALTIME}" "${script}"
    [[ ! -e ${operations}/old ]]
  done
}

@test "a start does not mind that others come and go while it clears" {
  stub_program find 'echo "find: .new.x: No such file or directory" >&2; exit 1'
  run -0 bash "${operation}" start "${operations}" one "${script}"
}

@test "a unit that cannot be started is told in systemd's words" {
  stub_program systemd-run 'echo "Failed to connect to bus" >&2; exit 1'
  run -1 bash "${operation}" start "${operations}" one "${script}"
  [[ ${output} == *'one does not start: Failed to connect to bus' ]]
}

@test "following what is not there says so by its exit code" {
  run -66 bash "${operation}" follow "${operations}/none" 0
}

@test "the inputs are in no argument and no property of a unit" {
  # shellcheck disable=SC2016 # for the script to expand
  printf 'tr "\\0" " " </proc/$$/cmdline; echo "[${INPUT}]"; sleep 600\n' >"${script}"
  INPUT=$'of two\nlines, private' bash "${operation}" start "${operations}" one "${script}"
  wait_for private
  [[ $(<"${operations}/one/out") == "bash ${script} [of two"$'\n''lines, private]' ]]
  ! grep -rq private "${PVELAB_DIR}/run/systemd" || fail 'systemd has it'
}

@test "a stop is a file; its script stops by itself, and no signal does that" {
  slow_script
  bash "${operation}" start "${operations}" one "${script}"
  wait_for begun
  local signal
  for signal in TERM INT HUP PIPE; do systemctl kill --kill-whom=main "--signal=${signal}" linus-one; done
  bash "${operation}" start "${operations}" one "${script}" # the time for a signal to show
  [[ ! -e ${operations}/one/exit ]]
  bash "${operation}" stop "${operations}/one"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *$'begun\nundone\n'*LINUS_RESULT:FAILURE*':exit:143'* ]]
  bash "${operation}" stop "${operations}/none"
}

@test "a settled operation is gone, its script undone, and its name free" {
  slow_script
  bash "${operation}" start "${operations}" one "${script}"
  wait_for begun
  ln "${operations}/one/out" "${BATS_TEST_TMPDIR}/kept"
  bash "${operation}" settle "${operations}/one" 20
  [[ $(<"${BATS_TEST_TMPDIR}/kept") == *undone* && ! -e ${operations}/one ]]
  printf 'echo again\n' >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *again*':exit:0' ]]
}

@test "settling waits for a script that does not stop, as long as it is to" {
  printf 'sleep 600\n' >"${script}"
  bash "${operation}" start "${operations}" one "${script}"
  until [[ -e ${operations}/one/log ]]; do command sleep 0.05; done # one that has not begun is settled at once
  run -75 bash "${operation}" settle "${operations}/one" 1
  [[ -d ${operations}/one ]]
}

@test "one that is settled before it has begun does not begin" {
  # The unit of a start that is slow.
  # shellcheck disable=SC2016 # for the stub to expand
  stub_program systemd-run 'echo "$$" >"${PVE_STUB}/unit"; exec sleep 600'
  bash "${operation}" start "${operations}" one "${script}" 3>&- &
  local -r starting=$!
  until [[ -s ${PVE_STUB}/unit ]]; do command sleep 0.05; done
  cp -r "${operations}/one" "${BATS_TEST_TMPDIR}/late"
  bash "${operation}" settle "${operations}/one" 5
  [[ ! -e ${operations}/one ]]
  run -1 bash "${operation}" run "${operations}/one"
  # Also where settling has only come so far.
  : >"${BATS_TEST_TMPDIR}/late/log"
  run -1 bash "${operation}" run "${BATS_TEST_TMPDIR}/late"
  [[ ! -s ${BATS_TEST_TMPDIR}/late/out ]]
  kill -- "${starting}" "$(<"${PVE_STUB}/unit")"
}

@test "a script that was killed is seen at once, and so is one lost with the host" {
  slow_script
  bash "${operation}" start "${operations}" one "${script}"
  wait_for begun
  systemctl kill --kill-whom=all --signal=KILL linus-one
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *:lost* && $(<"${operations}/one/exit") == KILL ]]
  bash "${operation}" settle "${operations}/one" 5

  bash "${operation}" start "${operations}" one "${script}"
  wait_for begun
  reboot_host
  bash "${operation}" start "${operations}" one "${script}" # which does not run it again
  run -0 bash "${operation}" follow "${operations}/one" 0
  [[ ${output} == *:lost* && ! -e ${operations}/one/exit ]]
  bash "${operation}" settle "${operations}/one" 5
  [[ ! -e ${operations}/one ]]
}

@test "a systemd that does not answer makes no operation a lost one" {
  printf 'echo begun\nsleep 600\n' >"${script}" # it does not stop
  bash "${operation}" start "${operations}" one "${script}"
  wait_for begun
  stub_program systemctl 'echo "Failed to connect to bus" >&2; exit 1'
  run -75 bash "${operation}" settle "${operations}/one" 0
  [[ -d ${operations}/one ]]
}
