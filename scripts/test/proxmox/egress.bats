#!/usr/bin/env bats
# The rules of VMs whose network is limited, over whole scripts: when they are made,
# read back, made again and taken away. What they let pass is a test of the lab's network.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  export VM_EGRESS=internet LINUS_RESOLV_CONF=${BATS_TEST_TMPDIR}/resolv.conf
  echo 'nameserver 10.0.0.53' >"${LINUS_RESOLV_CONF}"
}

read_table() { # table: the rules as the kernel has them
  table=$(cat "${PVE_STUB}/nft" 2>/dev/null) || :
}

assert_rules() { # <part of the rules>
  read_table
  [[ ${table} == *"$1"* ]] || fail "the rules lack: $1" "${table}"
}

refute_rules() { # <part of the rules>
  read_table
  [[ ${table} != *"$1"* ]] || fail "the rules have: $1" "${table}"
}

limited() { # <id> <config line...>: one that runs
  add_vm "$1" "#linus-job=${job} linus-owner=${owner} linus-vm=$1 linus-egress=internet" 'boot: order=scsi0' "name: ${VM_NAME}" \
    'scsi0: local-lvm:vm-disk-0,size=10G' 'tags: linus' 'ciuser: worker' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' "${@:2}"
}

stopped() { # <id>
  echo stopped >"${PVE_STUB}/status/$1"
  rm -f "${LINUS_QEMU_DIR}/$1.pid"
}

@test "a VM on the LAN starts no nft" {
  VM_EGRESS=lan run_script create-vm
  assert_status 0
  read_vm_id
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  run_script list-vms
  [[ ! -e ${PVE_STUB}/nft-calls ]] || fail "$(<"${PVE_STUB}/nft-calls")"
}

@test "the rules are there before the VM starts, closed until its address is known, and go with it" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook start 'cp "${PVE_STUB}/nft" "${PVE_STUB}/nft-at-start"'
  run_script create-vm
  assert_status 0
  read_vm_id
  grep -q "\"tap${id}i0\" : goto from_${id}" "${PVE_STUB}/nft-at-start" || fail 'no rules at its start'
  ! grep -q '127.0.0.1 drop' "${PVE_STUB}/nft-at-start" || fail 'open at its start'
  assert_rules "\"tap${id}i0\" : goto to_${id}"
  assert_rules 'ip saddr != 127.0.0.1 drop'
  assert_rules 'ip daddr { 10.0.0.53 } udp dport 53 accept'
  assert_rules "ip daddr @node4 tcp sport ${VM_SSH_PORT} tcp flags"
  [[ $(<"${PVE_STUB}/vm/${id}") == *linus-egress=internet* ]] || fail "$(<"${PVE_STUB}/vm/${id}")"
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  read_table
  [[ -z ${table} ]] || fail "${table}"
  run find "${LINUS_LOCK_DIR}" -maxdepth 1 -name "egress-*"
  [[ -z ${output} ]] || fail "${output}"
}

@test "none and allow let nothing out but SSH, whatever the address; a dry run says what is made" {
  local mode
  for mode in none allow; do
    VM_NAME=vm-${mode} VM_EGRESS=${mode} VM_IP_CONFIG=127.0.0.1/8 run_script create-vm
    assert_status 0
    refute_rules '@closed4 drop'
    assert_rules 'ip saddr != 127.0.0.1 drop'
    read_vm_id
    VM_ID=${id} VM_NAME=vm-${mode} run_script destroy-vm
    assert_status 0
  done
  VM_EGRESS=none run_script create-vm --dry-run
  assert_status 0
  assert_says 'linus-egress=none'
  assert_says 'with egress none for tap'
}

