# shellcheck shell=bash
# What every test of the host scripts stands on: a stub of Proxmox (pve-stub)
# with one node 'pve', storage local-lvm, bridge vmbr0, template 9000, a
# container 100 and a VM 101 of somebody else.

scripts_dir=$(cd -- "${BATS_TEST_DIRNAME}/../.." && pwd)

job=11111111-2222-4333-8444-555555555555
owner=99999999-2222-4333-8444-555555555555
# shellcheck disable=SC2034 # the test files read it
host_key='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGd1ZXN0'

setup_stub() {
  export PVE_STUB=${BATS_TEST_TMPDIR}/pve
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}
  export TMPDIR=${BATS_TEST_TMPDIR}
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/qemu-server
  export LINUS_UNIT_DIR=${BATS_TEST_TMPDIR}/etc/systemd/system
  mkdir -p "${LINUS_PVE_DIR}"/nodes/pve/{qemu-server,lxc} "${LINUS_QEMU_DIR}"
  ln -s nodes/pve/qemu-server "${LINUS_PVE_DIR}/qemu-server"
  echo 'hostname: ct' >"${LINUS_PVE_DIR}/nodes/pve/lxc/100.conf"
  mkdir -p "${PVE_STUB}"/{vm,status,answers,guest,faults} "${BATS_TEST_TMPDIR}/bin"
  local tool
  for tool in qm pvesh pvesm pveversion; do
    ln -s "${scripts_dir}/test/helper/pve-stub" "${BATS_TEST_TMPDIR}/bin/${tool}"
  done
  start_machine
  setup_systemd
  stub_program sleep 'exit 0'
  # The node's network: VMs that run are on the bridge with the card their config
  # has, wherever they say that they are. route and neighbours say otherwise.
  # shellcheck disable=SC2016 # the stubs' own variables
  stub_program ip '
    case " $* " in
      *" link show dev vmbr0 type bridge "*) echo "3: vmbr0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500" ;;
      *" link show dev eno1 "*) ;; # there, and no bridge
      *" addr show "*)
        echo "1: lo    inet 127.0.0.1/8 scope host lo"
        echo "3: vmbr0    inet 10.0.0.1/24 brd 10.0.0.255 scope global vmbr0"
        ;;
      *" link show "*)
        echo "Device \"$5\" does not exist." >&2
        exit 1
        ;;
      *" route get "*)
        if [[ -s ${PVE_STUB}/route ]]; then
          cat "${PVE_STUB}/route"
        else
          printf "%s dev vmbr0 src 10.0.0.1 uid 0 \\\\    cache \n" "${@: -1}"
        fi
        ;;
      *" neigh show to "*)
        if [[ -s ${PVE_STUB}/neighbours ]]; then
          sed -n "s/^$4 dev vmbr0 /$4 /p" "${PVE_STUB}/neighbours"
          exit
        fi
        for file in "${PVE_STUB}"/status/*; do
          if [[ ${file##*/} != 101 && $(<"${file}") == running ]]; then
            sed -En "s/^net0: [a-z0-9]+=([0-9A-F:]{17}).*/$4 lladdr \L\1 REACHABLE/p" "${PVE_STUB}/vm/${file##*/}"
          fi
        done
        ;;
      *) cat "${PVE_STUB}/neighbours" ;;
    esac'
  # The node's nft keeps one table, whole: that of the VMs whose network is limited.
  # shellcheck disable=SC2016 # the stubs' own variables
  stub_program nft '
    echo "nft $*" >>"${PVE_STUB}/nft-calls"
    table=${PVE_STUB}/nft
    [[ ! -e ${PVE_STUB}/nft-fails ]] || { cat "${PVE_STUB}/nft-fails" >&2; exit 1; }
    case "$*" in
      "-f "*)
        [[ $(head -n 2 "$2") == "table bridge linus"$'"'\n'"'"delete table bridge linus" ]] || exit 1
        tail -n +3 "$2" >"${table}"
        [[ -s ${table} ]] || rm "${table}"
        ;;
      "list chain bridge linus "*) grep -qx "add chain bridge linus $5" "${table}" ;;
      "list table bridge linus") cat "${table}" ;;
      "list map bridge linus "*) grep "map $5 {" "${table}" ;;
      "-c "*) ;;
      *) exit 1 ;;
    esac'
  # shellcheck disable=SC2016 # the stubs' own variables
  stub_program ssh-keyscan 'cat "${PVE_STUB}/keyscan"'
  PATH=${BATS_TEST_TMPDIR}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin

  echo 'pve-manager/8.2.4/faa83925c9641325 (running kernel: 6.8.8-2-pve)' >"${PVE_STUB}/version"
  answer /cluster/status '[{"type":"node","name":"pve","id":"node/pve","local":1,"online":1,"nodeid":0}]'
  answer /nodes '[{"node":"pve","status":"online"}]'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"rootdir,images","avail":107374182400,"type":"lvmthin"}'
  answer /nodes/pve/network '[{"iface":"eno1","type":"eth"},{"iface":"vmbr0","type":"bridge"}]'
  answer /nodes/pve/qemu '[{"vmid":101,"name":"other","status":"running"},{"vmid":"9000","name":"agent-template","status":"stopped","template":1}]'
  answer /cluster/resources '[{"vmid":100,"type":"lxc","name":"ct","node":"pve"},{"vmid":101,"type":"qemu","name":"other","node":"pve"},{"vmid":9000,"name":"agent-template","node":"pve","template":1}]'
  add_vm 9000 'boot: order=scsi0;scsi1;net0' 'ciuser: debian' 'cores: 1' 'memory: 1024' 'name: agent-template' \
    'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr9,firewall=1' 'scsi0: local-lvm:base-9000-disk-0,size=3G' \
    'scsi1: local-lvm:vm-9000-cloudinit,media=cdrom' 'template: 1'
  add_vm 101 '#precious' 'name: other'
  echo 2G >"${PVE_STUB}/image-size"
  : >"${PVE_STUB}/neighbours"
  guest_interfaces '{"name":"eth0","hardware-address":"bc:24:11:aa:aa:aa","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  printf '%s\n' '{"exitcode":0,"exited":1,"out-data":"status: done\n"}' >"${PVE_STUB}/guest/cloud-init"
  printf '{"exitcode":0,"exited":1,"out-data":"%s root@guest\\n"}\n' "${host_key}" >"${PVE_STUB}/guest/host-key"
  printf '127.0.0.1 %s\n' "${host_key}" >"${PVE_STUB}/keyscan"

  # The scripts' inputs, as the engine gives them.
  export VM_NAME=linus-job-11111111 VM_TEMPLATE=agent-template VM_CPU=2 VM_RAM=2048 VM_DISK=10
  export SSH_PUBLIC_KEY='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3Q test key' VM_ID_RANGE=200-299
  export LINUS_JOB=${job} LINUS_OWNER=${owner} VM_NETWORK_TIMEOUT=10 VM_READY_TIMEOUT=10
  unset LINUS_NONCE LINUS_LEASE_SECONDS VM_OS VM_SSH_USER PROXMOX_NODE PROXMOX_STORAGE PROXMOX_BRIDGE
}

