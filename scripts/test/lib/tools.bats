#!/usr/bin/env bats
# lib/tools.sh and proxmox/tool-server.pl: Proxmox's tools by a process that has loaded their
# modules, here the lab's stand-ins, which call the tools of this test.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2016,SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs run
  export LC_ALL=C LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks PVELAB_DIR=${BATS_TEST_TMPDIR} PERL5LIB=${lib_dir}/../../internal/lab/pve/perl
  export LINUS_TOOL_SERVER=${lib_dir}/../proxmox/tool-server.pl LINUS_DPKG_STATUS=${BATS_TEST_TMPDIR}/dpkg LINUS_TOOL_SERVER_IDLE=60
  echo '{}' >"${BATS_TEST_TMPDIR}/lab.json"
  echo installed >"${LINUS_DPKG_STATUS}"
  stub_program systemd-run 'while [[ $1 != -- ]]; do shift; done; shift
    echo start >>"${PVELAB_DIR}/starts"; setsid "$@" </dev/null >>"${PVELAB_DIR}/server.log" 2>&1 3>&- &'
  # Which way it came, then what it was asked for.
  stub_program qm 'case $1 in
      status) echo "no VM" >&2; exit 2 ;;
      *) echo "${0##*/} ${*@Q}" >>"${PVELAB_DIR}/calls" ;;
    esac
    case $1 in
      fail) echo out; echo err >&2; exit 7 ;;
      sleep) sleep "$2" ;;
      stubborn) trap "" TERM; while :; do sleep 0.1; done ;;
      cat) cat ;;
      flood) yes linus-flood | head -c "${2:-1T}" ;;
      env) printf "%s\n" "${2:+${!2-}}" "${PWD}" "$(umask)" "$(ps -o pgid= -p $$)" "$(ls /proc/self/fd | wc -l)" ;;
      wait) until [[ -e $2 ]]; do sleep 0.02; done ;;
      *) echo "${PVELAB_LOADED:+loaded}" ;;
    esac'
  stub_program pvesh 'echo "{}"'
  stub_program pvesm 'echo none >&2; exit 1'
  run_init
}

teardown() {
  local pid
  read -r pid _ <"${LINUS_LOCK_DIR}/tool-server/state" && kill -KILL "${pid}" 2>/dev/null
  run_clean
}

# A server that has answered.
serve() {
  tools_start
  run_read 20 qm hello
  [[ ${run_rc} -eq 0 && ${run_out} == loaded ]] || { echo "${run_rc} ${run_out} ${run_said}" "$(<"${LINUS_LOCK_DIR}/tool-server/state")" >&2 && false; }
  tools_look
  server=${tools_pid}
}

await() { # <seconds> <condition...>
  local -ri until=$((SECONDS + $1))
  until "${@:2}"; do
    ((SECONDS < until)) || return 1
    sleep 0.02
  done
}

begun() { # <tag>
  await 10 test -s "${run_dir}/$1.pid"
}

gone() { # <pid>
  stat_read "$1"
  [[ -z ${stat_start} ]]
}