@test "ranges are reached where allow lists them, and not where internet does, after what is private" {
  export VM_IP_CONFIG=127.0.0.1/8
  VM_EGRESS=allow VM_EGRESS_RANGES=9.9.9.9,9.9.9.0/24,2620:fe::/48 run_script create-vm
  assert_status 0
  read_vm_id
  grep -qE 'linus-egress=allow((:|%3A)[0-9]+)?\+9\.9\.9\.9,9\.9\.9\.0/24,2620%3Afe%3A%3A/48( |$)' "${PVE_STUB}/vm/${id}" || fail "$(<"${PVE_STUB}/vm/${id}")"
  assert_rules "set ranges_${id} { type ipv4_addr; flags interval; auto-merge; elements = { 9.9.9.9/32, 9.9.9.0/24 }; }"
  read_table
  [[ ${table} == *"ip daddr @closed4 drop"*"ip daddr @ranges_${id} accept"* ]] || fail 'what is private comes later' "${table}"
  refute_rules 'dport 53 accept'
  VM_ID=${id} SHOW_EGRESS=true run_script show-vm
  assert_line LINUS_EGRESS:allow
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  VM_EGRESS=internet VM_EGRESS_RANGES=10.0.0.53 run_script create-vm
  assert_status 0
  read_vm_id
  read_table
  [[ ${table} == *"ip daddr @ranges_${id} drop"*'ip daddr { 10.0.0.53 } udp dport 53 accept'* ]] || fail 'a name server that is denied is reached' "${table}"
}

@test "ranges that are none, or of a mode without them, are told before anything is made" {
  local mode ranges
  for ranges in '9.9.9.9,' ',9.9.9.9' 9.9.9.0/33 9.9.9.0/0 256.1.1.1 2620:fe::/129 fe80::1%eth0 '9.9.9.9 }' a.example '9.9.9.9;' $'9.9.9.9\n'; do
    VM_EGRESS=allow VM_EGRESS_RANGES=${ranges} run_script create-vm
    assert_status 1
    assert_says 'VM_EGRESS_RANGES: '
  done
  for mode in lan none; do
    VM_EGRESS=${mode} VM_EGRESS_RANGES=9.9.9.9 run_script create-vm
    assert_status 1
    assert_says 'internet or allow'
  done
  assert_no_vm_of_ours
}

@test "a hundred of the longest ranges are kept, and read again" {
  local ranges
  printf -v ranges '2620:00fe:1111:2222:3333:4444:5555:6%03d/128,' {1..100}
  VM_EGRESS=allow VM_EGRESS_RANGES=${ranges%,} VM_IP_CONFIG=127.0.0.1/8 run_script create-vm
  assert_status 0
  read_vm_id
  VM_ID=${id} ACTION=shutdown run_script power-vm
  assert_status 0
  VM_ID=${id} ACTION=start run_script power-vm
  assert_status 0
  assert_rules "\"tap${id}i0\" : goto from_${id}"
}

