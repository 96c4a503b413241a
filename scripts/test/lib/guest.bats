#!/usr/bin/env bats
# lib/guest.sh: what the host can see of a started VM.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs guest
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
  [[ ${guest_neighbour} == 10.0.0.5 && -z ${guest_ip} ]]
}

@test "an agent's endless answer is none" {
  stub_program qm 'perl -e "print q([), q({\"name\":\"e\"},) x 400000, q({}])"'
  guest_find_address 100 "${mac}"
  [[ -z ${guest_ip} && ${guest_seen} == *'not JSON'* ]]
  stub_program qm 'perl -e "print q({\"exitcode\":0,\"out-data\":\"), q(\\\\n) x 60000, q(\"})"'
  guest_exec 100 5 true
  [[ ${guest_exit} == 0 && ${#guest_out} -le 4096 ]]
}

@test "a greeting without end is one of 255 characters" {
  perl -MIO::Socket::INET -e '
    my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
    open my $f, ">", "$ARGV[0].new" or die; print $f $s->sockport; close $f; rename "$ARGV[0].new", $ARGV[0];
    my $c = $s->accept; print $c "SSH-2.0-"; 1 while print $c "x" x 4096' "${BATS_TEST_TMPDIR}/port" >/dev/null 2>&1 3>&- &
  local -r server=$!
  until [[ -s ${BATS_TEST_TMPDIR}/port ]]; do command sleep 0.05; done
  guest_read_banner 127.0.0.1 "$(<"${BATS_TEST_TMPDIR}/port")"
  kill "${server}" || :
  [[ ${guest_banner} == SSH-2.0-x* && ${#guest_banner} -eq 255 ]]
}

network_says() { # <of the route> <of the neighbour>
  printf '%s\n' "$1" >"${BATS_TEST_TMPDIR}/route"
  printf '%s\n' "$2" >"${BATS_TEST_TMPDIR}/neighbour"
  stub_program ip "case \$* in *route*) cat ${BATS_TEST_TMPDIR}/route ;; *) cat ${BATS_TEST_TMPDIR}/neighbour ;; esac"
}

# In the words of iproute2 5.15 to 6.14.
@test "an address is the VM's where the network shows its card, hidden behind a router, and else not" {
  local -r direct='10.0.0.5 dev vmbr0 src 10.0.0.1 uid 0 \    cache '
  local -a rows=(
    "yes|${direct}|10.0.0.5 lladdr bc:24:11:00:00:01 REACHABLE"
    "yes|${direct}|10.0.0.5 dev vmbr0 lladdr bc:24:11:00:00:01 STALE"
    'yes|fd00::5 from :: dev vmbr0 proto kernel src fd00::1 metric 256 pref medium|fd00::5 lladdr bc:24:11:00:00:01 router REACHABLE'
    "no|${direct}|10.0.0.5 lladdr bc:24:11:00:00:99 REACHABLE"
    "no|${direct}|10.0.0.5 lladdr bc:24:11:00:00:01:02 REACHABLE"
    "hidden|${direct}|"
    "hidden|${direct}|10.0.0.5  INCOMPLETE"
    'routed|10.0.0.5 via 192.168.1.1 dev vmbr0 src 192.168.1.2 uid 0 \    cache |10.0.0.5 lladdr bc:24:11:00:00:01 REACHABLE'
    'no|local 10.0.0.5 dev lo src 10.0.0.5 uid 0 \    cache <local> |10.0.0.5 lladdr bc:24:11:00:00:01 REACHABLE'
    'no|local fd00::5 from :: dev lo table local proto kernel src fd00::5 metric 0 pref medium|'
    'no|broadcast 10.0.0.5 dev vmbr0 src 10.0.0.1 uid 0 \    cache <local,brd> |'
    'no|multicast 224.0.0.1 dev vmbr0 src 10.0.0.1 uid 0 \    cache <mc> |'
    'no||'
  )
  local row
  for row in "${rows[@]}"; do
    IFS='|' read -r want route neighbour <<<"${row}"
    network_says "${route}" "${neighbour}"
    guest_check_place 10.0.0.5 "${mac}"
    [[ ${guest_place} == "${want}" && -n ${guest_seen} ]] || {
      echo "${row}: ${guest_place}: ${guest_seen}"
      return 1
    }
  done
  stub_program ip 'echo "RTNETLINK answers: Network is unreachable" >&2; exit 2'
  guest_check_place 10.0.0.5 "${mac}"
  [[ ${guest_place} == no && ${guest_seen} == *'Network is unreachable'* ]]
}

@test "a port that is closed, or open and silent, is no SSH server" {
  guest_read_banner 127.0.0.1 1
  [[ -z ${guest_banner} ]]
}

@test "cloud-init: done, done with warnings, none, failed, running, silent" {
  local pair
  for pair in '{"exitcode":0}=done' '{"exitcode":2}=done' '{"exitcode":127}=none' '{"exitcode":1,"err-data":"boom"}=failed' '{"exitcode":75}=running' '{"pid":7}=running'; do
    agent_says "${pair%=*}"
    guest_ask_ready 100
    [[ ${guest_cloud_init} == "${pair##*=}" ]]
  done
  stub_program qm 'exit 255'
  guest_ask_ready 100
  [[ ${guest_cloud_init} == silent ]]
}

@test "of an agent's words only an address of the type it is said to have is one" {
  local lie
  for lie in '"ip-address":"10.0.0.5","ip-address-type":"ipv4 10.0.0.6"' '"ip-address":"10.0.0.5","ip-address-type":"ipv6"' \
    '"ip-address":"fd00::5","ip-address-type":"ipv4"' '"ip-address":"::ffff:10.0.0.5","ip-address-type":"ipv6"' '"ip-address":"10.0.0.5","ip-address-type":"IPV4"' \
    '"ip-address":"10.0.0.5"' '"ip-address":"10.0.0.5\nipv4 10.0.0.6","ip-address-type":"ipv4"' '"ip-address":"\u001b[2J","ip-address-type":"ipv4"' \
    '"ip-address":["10.0.0.5"],"ip-address-type":"ipv4"' '"ip-address":"224.0.0.1","ip-address-type":"ipv4"' '"ip-address":"255.255.255.255","ip-address-type":"ipv4"' \
    '"ip-address":"0.0.0.0","ip-address-type":"ipv4"' '"ip-address":"ff02::1","ip-address-type":"ipv6"' '"ip-address":"::","ip-address-type":"ipv6"' \
    '"ip-address":"-oProxyCommand=id","ip-address-type":"ipv4"' '"ip-address":"fd00::5%vmbr0","ip-address-type":"ipv6"' '"ip-address":"010.0.0.5","ip-address-type":"ipv4"'; do
    agent_says "[{\"hardware-address\":\"bc:24:11:00:00:01\",\"ip-addresses\":[{${lie}}]}]"
    guest_find_address 100 "${mac}"
    [[ -z ${guest_ip}${guest_ipv6} && ${guest_agent} == yes ]] || {
      echo "${lie}: ${guest_ip} ${guest_ipv6}"
      return 1
    }
  done
}

@test "ten thousand interfaces with the card's address give one address" {
  perl -e 'print "[", join(",", map { qq({"hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.1.) . int($_ / 250) . "." . $_ % 250 . qq(","ip-address-type":"ipv4"}]}) } 1 .. 10000), "]"' >"${BATS_TEST_TMPDIR}/agent"
  stub_program qm "cat ${BATS_TEST_TMPDIR}/agent"
  guest_find_address 100 "${mac}"
  [[ ${guest_ip} == 10.1.0.1 && ${#json_lines[@]} -le 16 ]]
}

@test "the host key is the key alone, and only what looks like one" {
  agent_says '{"exitcode":0,"out-data":"linus-host-key ssh-ed25519 AAAAkey= root@guest\nstatus: done\n"}'
  guest_ask_ready 100
  [[ ${guest_host_key} == 'ssh-ed25519 AAAAkey=' ]]
  agent_says '{"exitcode":127,"out-data":"linus-host-key ecdsa-sha2-nistp256 AAAAkey= root@guest\n"}'
  guest_ask_ready 100
  [[ ${guest_host_key} == 'ecdsa-sha2-nistp256 AAAAkey=' ]]
  local words
  # A key of a guest that is not ready, or in cloud-init's words, is none.
  for words in '{"exitcode":0,"err-data":"head: cannot open"}' '{"exitcode":0,"out-data":"linus-host-key <html>"}' \
    '{"exitcode":1,"out-data":"linus-host-key ssh-ed25519 AAAAkey="}' '{"exitcode":75,"out-data":"linus-host-key ssh-ed25519 AAAAkey="}' \
    '{"pid":7}' '{"exitcode":0,"out-data":"status: done linus-host-key ssh-ed25519 AAAAkey="}' '{"exitcode":0,"out-data":"ssh-ed25519 AAAAkey="}'; do
    agent_says "${words}"
    guest_ask_ready 100
    [[ -z ${guest_host_key} ]] || {
      echo "${words}: ${guest_host_key}"
      return 1
    }
  done
}

# The program the agent is given, as a guest would run it.
run_in_guest() { # <cloud-init's body, or empty: there is none>
  # shellcheck disable=SC2016 # the stub's own arguments
  stub_program qm 'printf "%s\n" "${@: -1}" >"'"${BATS_TEST_TMPDIR}"'/program"; echo "{}"'
  guest_ask_ready 100
  local root=${BATS_TEST_TMPDIR}/root tool path
  rm -rf "${root}"
  mkdir -p "${root}"/{etc/ssh,run/cloud-init,bin}
  for tool in sh head sleep; do
    path=$(type -P "${tool}")
    ln -s "${path}" "${root}/bin/${tool}"
  done
  if [[ -n $1 ]]; then
    printf '#!/bin/sh\n%s\n' "$1" >"${root}/bin/cloud-init"
    chmod +x "${root}/bin/cloud-init"
    : >"${root}/run/cloud-init/result.json"
  fi
  printf '#!/bin/sh\necho "$*" >%s/synced\n' "${root}" >"${root}/bin/sync"
  chmod +x "${root}/bin/sync"
  echo "${2:-ssh-ed25519 AAAAkey= root@guest}" >"${root}/etc/ssh/ssh_host_ed25519_key.pub"
  sed -i "s|/run/cloud-init|${root}&|g; s|/etc/ssh|${root}&|g" "${BATS_TEST_TMPDIR}/program"
  status=0
  program=$(<"${BATS_TEST_TMPDIR}/program")
  output=$(PATH=${root}/bin sh -c "${program}" 2>&1) || status=$?
  mapfile -t lines <<<"${output}"
}

@test "the guest's program waits for cloud-init, tells the key first, and exits as cloud-init does" {
  run_in_guest 'echo "status: done"'
  [[ ${status} -eq 0 && ${lines[0]} == 'linus-host-key ssh-ed25519 AAAAkey= root@guest' && ${lines[1]} == 'status: done' ]]
  run_in_guest 'echo "status: degraded"; exit 2'
  [[ ${status} -eq 2 && ${lines[0]} == linus-host-key* ]]
  run_in_guest 'echo "status: error" >&2; exit 1'
  [[ ${status} -eq 1 && ${lines[0]} == 'status: error' ]]
  run_in_guest ''
  [[ ${status} -eq 127 && ${lines[0]} == linus-host-key* ]]
}

@test "the key shown on the network" {
  stub_program ssh-keyscan 'echo "# 10.0.0.5:22 SSH-2.0-x"; echo "10.0.0.5 ssh-ed25519 AAAAkey="'
  guest_start_scan 10.0.0.5 22 ed25519
  guest_end_scan 'ssh-ed25519 AAAAother='
  [[ ${guest_shown_key} == 'ssh-ed25519 AAAAkey=' ]]
  guest_start_scan 10.0.0.5 22 ecdsa
  guest_end_scan 'ecdsa-sha2-nistp256 AAAAother='
  [[ -z ${guest_shown_key} ]]
}

@test "what a VM is known by, and who may log in, is on its disk when it is ready, and not before" {
  run_in_guest 'echo "status: done"'
  local -r said=$(<"${BATS_TEST_TMPDIR}/root/synced")
  [[ ${status} -eq 0 && ${said} == *"${BATS_TEST_TMPDIR}/root/etc/ssh/ssh_host_ed25519_key.pub"* && ${said} == *'/authorized_keys '*'/var/lib/cloud/data/instance-id '* ]]
  run_in_guest 'exit 1'
  [[ ${status} -eq 1 && ! -e ${BATS_TEST_TMPDIR}/root/synced ]]
}
