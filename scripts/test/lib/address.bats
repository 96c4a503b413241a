#!/usr/bin/env bats
# lib/address.sh: what VM_IP_CONFIG may be, and that no address is given twice.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs address
  run_init
  vm_job=11111111-2222-4333-8444-555555555555
  probe_node=pve
  VM_GATEWAY=''
  LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host
  LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  mkdir -p "${LINUS_PVE_DIR}"/nodes/{pve,pve2}/{qemu-server,lxc}
}

config() { # <node> <kind> <id> <line...>
  printf '%s\n' "${@:4}" >"${LINUS_PVE_DIR}/nodes/$1/$2/$3.conf"
}

validated() { # <VM_IP_CONFIG> [<VM_GATEWAY>]; prints what goes into ipconfig0
  VM_IP_CONFIG=$1 VM_GATEWAY=${2:-}
  address_validate
  printf '%s\n' "${address_option}"
}

take() { # <VM_IP_CONFIG>
  VM_IP_CONFIG=$1
  address_validate
  address_take
}

@test "each form becomes its ipconfig0" {
  local form gateway want got
  while IFS='|' read -r form gateway want; do
    got=$(validated "${form}" "${gateway}")
    [[ ${got} == "${want}" ]] || {
      echo "${form}: ${got}, not ${want}"
      return 1
    }
  done <<'END'
dhcp||ip=dhcp
dhcp6||ip6=dhcp
auto6||ip6=auto
slaac||ip6=auto
10.0.0.5/24||ip=10.0.0.5/24
10.0.0.5/24|10.0.0.1|ip=10.0.0.5/24,gw=10.0.0.1
10.0.0.50-10.0.0.99/24|10.0.0.1|ip=10.0.0.50/24,gw=10.0.0.1
fd00::5/64|fe80::1|ip6=fd00::5/64,gw6=fe80::1
fd00::50-fd00::ff/64||ip6=fd00::50/64
END
}

@test "what is no address, range or gateway is refused, with the value and the rule" {
  local form gateway
  while IFS='|' read -r form gateway; do
    run validated "${form}" "${gateway}"
    [[ ${status} -eq 1 ]] || {
      echo "accepted: ${form} ${gateway}: ${output}"
      return 1
    }
  done <<'END'
|
DHCP|
10.0.0.5|
10.0.0.5/0|
10.0.0.5/33|
10.0.0.500/24|
01.0.0.5/24|
10.0.0.5/24,gw=1.1.1.1|
10.0.0.9-10.0.0.5/24|
10.0.0.5-10.0.1.5/24|
10.0.0.0-10.1.0.0/8|
10.0.0.5-fd00::5/24|
fd00::5/129|
fd00::1-fd00:1::1/16|
fd00:::5/64|
10.0.0.5/24|fd00::1
10.0.0.5/24|10.0.0
10.0.0.5/24|$(reboot)
dhcp|a b
END
  run validated $'10.0.0.5/24\nx'
  [[ ${status} -eq 1 ]]
}

@test "an address that any config of the cluster names is not given" {
  config pve qemu-server 100 'ipconfig0: ip=10.0.0.50/24,gw=10.0.0.1'
  config pve2 qemu-server 200 'ipconfig1: gw=10.0.0.1,ip=10.0.0.51/24'
  config pve2 lxc 201 'net0: name=eth0,bridge=vmbr0,ip=10.0.0.52/24,type=veth'
  config pve qemu-server 101 'ipconfig0: ip=dhcp' '' '[PENDING]' 'ipconfig0: ip=10.0.0.53/24' '' '[clean]' 'ipconfig0: ip=10.0.0.54/24'
  config pve qemu-server 102 'description: ip=10.0.0.55/24'
  VM_GATEWAY=10.0.0.56
  take 10.0.0.50-10.0.0.56/24
  [[ ${address_chosen} == 10.0.0.55 && ${address_option} == ip=10.0.0.55/24,gw=10.0.0.56 ]]
  run address_take
  [[ ${status} -eq 3 && ${output} == *'no address of VM_IP_CONFIG=10.0.0.50-10.0.0.56/24 is free'* ]]
}