@test "a word with ranges that are none closes its VM, and no other" {
  limited 250 'ipconfig0: ip=127.0.0.1/8'
  local word
  for word in allow+9.9.9.9,x allow-9.9.9.9 internet+9.9.9.9 allow+ internet- none+9.9.9.9 'allow+9.9.9.0/0' "allow+9.9.9.9,${PATH//[!a-z]/,}"; do
    limited 251 'ipconfig0: ip=127.0.0.2/8'
    sed -i "s|linus-egress=internet|linus-egress=${word}|" "${PVE_STUB}/vm/251"
    run_script list-vms
    assert_rules '"tap251i0" : goto from_251'
    assert_rules 'ip daddr @closed4 drop'
    refute_rules ranges_
    read_table
    [[ ${table%chain to_250*} == *'@closed4 drop'* && ${table#*chain from_251} != *'@closed4'*'chain to_251'* ]] || fail "${word}" "${table}"
  done
}

@test "a host without nft, a bridge that is none and a mode that is none are told before anything is made" {
  rm "${BATS_TEST_TMPDIR}/bin/nft"
  without nft
  PATH=${path} run_script create-vm
  assert_status 2
  assert_says 'nft is not on'
  assert_no_vm_of_ours
  VM_EGRESS=wan run_script create-vm
  assert_status 1
  assert_says 'VM_EGRESS'
}

without() { # <tool>; path: a PATH that lacks it
  local dir
  mkdir -p "${BATS_TEST_TMPDIR}/all"
  for dir in /bin /usr/bin /sbin /usr/sbin; do
    ln -s "${dir}"/* "${BATS_TEST_TMPDIR}/all" 2>/dev/null || : # two may be the same
  done
  rm -f "${BATS_TEST_TMPDIR}/all/$1"
  path=${BATS_TEST_TMPDIR}/bin:${BATS_TEST_TMPDIR}/all
}

@test "rules that nft refuses, or takes and does not have, let no VM start" {
  echo 'Error: Could not process rule: Operation not supported' >"${PVE_STUB}/nft-fails"
  run_script create-vm
  assert_status 3
  assert_says 'it is not let run: nft: Error: Could not process rule'
  refute_called 'qm start.*'
  assert_no_vm_of_ours
  rm "${PVE_STUB}/nft-fails"
  stub_program nft 'exit 0'
  run_script create-vm
  assert_status 3
  assert_says 'its entry is not in table bridge linus'
  refute_called 'qm start.*'
}

@test "start, resume and revert make the rules anew, from the config; other cards are closed" {
  limited 250 'ipconfig0: ip=127.0.0.1/8' 'net1: virtio=BC:24:11:AA:AA:AB,bridge=vmbr0'
  stopped 250
  VM_ID=250 ACTION=start run_script power-vm
  assert_status 0
  assert_rules '"tap250i0" : goto from_250'
  assert_rules '"tap250i1" : drop'
  rm "${PVE_STUB}/nft"
  VM_ID=250 ACTION=suspend run_script power-vm
  assert_status 0
  VM_ID=250 ACTION=resume run_script power-vm
  assert_status 0
  assert_rules '"tap250i0" : goto from_250'
}

@test "after a reboot, a flush or a destroy by hand the sweep makes the rules what the configs say" {
  limited 250 'ipconfig0: ip=127.0.0.1/8'
  run_script list-vms
  assert_status 0
  assert_rules '"tap250i0" : goto from_250'
  rm "${PVE_STUB}/nft"
  run_script list-vms
  assert_rules '"tap250i0" : goto from_250'
  limited 251 'ipconfig0: ip=127.0.0.2/8'
  run_script list-vms
  assert_rules '"tap250i0" : goto from_250'
  assert_rules '"tap251i0" : goto from_251'
  : >"${PVE_STUB}/nft-calls"
  run_script list-vms
  ! grep -- -f "${PVE_STUB}/nft-calls" || fail 'rules that are there were made again'
  rm "${PVE_STUB}"/vm/25? "${LINUS_PVE_DIR}"/qemu-server/25?.conf
  run_script list-vms
  read_table
  [[ -z ${table} ]] || fail "${table}"
}

@test "while pmxcfs is away nothing is taken away: not the rules, and not the address a guest has told" {
  limited 250
  run_script list-vms # it makes the directory
  echo 'bc:24:11:aa:aa:aa 127.0.0.1' >"${LINUS_LOCK_DIR}/egress-250-${job}"
  run_script list-vms
  assert_rules 'ip saddr != 127.0.0.1 drop'
  mv "${LINUS_PVE_DIR}" "${LINUS_PVE_DIR}.away"
  mkdir "${LINUS_PVE_DIR}"
  LIST_NODES=own run_script list-vms
  assert_rules 'ip saddr != 127.0.0.1 drop'
  rmdir "${LINUS_PVE_DIR}"
  mv "${LINUS_PVE_DIR}.away" "${LINUS_PVE_DIR}"
  rm "${PVE_STUB}/nft"
  run_script list-vms
  assert_rules 'ip saddr != 127.0.0.1 drop'
}

@test "rules that cannot be written leave those that are there, and end no script" {
  limited 250 'ipconfig0: ip=127.0.0.1/8'
  run_script list-vms
  assert_status 0
  # A full /run; and the rules change, as another VM is there.
  ln -s /dev/full "${LINUS_LOCK_DIR}/egress.rules.new"
  limited 251 'ipconfig0: ip=127.0.0.2/8'
  run_script list-vms
  assert_status 0
  [[ ${log} == *'could not be checked: could not write '* ]] || fail 'not told'
  assert_rules '"tap250i0" : goto from_250'
  # Nor does a roll-back, which goes on whatever fails, take them all away.
  fault start 255 skip 'no memory'
  rm "${LINUS_LOCK_DIR}/egress.rules.new"
  # shellcheck disable=SC2016 # the hook's own variables
  hook start 'ln -sf /dev/full "${LINUS_LOCK_DIR}/egress.rules.new"'
  run_script create-vm
  assert_status 5
  assert_rules '"tap250i0" : goto from_250'
}

@test "the rules of an ID's last VM are gone before another starts under it" {
  limited 200 'ipconfig0: ip=127.0.0.1/8'
  run_script list-vms
  assert_rules '"tap200i0"'
  rm "${PVE_STUB}/vm/200" "${LINUS_PVE_DIR}/qemu-server/200.conf" "${PVE_STUB}/status/200"
  # shellcheck disable=SC2016 # the hook's own variables
  hook start '[[ ! -e ${PVE_STUB}/nft ]] || touch "${PVE_STUB}/stale"'
  VM_EGRESS=lan VM_ID_RANGE=200-200 run_script create-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/stale ]] || fail 'the last rules were there'
}

@test "an address that another answers at, or another's config has, is not the VM's" {
  printf '127.0.0.1 dev vmbr0 lladdr bc:24:11:00:00:99 REACHABLE\n' >"${PVE_STUB}/neighbours"
  run_script create-vm
  assert_status 6
  assert_says 'another answers there'
  assert_says 'a second card of the guest in this network'
  assert_no_vm_of_ours
  : >"${PVE_STUB}/neighbours"
  echo 'ipconfig0: ip=127.0.0.1/8' >>"${PVE_STUB}/vm/101"
  run_script create-vm
  assert_status 5
  assert_says "which is another's: pve/qemu-server/101.conf"
  assert_no_vm_of_ours
}

@test "an address that is not on its network is not the VM's, unless a router is said to be between" {
  echo '127.0.0.1 via 10.0.0.254 dev vmbr0 src 10.0.0.1 uid 0 \    cache' >"${PVE_STUB}/route"
  run_script create-vm
  assert_status 6
  assert_says 'cannot be seen on node'
  assert_no_vm_of_ours
  # Made at its start, closed, and taken away.
  run grep -c -- ' -f ' "${PVE_STUB}/nft-calls"
  [[ ${output} == 2 ]] || fail "$(<"${PVE_STUB}/nft-calls")"
  VM_ROUTED=true run_script create-vm
  assert_status 0
  assert_rules 'ip saddr != 127.0.0.1 drop'
}

@test "a word that is not known closes the VM, and a template has no rules" {
  limited 250
  sed -i 's/linus-egress=internet/linus-egress=moon/' "${PVE_STUB}/vm/250"
  limited 251 'template: 1'
  run_script list-vms
  assert_rules 'chain from_250'
  refute_rules '@closed4 drop'
  refute_rules 'from_251'
  refute_rules 'to_251'
  refute_rules 'tap251i'
}

@test "a template that starts with its host gives that to no limited VM" {
  sed -i '1i onboot: 1' "${PVE_STUB}/vm/9000"
  run_script create-vm
  assert_status 0
  assert_called 'qm set .* --onboot 0.*'
}

@test "show-vm shows what the kernel has, and not what the config says" {
  limited 250 'ipconfig0: ip=127.0.0.1/8' 'net1: virtio=BC:24:11:AA:AA:AB,bridge=vmbr0'
  limited 251 'ipconfig0: ip=127.0.0.2/8'
  VM_ID=250 SHOW_EGRESS=true run_script show-vm
  assert_status 0
  assert_line LINUS_EGRESS:internet
  assert_says 'LINUS_NO_RULES:there is no table bridge linus'
  refute_line_like LINUS_RULE
  run_script list-vms
  VM_ID=250 SHOW_EGRESS=true run_script show-vm
  assert_status 0
  assert_line 'LINUS_RULE:chain prerouting: iifname vmap @from'
  assert_line 'LINUS_RULE:map from: "tap250i0" : goto from_250'
  assert_line 'LINUS_RULE:map to: "tap250i1" : drop'
  assert_line 'LINUS_RULE:chain from_250: ip daddr @closed4 drop'
  assert_says 'LINUS_RULE:set closed4: 0.0.0.0/8, 10.0.0.0/8'
  refute_line_like 'LINUS_RULE:*251'
  refute_line_like LINUS_NO_RULES
  # Somebody takes its entry away.
  sed -i 's/"tap250i0" : goto from_250, //' "${PVE_STUB}/nft"
  VM_ID=250 SHOW_EGRESS=true run_script show-vm
  refute_line_like 'LINUS_RULE:map from: "tap250i0"'
  assert_line 'LINUS_RULE:map from: "tap250i1" : drop'
  # One on the LAN has none; one that is another's is not shown.
  limited 252
  sed -i 's/linus-egress=internet/x/' "${PVE_STUB}/vm/252"
  VM_ID=252 SHOW_EGRESS=true run_script show-vm
  assert_line LINUS_EGRESS:lan
  refute_line_like LINUS_RULE
  VM_ID=101 SHOW_EGRESS=true run_script show-vm
  refute_line_like LINUS_EGRESS
}

change_network() { # <mode> [<ranges>]
  ACTION=network VM_ID=250 VM_EGRESS=$1 VM_EGRESS_RANGES=${2:-} run_script power-vm
}

@test "the network of a VM that runs is changed at once, in its notes and in the kernel" {
  limited 250 'ipconfig0: ip=127.0.0.1/8'
  sed -i '1s/$/ linus-note=x/;1a #of somebody%3A 100%25 f%C3%BCr uns' "${PVE_STUB}/vm/250"
  change_network none
  assert_status 0
  assert_says 'LINUS_STEP:4/4:output_result:'
  [[ $(<"${PVE_STUB}/vm/250") == *"linus-vm=250 linus-egress=none%3A"*" linus-note=x"*'of somebody%3A 100%25 für uns'* ]] || fail "$(<"${PVE_STUB}/vm/250")"
  assert_rules '"tap250i0" : goto from_250'
  refute_rules '@closed4'
  change_network allow 9.9.9.9
  assert_status 0
  assert_rules 'set ranges_250'
  change_network lan
  assert_status 0
  read_table
  [[ -z ${table} && $(<"${PVE_STUB}/vm/250") != *linus-egress=* ]] || fail "${table}" "$(<"${PVE_STUB}/vm/250")"
  : >"${PVE_STUB}/calls"
  change_network lan # twice is once
  assert_status 0
  refute_called 'qm set.*'
}

@test "a VM that leaves the LAN is closed until its address was seen" {
  limited 250 'ipconfig0: ip=dhcp'
  sed -i 's/ linus-egress=internet//' "${PVE_STUB}/vm/250"
  echo 'onboot: 1' >>"${PVE_STUB}/vm/250"
  change_network internet
  assert_status 0
  assert_rules 'ip saddr != 127.0.0.1 drop'
  [[ $(<"${PVE_STUB}/vm/250") == *'onboot: 0'* ]] || fail "$(<"${PVE_STUB}/vm/250")"
  [[ -e ${LINUS_LOCK_DIR}/egress-250-${job} ]]
  change_network lan
  assert_status 0
  guest_interfaces ''
  VM_NETWORK_TIMEOUT=1 change_network internet
  assert_status 6
  assert_rules '"tap250i0" : goto from_250'
  refute_rules '@closed4'
}

@test "of a VM that is off the next start has the rules, and one that is suspended or not ours stays as it is" {
  limited 250 'ipconfig0: ip=dhcp'
  stopped 250
  change_network none
  assert_status 0
  [[ $(<"${PVE_STUB}/vm/250") == *linus-egress=none* ]]
  sed -i "\$a lock: suspended\nvmstate: local-lvm:vm-250-state-suspend-2026-01-01" "${PVE_STUB}/vm/250"
  change_network lan
  assert_status 5
  assert_says 'is suspended'
  sed -i '/^lock:/d; /^vmstate:/d' "${PVE_STUB}/vm/250"
  sed -i "s/linus-owner=${owner}/linus-owner=00000000-0000-4000-8000-000000000000/" "${PVE_STUB}/vm/250"
  : >"${PVE_STUB}/calls"
  change_network lan
  assert_status 5
  refute_called 'qm set.*'
}

@test "notes that somebody changes meanwhile are not put back, and rules that the kernel does not take fail it" {
  limited 250 'ipconfig0: ip=127.0.0.1/8'
  # shellcheck disable=SC2016 # the hook's own variables
  change_during set 1 'sed -i "1a #theirs" "${PVE_STUB}/vm/250"'
  change_network none
  assert_status 5
  assert_says 'could not be changed'
  [[ $(<"${PVE_STUB}/vm/250") == *'theirs'* ]] || fail "$(<"${PVE_STUB}/vm/250")"
  rm "${PVE_STUB}/hook-set"
  change_network none
  assert_status 0
  rm "${LINUS_LOCK_DIR}/egress.rules"
  ln -s /dev/full "${LINUS_LOCK_DIR}/egress.rules.new"
  change_network lan
  assert_status 3
  assert_says 'could not be changed'
  change_network internet
  assert_status 3
}