# The host's systemd is the lab's work-alike, which is built once a run. Units
# inherit what the host's sessions have of the stub, and go with the test
# (reboot_host).
setup_systemd() {
  export PVELAB_DIR=${BATS_TEST_TMPDIR}
  local -r binary=${BATS_RUN_TMPDIR}/pvelab
  if [[ ! -x ${binary} ]]; then
    (cd -- "${scripts_dir}/.." && CGO_ENABLED=0 go build -o "${binary}" ./cmd/pvelab 3>&-)
  fi
  ln -s "${binary}" "${BATS_TEST_TMPDIR}/bin/systemd-run"
  ln -s "${binary}" "${BATS_TEST_TMPDIR}/bin/systemctl"
  mkdir -p "${PVELAB_DIR}/run/systemd"
  printf '%s\n' "PATH=${BATS_TEST_TMPDIR}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" "PVELAB_DIR=${PVELAB_DIR}" \
    "PVE_STUB=${PVE_STUB}" "TMPDIR=${TMPDIR}" "LINUS_LOCK_DIR=${LINUS_LOCK_DIR}" "LINUS_HOST_DIR=${LINUS_HOST_DIR}" \
    "LINUS_PVE_DIR=${LINUS_PVE_DIR}" "LINUS_UNIT_DIR=${LINUS_UNIT_DIR}" >"${PVELAB_DIR}/run/systemd/environment"
}

