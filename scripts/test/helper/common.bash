# shellcheck shell=bash
# What every test of the host scripts stands on: a stub of Proxmox (pve-stub)
# with one node 'pve', storage local-lvm, bridge vmbr0, template 9000, a
# container 100 and a VM 101 of somebody else.

scripts_dir=$(cd -- "${BATS_TEST_DIRNAME}/../.." && pwd)
# The scripts in one piece, as hosts get them: by hand a library is read once for every way that
# leads to it, hundreds of times, which takes longer than much that a script does.
host_scripts=${BATS_FILE_TMPDIR-}/scripts

job=11111111-2222-4333-8444-555555555555
owner=99999999-2222-4333-8444-555555555555
# shellcheck disable=SC2034 # the test files read it
host_key='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGd1ZXN0'

# The stub is built once a file, in a shell of its own: bats looks at each command of a
# test's, but for those in here, which takes longer than most commands do. Every test has a copy.
setup_stub() {
  trap '[[ ${BASH_SOURCE-} == */helper/common.bash ]] || bats_debug_trap "${BASH_SOURCE}"' DEBUG
  export PVE_STUB=${BATS_TEST_TMPDIR}/pve PVELAB_DIR=${BATS_TEST_TMPDIR} LINUS_LOCK_DIR=${BATS_TEST_TMPDIR} TMPDIR=${BATS_TEST_TMPDIR}
  export LINUS_SLEEP=: LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/qemu-server
  export LINUS_UNIT_DIR=${BATS_TEST_TMPDIR}/etc/systemd/system
  [[ -d ${BATS_FILE_TMPDIR}/stub ]] || bash "${scripts_dir}/test/helper/build-stub" "${BATS_TEST_DIRNAME}" "${BATS_FILE_TMPDIR}/stub" 3>&-
  cp -a "${BATS_FILE_TMPDIR}/stub/." "${BATS_TEST_TMPDIR}"
  PATH=${BATS_TEST_TMPDIR}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
  machine_pid=$(perl "${scripts_dir}/test/helper/start-machine" "${LINUS_QEMU_DIR}" 3>&-)
  tee "${PVE_STUB}/machine" "${LINUS_QEMU_DIR}"/{101,9000}.pid <<<"${machine_pid}" >/dev/null
  # Units inherit what the host's sessions have of the stub.
  printf '%s\n' "PATH=${PATH}" "PVELAB_DIR=${PVELAB_DIR}" "PVE_STUB=${PVE_STUB}" "TMPDIR=${TMPDIR}" "LINUS_LOCK_DIR=${LINUS_LOCK_DIR}" \
    "LINUS_HOST_DIR=${LINUS_HOST_DIR}" "LINUS_PVE_DIR=${LINUS_PVE_DIR}" "LINUS_UNIT_DIR=${LINUS_UNIT_DIR}" >"${PVELAB_DIR}/run/systemd/environment"

  # The scripts' inputs, as the engine gives them.
  export VM_NAME=linus-job-11111111 VM_TEMPLATE=agent-template VM_CPU=2 VM_RAM=2048 VM_DISK=10
  export SSH_PUBLIC_KEY='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3Q test key' VM_ID_RANGE=200-299
  export LINUS_JOB=${job} LINUS_OWNER=${owner} VM_NETWORK_TIMEOUT=10 VM_READY_TIMEOUT=10
  unset LINUS_NONCE LINUS_LEASE_SECONDS VM_OS VM_SSH_USER PROXMOX_NODE PROXMOX_STORAGE PROXMOX_BRIDGE
}

# Takes away all units and what they started; files stay.
reboot_host() {
  "${BATS_RUN_TMPDIR}/pvelab" systemd-reboot 3>&-
}

# The host after its reboot: what is enabled is started.
boot_host() {
  "${BATS_RUN_TMPDIR}/pvelab" systemd-boot 3>&-
}

stub_program() { # <name> <body>; what is there may be a link; pauses take no time unless there is a program of theirs
  [[ $1 != sleep ]] || LINUS_SLEEP=sleep
  rm -f "${BATS_TEST_TMPDIR}/bin/$1"
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"${BATS_TEST_TMPDIR}/bin/$1"
  chmod +x "${BATS_TEST_TMPDIR}/bin/$1"
}

