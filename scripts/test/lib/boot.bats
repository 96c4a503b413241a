#!/usr/bin/env bats
# lib/boot.sh: a started VM is the one meant, or its start fails.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs boot probe
  run_init
  run_read() { host_answers "$@"; }
  run_pause() { pass_time "$1"; } # nothing here takes time but the waiting itself
  vm_id=105 probe_node=pve
  declare -gA vm_config=([net0]='virtio=BC:24:11:00:00:01,bridge=vmbr0')
  VM_NETWORK_TIMEOUT=100 VM_READY_TIMEOUT=100
  boot_read_inputs
  route='AT dev vmbr0 src 10.0.0.1 uid 0' neighbour='AT lladdr bc:24:11:00:00:01 REACHABLE'
  neighbours='10.0.0.7 dev vmbr0 lladdr bc:24:11:00:00:01 REACHABLE'
  interfaces='[{"hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.0.0.5","ip-address-type":"ipv4"}]}]'
  key='ssh-ed25519 AAAAkey='
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program ssh-keyscan 'echo "$4" >>"${BATS_TEST_TMPDIR}/asked"
    while read -r key; do
      case ${key} in ssh-$4\ * | $4-*) echo "10.0.0.5 ${key}" ;; esac
    done <"${BATS_TEST_TMPDIR}/shown"
    if [ -e "${BATS_TEST_TMPDIR}/next" ]; then mv "${BATS_TEST_TMPDIR}/next" "${BATS_TEST_TMPDIR}/shown"; fi'
  shows "${key}"
}

shows() { # <key> [later], at the address of the VM
  printf '%s\n' "$1" >"${BATS_TEST_TMPDIR}/${2:-shown}"
}

# Seconds and hundredths; SECONDS has only whole ones.
pass_time() { # <seconds>[.<two digits>]
  local part=$1.00
  part=${part#*.}
  passed=$((${passed:-0} + 100 * ${1%.*} + 10#${part%.00}))
  SECONDS=$((SECONDS + passed / 100)) passed=$((passed % 100))
}

# The host's tools, as run.sh starts them: the answers are the tests' variables.
# An agent without interfaces is silent.
host_answers() { # <seconds> <command...>
  shift
  if [[ $1 == run_alone ]]; then
    shift
  fi
  run_rc=0 run_out=''
  case "$*" in
    'qm status'*) run_out='status: running' ;;
    'qm guest'*)
      if [[ -z ${interfaces} ]]; then
        run_rc=255 run_out='QEMU guest agent is not running'
      elif [[ $* == *network-get-interfaces ]]; then
        run_out=${interfaces}
      else
        run_out="{\"exitcode\":0,\"exited\":1,\"out-data\":\"${key:+linus-host-key ${key}}\\nstatus: done\"}"
      fi
      ;;
    'ip -o route get '*) run_out=${route/AT/"${*: -1}"} ;;
    'ip neigh show to '*) run_out=${neighbour/AT/"$5"} ;;
    'ip -4 neigh show') run_out=${neighbours} ;;
    guest_hear*) run_out='SSH-2.0-x' ;;
  esac
  run_said=${run_out}
  printf '%s\n' "${run_out}" >"${run_dir}/read.out"
}

boot() {
  wait_for_network
  verify_ssh_ready
  printf 'at %s with %s\n' "${vm_ip}" "${vm_host_key:-no key}"
}

fails_with() { # <words...>
  run boot
  [[ ${status} -eq 6 ]] || {
    printf 'exit %s: %s\n' "${status}" "${output}"
    return 1
  }
  local words
  for words in "$@"; do
    [[ ${output} == *"${words}"* ]] || {
      printf 'not said: %s\n%s\n' "${words}" "${output}"
      return 1
    }
  done
}

@test "address and host key are the agent's, where the network shows the VM's card" {
  run boot
  [[ ${status} -eq 0 && ${output} == *'at 10.0.0.5 with ssh-ed25519 AAAAkey='* ]]
}

@test "another machine's card at the address is a failure that says so" {
  neighbour='AT lladdr bc:24:11:00:00:99 REACHABLE'
  fails_with 'VM 105 (card BC:24:11:00:00:01)' 'is not what answers at 10.0.0.5' 'the card bc:24:11:00:00:99 answers'
  vm_config[ipconfig0]='ip=10.0.0.9/24'
  fails_with 'is not what answers at 10.0.0.9'
  VM_ROUTED=true VM_TRUST_FIRST_USE=true fails_with 'is not what answers at 10.0.0.9'
}