@test "IPv6 is one address however it is written" {
  config pve qemu-server 100 'ipconfig0: ip6=FD00:0:0::0010/64'
  take fd00::f-fd00::10/64
  [[ ${address_chosen} == fd00::f && ${address_option} == ip6=fd00::f/64 ]]
  run address_take
  [[ ${status} -eq 3 ]]
}

@test "where the configs cannot be seen, nothing is given" {
  rm -r "${LINUS_PVE_DIR}/nodes"
  run take 10.0.0.50-10.0.0.59/24
  [[ ${status} -eq 3 && ${output} == *'nodes is not there'* ]]
}

@test "ten runs at once get ten addresses, the eleventh none" {
  local i
  VM_IP_CONFIG=10.0.0.50-10.0.0.59/24
  address_validate
  for ((i = 0; i < 10; i += 1)); do
    (
      run_init
      vm_job=$(</proc/sys/kernel/random/uuid)
      address_take
      printf '%s\n' "${address_chosen}" >>"${BATS_TEST_TMPDIR}/given"
    ) 2>/dev/null &
  done
  wait
  sort -u "${BATS_TEST_TMPDIR}/given" >"${BATS_TEST_TMPDIR}/different"
  local -a different
  mapfile -t different <"${BATS_TEST_TMPDIR}/different"
  [[ ${#different[@]} -eq 10 ]]
  run address_take
  [[ ${status} -eq 3 ]]
}

@test "a reservation ends when the config names its address" {
  take 10.0.0.50-10.0.0.50/24
  run address_settle 100
  [[ ${status} -eq 5 && ${output} == *'does not show its address'* ]]
  config pve qemu-server 100 'ipconfig0: ip=10.0.0.50/24'
  address_settle 100
  [[ ! -e ${LINUS_HOST_DIR}/addresses/10.0.0.50 ]]
  run address_take
  [[ ${status} -eq 3 ]]
  # The VM goes by whoever's hand.
  rm "${LINUS_PVE_DIR}/nodes/pve/qemu-server/100.conf"
  address_take
}

@test "an address that two nodes gave at once is given back by both" {
  take 10.0.0.50/24
  config pve qemu-server 100 'ipconfig0: ip=10.0.0.50/24'
  config pve2 qemu-server 200 'ipconfig0: ip=10.0.0.50/24'
  run address_settle 100
  [[ ${status} -eq 5 && ${output} == *'was given to another VM at the same time: pve2/qemu-server/200.conf'* ]]
}

@test "a run that was killed keeps its address for a while, not longer than its lease says" {
  local -r file=${LINUS_HOST_DIR}/addresses/10.0.0.50
  take 10.0.0.50/24
  local boot gone
  boot=$(</proc/sys/kernel/random/boot_id)
  printf -v gone '%(%s)T' -1
  # Its process is gone: found now, so kept.
  printf '%s\n' "${vm_job} 999999999 1 ${boot} 1" >"${file}"
  run address_take
  [[ ${status} -eq 3 && $(<"${file}") == "${vm_job} 0 0 ${boot} "* ]]
  # Found long ago, but its create may still be at work.
  printf '%s\n' "${vm_job} 0 0 ${boot} $((gone - 1000))" >"${file}"
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf 'clone ours %s pve local %s %s 999999999 1 0 0\n' "${vm_job}" "${gone}" "${boot}" >"${LINUS_HOST_DIR}/leases/100-${vm_job}"
  run address_take
  [[ ${status} -eq 3 ]]
  printf 'none\n' >"${LINUS_HOST_DIR}/leases/100-${vm_job}"
  address_take
  # Before the host was started anew.
  printf '%s\n' "${vm_job} 999999999 1 another-boot ${gone}" >"${file}"
  address_take
}

@test "what is reserved for a job ends with it, and nobody else's" {
  take 10.0.0.50/24
  local -r other=22222222-2222-4333-8444-555555555555
  address_drop "${other}"
  [[ -e ${LINUS_HOST_DIR}/addresses/10.0.0.50 ]]
  address_drop "${vm_job}"
  [[ ! -e ${LINUS_HOST_DIR}/addresses/10.0.0.50 ]]
}