# The process of every VM that runs: pve-stub writes its ID where QEMU writes
# its own. It is no child of the test, whose `wait` would wait for it.
start_machine() {
  local -a names=()
  local -i id
  for ((id = 100; id < 1000; id += 1)); do
    names+=(-pidfile "${LINUS_QEMU_DIR}/${id}.pid")
  done
  machine_pid=$(
    perl -e 'sleep 3600' -- "${names[@]}" >/dev/null 2>&1 3>&- &
    echo "$!"
  )
  echo "${machine_pid}" >"${PVE_STUB}/machine"
}

# Takes away all units and what they started; files stay.
reboot_host() {
  "${BATS_RUN_TMPDIR}/pvelab" systemd-reboot 3>&-
}

# The host after its reboot: what is enabled is started.
boot_host() {
  "${BATS_RUN_TMPDIR}/pvelab" systemd-boot 3>&-
}

stub_program() { # <name> <body>; what is there may be a link
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

guest_interfaces() { # <JSON objects, comma separated>
  printf '[%s]\n' "$1" >"${PVE_STUB}/guest/interfaces"
}

add_vm() { # <id> <config line...>: a VM that stands there already
  printf '%s\n' "${@:2}" >"${PVE_STUB}/vm/$1"
  echo running >"${PVE_STUB}/status/$1"
  echo "${machine_pid}" >"${LINUS_QEMU_DIR}/$1.pid"
  ln -sf "${PVE_STUB}/vm/$1" "${LINUS_PVE_DIR}/qemu-server/$1.conf"
}

add_our_vm() { # <id> [<config line...>]
  add_vm "$1" "#linus-job=${job} linus-owner=${owner}" 'boot: order=scsi0' "name: ${VM_NAME}" \
    'scsi0: local-lvm:vm-disk-0,size=10G' 'tags: linus' "${@:2}"
}

spoil_config() { # <id>: the VM's config can no longer be read
  ln -sf "$1.conf" "${LINUS_PVE_DIR}/qemu-server/$1.conf"
}

# What a config of the VM has become that a destroy left which did not come to its end.
assert_destroyed_half() { # <id>
  [[ $(<"${PVE_STUB}/vm/$1") == 'lock: destroyed' ]] || fail "VM $1:" "$(<"${PVE_STUB}/vm/$1")"
}

# Runs a script as the engine does: a process of its own, stdout and stderr
# apart. status, output (stdout) and log (stderr) are set.
run_script() { # <name> <argument...>
  status=0
  bash "${scripts_dir}/proxmox/$1.sh" "${@:2}" >"${BATS_TEST_TMPDIR}/stdout" 2>"${BATS_TEST_TMPDIR}/stderr" 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
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

# Every qm command line of the test is one that both versions take.
assert_fits_options() {
  local version
  for version in 8.2 9.2; do
    jq -nrR --slurpfile lists "${scripts_dir}/../testdata/pve/qm-options-${version}.json" \
      -f "${scripts_dir}/test/helper/fits.jq" "${PVE_STUB}/argv" >"${BATS_TEST_TMPDIR}/misfits"
    [[ ! -s ${BATS_TEST_TMPDIR}/misfits ]] || fail "${version}: $(<"${BATS_TEST_TMPDIR}/misfits")"
  done
}

teardown() {
  [[ -z ${machine_pid:-} ]] || kill "${machine_pid}"
  [[ -z ${PVE_STUB:-} ]] || reboot_host
  [[ ! -s ${PVE_STUB:-}/argv ]] || assert_fits_options
}

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