@test "an address of the node itself is no VM's" {
  route='local AT dev lo src 10.0.0.5 uid 0 cache <local>'
  fails_with 'is not what answers at 10.0.0.5' 'has no way to 10.0.0.5 as to another machine'
}

@test "behind a router only an address that was given is the VM's, or where a setting says so" {
  route='AT via 10.0.0.254 dev vmbr0 src 10.0.0.1'
  fails_with 'is at 10.0.0.5, as its guest says, cannot be seen' 'through a router (via 10.0.0.254 dev vmbr0)'
  VM_ROUTED=true run boot
  [[ ${status} -eq 0 && ${output} == *'at 10.0.0.5 with'* ]]
  vm_config[ipconfig0]='ip=10.0.0.9/24,gw=10.0.0.254'
  run boot
  [[ ${status} -eq 0 && ${output} == *'at 10.0.0.9 with'* ]]
}

@test "an agent that never answers ends the start; the neighbour table is a hint" {
  interfaces=''
  fails_with 'guest agent of VM 105' 'did not answer within 100 s' 'the neighbour table of' '10.0.0.7'
  [[ ${output} != *'has the address'* ]]
  vm_config[ipconfig0]='ip=10.0.0.9/24'
  fails_with 'guest agent of VM 105' 'did not answer within 100 s'
}

@test "a VM without an agent is taken where first use is trusted, without a key, and that is said" {
  interfaces=''
  VM_TRUST_FIRST_USE=true run boot
  [[ ${status} -eq 0 && ${output} == *'at 10.0.0.7 with no key'* && ${output} == *LINUS_WARNING*'jobs with secrets will not run in it'* ]]
  neighbour='AT lladdr bc:24:11:00:00:99 REACHABLE'
  VM_TRUST_FIRST_USE=true fails_with 'is not what answers at 10.0.0.7'
}

@test "a host key that cannot be read ends the start; where first use is trusted it is a warning" {
  key=''
  fails_with 'the SSH host key of VM 105' 'could not be read through its agent'
  VM_TRUST_FIRST_USE=true run boot
  [[ ${status} -eq 0 && ${output} == *'with no key'* && ${output} == *'LINUS_WARNING:the SSH host key'* ]]
}

@test "another host key than the agent's at the address is a failure" {
  shows 'ssh-ed25519 AAAAother='
  fails_with 'the SSH host key shown at 10.0.0.5:22 is not that of VM 105'
  VM_TRUST_FIRST_USE=true fails_with 'is not that of VM 105'
}

@test "the network's key is asked for beside the guest, and again where the guest has another" {
  asks() { # <types...>
    : >"${BATS_TEST_TMPDIR}/asked"
    boot
    mapfile -t asked <"${BATS_TEST_TMPDIR}/asked"
    [[ ${asked[*]} == "$*" ]]
  }
  asks ed25519
  shows 'ssh-ed25519 AAAAearlier=' # keys are made at the first boot
  shows "${key}" next
  asks ed25519 ed25519
  key='ecdsa-sha2-nistp256 AAAAkey='
  shows "${key}"
  asks ed25519 ecdsa
  shows 'ecdsa-sha2-nistp256 AAAAother='
  fails_with 'the SSH host key shown at 10.0.0.5:22 is not that of VM 105'
}

@test "what the guest says of its address cannot be believed into another form" {
  interfaces='[{"hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.0.0.5","ip-address-type":"ipv4 10.0.0.6"}]}]'
  fails_with 'had no address after 100 s'
}

@test "a wait whose time is over before it began still looks once" {
  run_pause() { ((SECONDS += 100)); }
  set -u
  VM_NETWORK_TIMEOUT=0 VM_READY_TIMEOUT=0
  run boot
  [[ ${status} -eq 0 && ${output} == *'at 10.0.0.5 with ssh-ed25519 AAAAkey='* ]]
  interfaces=''
  fails_with 'the guest agent of VM 105'
}

@test "a start that Proxmox refused says what to do about that" {
  local said remedy
  while IFS='|' read -r said remedy; do
    boot_explain "${said}"
    [[ ${boot_remedy} == *"${remedy}"* ]] || { echo "${said}: ${boot_remedy}" >&2 && false; }
    [[ ${remedy} == *memory* || ${boot_remedy} != *'memory free'* ]]
  done <<'END'
bridge 'vmbr7' does not exist generating cloud-init ISO|PROXMOX_BRIDGE
command 'genisoimage -quiet -iso-level 3' failed: exit code 1 generating cloud-init ISO|cloud-init drive
qemu-system-x86_64: write failed: No space left on device|df -h
start failed: QEMU exited with code 1 generating cloud-init ISO|memory free and that KVM works
END
}