answer() { # <API path> <JSON>
  local name=${1#/}
  printf '%s\n' "$2" >"${PVE_STUB}/answers/${name//\//_}"
  if [[ ${name} == cluster/status ]]; then
    write_members "$2"
  fi
}

# The same in pmxcfs: a host without a cluster has no list of nodes there.
write_members() { # <answer of /cluster/status>
  jq '[.[] | select(.type == "cluster")] as $cluster | [.[] | select(.type == "node")] as $nodes
    | {nodename: ($nodes[] | select(.local | tostring == "1") | .name), version: 1}
    + if $cluster == [] then {} else {cluster: {name: "c", version: 1, nodes: ($nodes | length), quorate: $cluster[0].quorate}} end
    + if $nodes | length == 1 then {} else {nodelist: ($nodes | map({key: .name, value: {id: 1, online: .online}}) | from_entries)} end
  ' <<<"$1" >"${LINUS_PVE_DIR}/.members"
}

fault() { # <verb> <exit> <do|skip> <text>: of the verb's next call, in turn
  printf '%s|%s|%s\n' "$2" "$3" "$4" >>"${PVE_STUB}/faults/$1"
}

hook() { # <verb> <body>
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"${PVE_STUB}/hook-$1"
  chmod +x "${PVE_STUB}/hook-$1"
}

# For what looks again after a step: something else happens during call N of a verb, while it has
# changed nothing, or (after-VERB) when it is done. Of the command line $2 and so on are left.
change_during() { # <verb or after-verb> <N> <command>
  # shellcheck disable=SC2016 # the hook's own variables
  hook "$1" 'echo >>"$0.calls"; (($(wc -l <"$0.calls") != '"$2"')) || { '"$3"'; }'
}

# The VM is somebody else's from then on.
take_during() { # <verb or after-verb> <N> <id, or empty: the one that the call is about>
  # shellcheck disable=SC2016 # the hook's own variables
  change_during "$1" "$2" 'sed -i -e "s/^#linus-job=/&0/" "${PVE_STUB}/vm/'"${3:-\$2}"'"'
}

guest_interfaces() { # <JSON objects, comma separated>
  printf '[%s]\n' "$1" >"${PVE_STUB}/guest/interfaces"
}

add_vm() { # <id> <config line...>: a VM that stands there already
  printf '%s\n' "${@:2}" >"${PVE_STUB}/vm/$1"
  echo running >"${PVE_STUB}/status/$1"
  echo "${machine_pid:-}" >"${LINUS_QEMU_DIR}/$1.pid"
  ln -sf "../../../../pve/vm/$1" "${LINUS_PVE_DIR}/qemu-server/$1.conf"
}

add_our_vm() { # <id> [<config line...>]
  add_vm "$1" "#linus-job=${job} linus-owner=${owner} linus-vm=$1" 'boot: order=scsi0' "name: ${VM_NAME}" \
    'scsi0: local-lvm:vm-disk-0,size=10G' 'tags: linus' "${@:2}"
}

spoil_config() { # <id>: the VM's config can no longer be read
  ln -sf "$1.conf" "${LINUS_PVE_DIR}/qemu-server/$1.conf"
}

# Proxmox's tools by a process that has their modules, the lab's.
start_tool_server() { # tool_server
  local state=''
  export LINUS_TOOL_SERVER=${scripts_dir}/proxmox/tool-server.pl PERL5LIB=${scripts_dir}/../internal/lab/pve/perl LINUS_DPKG_STATUS=${BATS_TEST_TMPDIR}/dpkg
  echo '{}' >"${PVELAB_DIR}/lab.json"
  mkdir -p "${PVELAB_DIR}/log"
  : >"${LINUS_DPKG_STATUS}"
  setsid perl "${LINUS_TOOL_SERVER}" "${LINUS_LOCK_DIR}/tool-server" 60 </dev/null >/dev/null 2>&1 3>&- &
  until { read -r tool_server _ state _ <"${LINUS_LOCK_DIR}/tool-server/state"; } 2>/dev/null && [[ ${state} == ready ]]; do
    command sleep 0.05
  done
}

# The VM is somebody else's while a request waits for the tool server, which stands still until then.
take_waiting() { # <verb> <id>
  (
    until grep -qsaF "$1" "${LINUS_LOCK_DIR}"/tool-server/spool/*; do :; done
    sed -i -e 's/^#linus-job=/&0/' "${PVE_STUB}/vm/$2"
    kill -CONT "${tool_server}"
  ) 3>&- &
}

# What a config of the VM has become that a destroy left which did not come to its end.
assert_destroyed_half() { # <id>
  [[ $(<"${PVE_STUB}/vm/$1") == 'lock: destroyed' ]] || fail "VM $1:" "$(<"${PVE_STUB}/vm/$1")"
}

# Runs a script as the engine does: a process of its own, stdout and stderr
# apart. status, output (stdout) and log (stderr) are set.
run_script() { # <name> <argument...>
  status=0
  bash "${host_scripts}/$1.sh" "${@:2}" >"${BATS_TEST_TMPDIR}/stdout" 2>"${BATS_TEST_TMPDIR}/stderr" 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
}

# Each of the settings alone is refused with exit 1 and by its name, before any program is started.
# One shell has read the script, which takes longer than all that it then does.
refuses() { # <script> <NAME=value...>
  local taken
  # shellcheck disable=SC2016 # the inner shell's own variables
  taken=$(bash -c 'source "$1"
    for setting in "${@:2}"; do
      output=$(export "${setting}" && set -Eeuo pipefail && main 2>/dev/null)
      status=$?
      [[ ${status} -eq 1 ]] && grep -q "^LINUS_ERROR:.*${setting%%=*}" <<<"${output}" || printf "%s\n" "${setting@Q}: exit ${status}" "${output}"
    done' bash "${host_scripts}/$1.sh" "${@:2}" 3>&-)
  [[ -z ${taken} && ! -e ${PVE_STUB}/calls ]] || fail "not refused: ${taken}"
}

# An SSH server as far as its greeting goes, on a port of its own.
start_greeter() { # sets VM_SSH_PORT, greeter_pid
  perl -MIO::Socket::INET -e '
    my $s = IO::Socket::INET->new(Listen => 20, LocalAddr => "127.0.0.1", ReuseAddr => 1) or die;
    open my $f, ">", "$ARGV[0].new" or die; print $f $s->sockport; close $f; rename "$ARGV[0].new", $ARGV[0];
    while (my $c = $s->accept) { print $c "SSH-2.0-Stub\r\n"; close $c }' "${BATS_FILE_TMPDIR}/port" >/dev/null 2>&1 3>&- &
  greeter_pid=$!
  until [[ -s ${BATS_FILE_TMPDIR}/port ]]; do
    command sleep 0.05
  done
  VM_SSH_PORT=$(<"${BATS_FILE_TMPDIR}/port")
  export VM_SSH_PORT greeter_pid
}

# --- assertions: each says what it saw ---

fail() {
  printf '%s\n' "$@" "--- status ${status:-}" "${output:-}" '--- log' "${log:-}" >&2
  return 1
}

assert_status() { # <exit code>
  [[ ${status} -eq $1 ]] || fail "exit ${status}, expected $1"
}

assert_line() { # <line of stdout>
  [[ $'\n'${output}$'\n' == *$'\n'"$1"$'\n'* ]] || fail "stdout lacks the line: $1"
}

refute_line_like() { # <pattern>
  [[ $'\n'${output}$'\n' != *$'\n'$1* ]] || fail "stdout has a line like: $1"
}

assert_says() { # <part of stdout>
  [[ ${output} == *"$1"* ]] || fail "stdout does not say: $1"
}

called() { # <pattern of a whole command line>
  grep -qx -- "$1" "${PVE_STUB}/calls"
}

assert_called() {
  called "$1" || fail "never called: $1" "$(<"${PVE_STUB}/calls")"
}

assert_called_times() { # <count> <pattern>
  local count
  count=$(grep -cx -- "$2" "${PVE_STUB}/calls") || :
  [[ ${count} -eq $1 ]] || fail "called ${count} times, expected $1: $2"
}

read_vm_id() { # id: what the answer says
  id=$(sed -n 's/^LINUS_VM_ID://p' <<<"${output}")
  [[ ${id} =~ ^[0-9]+$ ]] || fail 'stdout has no single LINUS_VM_ID'
}

refute_called() {
  ! called "$1" || fail "was called: $1" "$(<"${PVE_STUB}/calls")"
}

# Every qm command line is one that both versions take; --nets-host-mtu is given where the
# version has noted it.
assert_fit_options() { # <file of command lines>
  local version misfits later=--nets-host-mtu
  for version in 8.2 9.2; do
    misfits=$({ grep -vF -- "${later}" "$1" || :; } \
      | jq -nrR --slurpfile lists "${scripts_dir}/../internal/lab/pve/qm-options-${version}.json" -f "${scripts_dir}/test/helper/fits.jq")
    later=$'\x02'
    [[ -z ${misfits} ]] || fail "${version}: ${misfits}"
  done
}

teardown() {
  [[ -z ${machine_pid:-} ]] || kill "${machine_pid}"
  [[ -z ${PVE_STUB:-} ]] || reboot_host
  [[ ! -s ${PVE_STUB:-}/argv ]] || cat "${PVE_STUB}/argv" >>"${BATS_FILE_TMPDIR}/argv"
}

# A file's command lines are looked at when its tests have ended: a file with a teardown_file
# of its own calls this.
check_file() {
  [[ ! -s ${BATS_FILE_TMPDIR}/argv ]] || assert_fit_options "${BATS_FILE_TMPDIR}/argv"
}

teardown_file() { check_file; }

assert_no_vm_of_ours() {
  ! grep -lr 'linus-job' "${PVE_STUB}/vm" || fail 'a VM of ours was left'
}

assert_foreign_untouched() { # VM 101 is as it was
  [[ $(<"${PVE_STUB}/vm/101") == $'#precious\nname: other' && $(<"${PVE_STUB}/status/101") == running ]] \
    || fail 'VM 101 of somebody else was touched'
}

assert_nothing_left() { # no temporary file, no lock, no lease, no address
  local left
  left=$(find "${BATS_TEST_TMPDIR}" "${LINUS_HOST_DIR}"/{leases,addresses} -maxdepth 1 \
    -name 'linus*' -o -path '*/leases/[0-9]*' -o -path '*/addresses/[0-9a-f]*' 2>/dev/null) || :
  [[ -z ${left} ]] || fail "left behind: ${left}"
}