spool_empty() {
  local -a files
  files=("${LINUS_LOCK_DIR}"/tool-server/spool/*)
  [[ ! -e ${files[0]} ]]
}

asked() {
  ! spool_empty
}

calls() { # <count> <what>
  local count
  count=$(grep -c "$2" "${BATS_TEST_TMPDIR}/calls") || :
  [[ ${count} -eq $1 ]] || { cat "${BATS_TEST_TMPDIR}/calls" >&2 && false; }
}

@test "a call by the server is as one by the tool: words, status, arguments, input, environment, directory, umask, group" {
  serve
  run_change 5 qm fail
  [[ ${run_rc} -eq 7 && ${run_said} == 'err (on stdout: out)' ]]
  run_change 5 qm cat 'a  b' $'c\nd' '' "e'f" '*'
  grep -qxF "qm 'cat' 'a  b' \$'c\\nd' '' 'e'\\''f' '*'" "${BATS_TEST_TMPDIR}/calls"
  printf 'in\n' >"${BATS_TEST_TMPDIR}/in"
  run_stdin=${BATS_TEST_TMPDIR}/in run_read 5 qm cat
  [[ ${run_out} == in ]]
  run_read 5 qm cat
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  local -x LATE=$'two\nlines'
  tools_environment=() # as in another script, which finds the server that this one has started
  umask 077
  exec 5>"${BATS_TEST_TMPDIR}/lock" 9>&5
  cd /usr
  run_read 5 qm env LATE
  local own group open
  own=$(ps -o pgid= -p "${BASHPID}")
  { read -r _ && read -r _ && read -r cwd && read -r mask && read -r group && read -r open; } <<<"${run_out}"
  [[ ${run_out} == "${LATE}"$'\n'* && ${cwd} == /usr && ${mask} == 0022 && ${group} != "${own// /}" ]]
  ((open <= 5)) # ls's own are four
}

@test "reads run side by side, and a read that is stopped ends with all it has started" {
  serve
  run_start a 60 qm sleep 61.7
  run_start b 5 qm hello
  run_wait b
  [[ ${run_rc} -eq 0 ]]
  begun a
  run_stop=143 run_stoppable=no
  run_abandon
  await 10 bash -c '! pgrep -f "^sleep 61.7$"'
}

@test "a call ends at its time limit with all it has started, and the server stays" {
  serve
  run_read 0.5 qm sleep 62.7
  [[ ${run_rc} -eq 124 && ${run_said} == 'no answer in time.'* ]]
  run_forget b
  tools_can qm
  tools_ask b 0.3 0.3 qm stubborn
  run_wait b
  [[ ${run_rc} -eq 137 ]]
  await 10 bash -c '! pgrep -f "^sleep 62.7$"'
  await 10 bash -c '! pgrep -f "qm [s]tubborn"'
  tools_look
  [[ ${tools_pid} == "${server}" && ${tools_state} == ready ]]
}

@test "a server that is killed in the middle of a call costs nothing: the call goes on, its end is told, and the plain tool does the next" {
  serve
  run_start a 20 qm wait "${BATS_TEST_TMPDIR}/go"
  begun a
  kill -KILL "${server}"
  await 10 gone "${server}"
  run_change 5 qm plainly
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  : >"${BATS_TEST_TMPDIR}/go"
  run_wait a
  [[ ${run_rc} -eq 0 ]]
  calls 1 wait
  serve
}

@test "a server that hangs is passed by, once for each call, and replaced" {
  serve
  tools_patience=0
  kill -STOP "${server}"
  run_change 5 qm mutate
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  await 10 gone "${server}"
  calls 1 mutate
  spool_empty
  tools_init
  serve
  calls 1 mutate
}

@test "what a server has taken is never done again: its keeper killed, it counts as killed" {
  local pid
  serve
  run_start a 20 qm sleep 63.7
  begun a
  read -r pid _ <"${run_dir}/a.pid" || :
  await 10 pgrep -f '^sleep 63.7$'
  kill -KILL "${pid}"
  run_wait a
  [[ ${run_rc} -eq 137 ]]
  calls 1 'sleep'
  pkill -f '^sleep 63.7$'
}

@test "the asker killed, its call goes on to its end; one that was not taken does not begin" {
  serve
  bash -c 'source "$1/run.sh"; run_init; run_change 20 qm wait "$2"; touch "$2.told"' bash "${lib_dir}" "${BATS_TEST_TMPDIR}/go" 3>&- &
  local asker=$!
  await 10 grep -q wait "${BATS_TEST_TMPDIR}/calls"
  kill -KILL "${asker}"
  : >"${BATS_TEST_TMPDIR}/go"
  await 10 bash -c '! pgrep -f "qm [w]ait"'
  [[ ! -e ${BATS_TEST_TMPDIR}/go.told ]]
  kill -STOP "${server}"
  bash -c 'source "$1/run.sh"; run_init; run_change 20 qm never' bash "${lib_dir}" 3>&- &
  asker=$!
  await 10 asked
  kill -KILL "${asker}"
  await 10 gone "${asker}"
  kill -CONT "${server}"
  await 10 spool_empty
  run_read 5 qm hello
  [[ ${run_out} == loaded ]]
  calls 0 never
}

@test "before the next call it is what is installed: packages and modules" {
  local well
  serve
  well=$(<"${LINUS_LOCK_DIR}/tool-server/well")
  echo upgraded and more >"${LINUS_DPKG_STATUS}"
  serve
  [[ $(<"${LINUS_LOCK_DIR}/tool-server/well") != "${well}" ]]
  cp -r "${PERL5LIB}" "${BATS_TEST_TMPDIR}/perl"
  kill -KILL "${server}"
  await 10 gone "${server}"
  export PERL5LIB=${BATS_TEST_TMPDIR}/perl
  serve
  # What a call says is by the module that there is now.
  sed -i 's/^sub run_cli_handler {/&print "anew ";/' "${PERL5LIB}/PVE/CLI/qm.pm"
  run_read 5 qm hello
  [[ ${run_rc} -eq 0 ]]
  tools_init
  tools_look
  [[ ${tools_state} == failed && ${tools_why} == "'qm status 999999999' by the loaded modules differs"*anew* && -z ${run_out} ]]
}

@test "it begins again without the alarm that it had set, which would end it while it loads" {
  cp -r "${PERL5LIB}" "${BATS_TEST_TMPDIR}"
  PERL5LIB=${BATS_TEST_TMPDIR}/perl
  sed -i 's/^1;/die "an alarm is set" if alarm 0; &/' "${PERL5LIB}/PVE/CLI/pvesm.pm"
  serve
  echo upgraded and more >"${LINUS_DPKG_STATUS}"
  serve
}

@test "modules that do not load, or answer otherwise than the tool: plain tools, and that is said and not tried at once" {
  mkdir -p "${BATS_TEST_TMPDIR}/perl/PVE/CLI"
  cp -r "${PERL5LIB}" "${BATS_TEST_TMPDIR}"
  PERL5LIB=${BATS_TEST_TMPDIR}/perl
  echo 'die "broken";' >"${PERL5LIB}/PVE/CLI/pvesm.pm"
  tools_start
  run_read 20 qm hello
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  tools_init
  tools_look
  [[ ${tools_state} == failed && ${tools_why} == 'loading failed: broken'* ]]
  tools_start
  run_change 5 qm hello
  [[ ${run_rc} -eq 0 && -z ${run_out} && $(<"${BATS_TEST_TMPDIR}/starts") == start ]]
}

# Proxmox prints a storage's content in another order each time, and a plugin of a storage that
# is older than Proxmox is warned of whenever the modules are loaded.
@test "an answer in another order, and a warning of what is loaded, make no other answer" {
  stub_program pvesh 'if [[ -n ${PVELAB_LOADED:-} ]]; then echo "[{\"content\":\"iso,images\"}]"; else echo "plugin is old" >&2; echo "[{\"content\":\"images,iso\"}]"; fi'
  cp -r "${PERL5LIB}" "${BATS_TEST_TMPDIR}"
  PERL5LIB=${BATS_TEST_TMPDIR}/perl
  sed -i 's/^1;/warn "plugin is old\\n"; &/' "${PERL5LIB}/PVE/CLI/pvesm.pm"
  serve
  [[ -s ${LINUS_LOCK_DIR}/tool-server/well ]]
}

# As pvesh does, which reads its arguments while it is loaded.
@test "a module that looks at its arguments as it is loaded gets the call's" {
  serve
  run_read 5 pvesh get /version
  [[ ${run_rc} -eq 0 && ${run_out} == '{}' ]]
}

@test "a call that is to begin only if a config is as it was read does not begin when it has changed" {
  serve
  local LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/pve vm_asked=100 vm_digest run_guarded=guard
  mkdir -p "${LINUS_PVE_DIR}/qemu-server"
  echo 'name: ours' >"${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_digest=$(sha1sum <"${LINUS_PVE_DIR}/qemu-server/100.conf")
  vm_digest=${vm_digest%% *}
  run_change 5 qm stop 100
  [[ ${run_rc} -eq 0 && ${run_out} == loaded ]]
  echo 'name: theirs' >"${LINUS_PVE_DIR}/qemu-server/100.conf"
  run_change 5 qm stop 100
  [[ ${run_rc} -eq 75 && ${run_said} == *'has changed since it was read'* ]]
  rm "${LINUS_PVE_DIR}/qemu-server/100.conf"
  run_change 5 qm stop 100
  [[ ${run_rc} -eq 75 ]]
  calls 1 "'stop'"
}

@test "nor does it where the server hangs and has not taken it, or the plain tool does it" {
  serve
  local LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/pve vm_asked=100 vm_digest run_guarded=guard
  local -r conf=${LINUS_PVE_DIR}/qemu-server/100.conf
  mkdir -p "${conf%/*}"
  echo 'name: ours' >"${conf}"
  vm_digest=$(sha1sum <"${conf}")
  vm_digest=${vm_digest%% *}
  kill -STOP "${server}"
  tools_patience=1
  (
    until grep -qsaF stop "${LINUS_LOCK_DIR}"/tool-server/spool/*; do :; done
    echo 'name: theirs' >"${conf}" # while its request waits
  ) 3>&- &
  run_change 5 qm stop 100
  wait "$!"
  [[ ${run_rc} -eq 75 && ${run_said} == *'has changed since it was read'* ]]
  PROXMOX_TOOLS=plain tools_init
  run_change 5 qm stop 100
  [[ ${run_rc} -eq 75 && ${run_said} == *'has changed since it was read'* ]]
  calls 0 "'stop'"
  echo 'name: ours' >"${conf}"
  run_change 5 qm stop 100
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  calls 1 "'stop'"
}

# What has its ID and name may be somebody else's by then.
@test "where the asker and its directory have gone, how a call ended is written nowhere" {
  serve
  bash -c 'source "$1/run.sh"; run_init; printf %s "${run_dir}" >"$2.dir"; run_change 20 qm wait "$2"' bash "${lib_dir}" "${BATS_TEST_TMPDIR}/go" 3>&- &
  local -r asker=$!
  local dir keeper
  await 10 grep -q wait "${BATS_TEST_TMPDIR}/calls"
  dir=$(<"${BATS_TEST_TMPDIR}/go.dir")
  read -r keeper _ <"${dir}/change.pid" || :
  kill -KILL "${asker}"
  rm -r "${dir}"
  mkdir "${dir}"
  echo kept >"${BATS_TEST_TMPDIR}/other"
  ln -s "${BATS_TEST_TMPDIR}/other" "${dir}/change.rc.new"
  : >"${BATS_TEST_TMPDIR}/go"
  await 10 gone "${keeper}"
  [[ $(<"${BATS_TEST_TMPDIR}/other") == kept && ! -e ${dir}/change.rc ]]
  rm -r "${dir}"
}

@test "more calls at once than it runs are done all the same, each once" {
  local -i i
  serve
  for ((i = 0; i < 40; i += 1)); do
    run_start "t${i}" 30 qm wait "${BATS_TEST_TMPDIR}/go"
  done
  await 20 bash -c '(($(grep -c wait "$1") >= 32))' bash "${BATS_TEST_TMPDIR}/calls"
  : >"${BATS_TEST_TMPDIR}/go"
  for ((i = 0; i < 40; i += 1)); do
    run_wait "t${i}"
    [[ ${run_rc} -eq 0 ]]
  done
  calls 40 wait
}

@test "what a guest has its agent say without end is cut, and ends with the time limit" {
  serve
  run_read 5 qm flood 20000000
  [[ ${run_rc} -eq 0 && ${#run_out} -le 65536 && ${#run_said} -lt 1300 ]]
  run_read 1 qm flood
  [[ ${run_rc} -eq 124 && ${#run_out} -le 65536 && ${#run_said} -lt 1300 ]]
  await 10 bash -c '! pgrep -f "^yes linus-flood$"'
  serve
}

@test "it ends by itself when nobody has called for a while, and leaves nothing running" {
  LINUS_TOOL_SERVER_IDLE=1
  serve
  await 10 gone "${server}"
  [[ ! -e ${LINUS_LOCK_DIR}/tool-server/state ]]
  serve
}

@test "a directory that others may write to is not served from; by hand and with plain there is no server" {
  mkdir -m 0777 "${LINUS_LOCK_DIR}"
  tools_patience=1
  tools_start
  run_read 5 qm hello
  [[ ${run_rc} -eq 0 && -z ${run_out} ]]
  rm -rf "${LINUS_LOCK_DIR}"
  PROXMOX_TOOLS=plain tools_init
  tools_start
  run_read 5 qm hello
  [[ -z ${run_out} ]]
  LINUS_TOOL_SERVER='' tools_init
  tools_start
  run_read 5 qm hello
  [[ -z ${run_out} && $(<"${BATS_TEST_TMPDIR}/starts") == start ]]
}
