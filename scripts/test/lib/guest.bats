#!/usr/bin/env bats
# lib/guest.sh: what the host can see of a started VM.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
# shellcheck source=../helper/lib.bash
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs log run json guest
  run_init
  guest_agent=no
  mac=BC:24:11:00:00:01
}

agent_says() { # <JSON>
  printf '%s\n' "$1" >"${BATS_TEST_TMPDIR}/agent"
  stub_program qm "cat ${BATS_TEST_TMPDIR}/agent"
}

@test "IPv4 comes first, an IPv6 address is kept aside" {
  agent_says '[{"hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"2001:db8::5","ip-address-type":"ipv6"},{"ip-address":"10.0.0.5","ip-address-type":"ipv4"}]}]'
  guest_find_address 100 "${mac}"
  [[ ${guest_ip} == 10.0.0.5 && ${guest_ipv6} == 2001:db8::5 && ${guest_agent} == yes ]]
}

@test "an agent that does not answer, or not yet with an address, is said so" {
  stub_program qm 'echo "QEMU guest agent is not running" >&2; exit 255'
  guest_find_address 100 "${mac}"
  [[ -z ${guest_ip} && ${guest_agent} == no && ${guest_seen} == 'agent: QEMU guest agent is not running' ]]
  agent_says '[{"name":"lo"}]'
  guest_find_address 100 "${mac}"
  [[ -z ${guest_ip} && ${guest_agent} == yes && ${guest_seen} == *'no address yet'* ]]
}

@test "the neighbour table is matched by MAC, without failed and link-local entries" {
  stub_program ip 'printf "%s\n" "10.0.0.4 dev vmbr0 lladdr bc:24:11:00:00:99 REACHABLE" \
    "10.0.0.6 dev vmbr0 lladdr bc:24:11:00:00:01 FAILED" "169.254.3.3 dev vmbr0 lladdr bc:24:11:00:00:01 STALE" \
    "10.0.0.5 dev vmbr0 lladdr bc:24:11:00:00:01 STALE" "10.0.0.7 dev vmbr0  INCOMPLETE"'
  guest_ip=''
  guest_find_neighbour "${mac}" 4
  [[ ${guest_ip} == 10.0.0.5 ]]
}

@test "a port that is closed, or open and silent, is no SSH server" {
  guest_read_banner 127.0.0.1 1
  [[ -z ${guest_banner} ]]
}

@test "cloud-init: done, done with warnings, none, failed, running, silent" {
  local pair
  for pair in '{"exitcode":0}=done' '{"exitcode":2}=done' '{"exitcode":127}=none' '{"exitcode":1,"err-data":"boom"}=failed' '{"exitcode":75}=running' '{"pid":7}=running'; do
    agent_says "${pair%=*}"
    guest_check_cloud_init 100
    [[ ${guest_cloud_init} == "${pair##*=}" ]]
  done
  stub_program qm 'exit 255'
  guest_check_cloud_init 100
  [[ ${guest_cloud_init} == silent ]]
}

@test "the host key is the key alone, and only what looks like one" {
  agent_says '{"exitcode":0,"out-data":"ssh-ed25519 AAAAkey= root@guest\n"}'
  guest_read_host_key 100
  [[ ${guest_host_key} == 'ssh-ed25519 AAAAkey=' ]]
  agent_says '{"exitcode":1,"err-data":"cat: No such file"}'
  guest_read_host_key 100
  [[ -z ${guest_host_key} ]]
  agent_says '{"exitcode":0,"out-data":"<html>"}'
  guest_read_host_key 100
  [[ -z ${guest_host_key} ]]
}

@test "the key shown on the network" {
  stub_program ssh-keyscan 'echo "# 10.0.0.5:22 SSH-2.0-x"; echo "10.0.0.5 ssh-ed25519 AAAAkey="'
  guest_scan_host_key 10.0.0.5 22
  [[ ${guest_shown_key} == 'ssh-ed25519 AAAAkey=' ]]
}
