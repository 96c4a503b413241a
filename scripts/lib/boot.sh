# shellcheck shell=bash
# The boot of VM vm_id: the steps start_vm, wait_for_network and verify_ssh_ready, and the checks
# that a start or a stop has landed. vm_config is the VM's config. Each wait looks at least once,
# whatever time is left.

source "${BASH_SOURCE[0]%/*}/egress.sh"
source "${BASH_SOURCE[0]%/*}/guest.sh"
source "${BASH_SOURCE[0]%/*}/pace.sh"
source "${BASH_SOURCE[0]%/*}/retry.sh"

vm_mac='' vm_bridge='' # of its card net0
vm_ip='' vm_host_key=''
vm_told_ip='' vm_told_key='' # what the guest reported before it is asked (lib/restore.sh)
vm_start_options=()          # for a start that is not a boot (lib/restore.sh)

# Reads how the scripts that start a VM are to reach it, with defaults.
boot_read_inputs() {
  : "${VM_SSH_USER:=}" "${VM_SSH_PORT:=22}" "${VM_NETWORK_TIMEOUT:=300}" "${VM_READY_TIMEOUT:=600}"
  : "${VM_ROUTED:=false}" "${VM_TRUST_FIRST_USE:=false}"
}

boot_validate_inputs() {
  validate_pattern VM_SSH_USER "${VM_SSH_USER}" '([a-z_][a-z0-9_-]{0,31})?' 'a Linux user name'
  validate_number VM_SSH_PORT "${VM_SSH_PORT}" 1 65535
  validate_number VM_NETWORK_TIMEOUT "${VM_NETWORK_TIMEOUT}" 1 86400 seconds
  validate_number VM_READY_TIMEOUT "${VM_READY_TIMEOUT}" 1 86400 seconds
  validate_pattern VM_ROUTED "${VM_ROUTED}" 'true|false' 'true or false'
  validate_pattern VM_TRUST_FIRST_USE "${VM_TRUST_FIRST_USE}" 'true|false' 'true or false'
}

start_vm() {
  egress_prepare "${vm_id}"
  retry_change start_has_landed 300 qm start "${vm_id}" "${vm_start_options[@]}"
  pace_start
  if [[ ${retry_landed} != yes && ${vm_ha} == yes ]]; then
    vm_blame_ha "${vm_id}" start
    result_fail vm "could not start VM ${vm_id} on node '${probe_node}': ${vm_ha_failure}" "${vm_ha_remedy}"
  elif [[ ${retry_landed} != yes ]]; then
    boot_explain "${run_said}"
    retry_fail "could not start VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing} (status: ${vm_status})" "${boot_remedy}"
  fi
}

# Says what to do about a start that Proxmox refused. Sets boot_remedy.
boot_explain() { # <Proxmox's answer>
  case $1 in
    *"bridge '"*"' does not exist"*)
      boot_remedy="choose a bridge that the node has (PROXMOX_BRIDGE; ip -br link show type bridge), or make that one there"
      ;;
    *genisoimage* | *mkisofs* | *'qemu-img dd'*)
      boot_remedy='its cloud-init drive could not be written: check that its storage has room (pvesm status), and that genisoimage is installed on the node and runs'
      ;;
    *'No space left on device'*) boot_remedy='free some space on the node and on its storage (df -h; pvesm status)' ;;
    *) boot_remedy="check that the node has the memory free and that KVM works there; more is in its task log" ;;
  esac
}

start_has_landed() {
  vm_await_status "${vm_id}" running "${run_said}"
  if [[ ${vm_status} == running ]]; then
    retry_landed=yes
  fi
}

stop_has_landed() {
  vm_await_status "${vm_id}" stopped "${run_said}"
  if [[ ${vm_status} == stopped ]]; then
    retry_landed=yes
  fi
}

# --- wait_for_network ---

# Reads card and address from the config. vm_given_ip: the VM's configured address, empty when the
# network assigns it; vm_ipv6_only: yes or no.
read_network() {
  local part
  local -a parts
  if [[ ! ${vm_config[net0]:-} =~ ([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}) ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no network card net0" "give it, or the template it is made of, one: qm set ID --net0 virtio,bridge=BRIDGE"
  fi
  vm_mac=${BASH_REMATCH[1]}
  vm_bridge=''
  if [[ ${vm_config[net0]} =~ (^|,)bridge=([^,]+) ]]; then
    vm_bridge=${BASH_REMATCH[2]}
  fi
  vm_given_ip=''
  local ip='' ip6=''
  IFS=, read -ra parts <<<"${vm_config[ipconfig0]:-ip=dhcp}"
  for part in "${parts[@]}"; do
    case ${part} in
      ip=*) ip=${part#*=} ;;
      ip6=*) ip6=${part#*=} ;;
      *) ;;
    esac
  done
  vm_ipv6_only=no
  if [[ -z ${ip} && -n ${ip6} ]]; then
    vm_ipv6_only=yes
    ip=${ip6}
  fi
  if [[ ${ip} == */* ]]; then
    vm_given_ip=${ip%/*}
  fi
}

wait_for_network() {
  local -r began=${SECONDS} deadline=$((SECONDS + VM_NETWORK_TIMEOUT))
  local ipv6_since='' said=''
  guest_agent=no
  guest_ip=''
  read_network
  if [[ -n ${vm_given_ip} ]]; then
    vm_ip=${vm_given_ip}
    log_info "the address was given: ${vm_ip}"
    return 0
  fi
  local family=4 patience=15
  if [[ ${vm_ipv6_only} == yes ]]; then
    family=6 patience=0
  fi
  if [[ -n ${vm_told_ip} ]]; then
    guest_agent=yes
  else
    pace_await "${vm_id}" "${deadline}"
  fi
  while :; do
    guest_ip=${vm_told_ip}
    if [[ -z ${guest_ip} ]]; then
      guest_find_address "${vm_id}" "${vm_mac}"
    fi
    # An agent takes a while to start, and some images have none.
    if [[ -z ${guest_ip} && ${guest_agent} == no && ${VM_TRUST_FIRST_USE} == true ]] && ((SECONDS - began >= 20)); then
      guest_find_neighbour "${vm_mac}" "${family}"
      guest_ip=${guest_neighbour}
    fi
    if [[ -z ${guest_ip} && -n ${guest_ipv6} ]]; then
      ipv6_since=${ipv6_since:-${SECONDS}}
      if ((SECONDS - ipv6_since >= patience)); then
        guest_ip=${guest_ipv6}
      fi
    fi
    if [[ -n ${guest_ip} ]]; then
      vm_ip=${guest_ip}
      log_info "VM ${vm_id} (${vm_mac}) has the address ${vm_ip}"
      open_network
      return 0
    fi
    if [[ ${guest_seen} != "${said}" ]]; then
      said=${guest_seen}
      log_info "${said}"
    fi
    fail_when_stopped
    if ((SECONDS >= deadline)); then
      break
    fi
    pace_pause
  done
  if [[ ${guest_agent} == no ]]; then
    guest_find_neighbour "${vm_mac}" "${family}"
    fail_without_agent "${VM_NETWORK_TIMEOUT}" "${guest_seen}${guest_neighbour:+; the neighbour table of ${HOSTNAME} has ${guest_neighbour} for its card ${vm_mac}, which nobody vouches for}"
  fi
  result_fail timeout "VM ${vm_id} on node '${probe_node}' had no address after ${VM_NETWORK_TIMEOUT} s (card ${vm_mac} on ${vm_bridge}); last seen: ${guest_seen:-nothing}" \
    "check that a DHCP server (for IPv6 alone: a router) answers on ${vm_bridge}; or set VM_IP_CONFIG and VM_GATEWAY, or raise VM_NETWORK_TIMEOUT"
}

# Opens the network of a limited VM, which may send only from the one address that its guest has
# just reported. The guest could report another machine's address. The VM could not send from that
# address before, so whatever answers there now is another machine.
open_network() {
  local file others=''
  egress_read_word
  if [[ -z ${egress_word} ]]; then
    return 0
  fi
  address_perl holders "${vm_ip}" "${LINUS_PVE_DIR:-/etc/pve}"
  while IFS= read -r file; do
    if [[ -n ${file} && ${file} != */"${probe_node}/qemu-server/${vm_id}.conf" ]]; then
      others+="${others:+, }${file##*/nodes/}"
    fi
  done <<<"${run_out}"
  if ((run_rc != 0)) || [[ -n ${others} ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' says that it has the address ${vm_ip}, which is another's: ${others:-${run_said}}" 'look for an address in use twice'
  fi
  # shellcheck disable=SC2016 # the inner shell's parameter
  run_read 5 bash --norc --noprofile -c 'printf . >"/dev/udp/$1/9"' bash "${vm_ip}"
  run_pause 1
  guest_check_place "${vm_ip}" "${vm_mac}"
  if [[ ${guest_place} == no ]]; then
    fail_place "VM ${vm_id} (card ${vm_mac}) on node '${probe_node}' says that it has the address ${vm_ip}, and another answers there: ${guest_seen}"
  elif [[ ${guest_place} == routed && ${VM_ROUTED} != true ]]; then
    fail_unseen
  fi
  egress_open "${vm_id}" "${vm_ip}" "${vm_mac}"
}

fail_unseen() {
  result_fail timeout "whether VM ${vm_id} (card ${vm_mac}) is at ${vm_ip}, as its guest says, cannot be seen on node '${probe_node}': ${guest_seen}" \
    'give VMs their addresses (VM_IP_CONFIG), or the node one in their network; where it must reach them through a router, VM_ROUTED=true takes what guests say'
}

# Without its agent, nothing proves which machine answers at the VM's address.
fail_without_agent() { # <seconds waited> <last seen>
  result_fail timeout "the guest agent of VM ${vm_id} on node '${probe_node}' did not answer within $1 s, so nothing proves which machine responds at its address; last seen: $2" \
    'use a template whose qemu-guest-agent runs (build-template.sh makes one), or install it in yours; VM_TRUST_FIRST_USE=true takes VMs without one, and whatever answers in their place, for jobs without secrets'
}

fail_when_stopped() {
  vm_expect_status "${vm_id}" running
  if [[ ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' stopped while it booted" \
      'look at its console when started by hand; CPU type and memory are the usual causes'
  fi
}

# --- verify_ssh_ready ---

verify_ssh_ready() {
  local -r deadline=$((SECONDS + VM_READY_TIMEOUT))
  wait_for_banner "${deadline}"
  check_place
  guest_start_scan "${vm_ip}" "${VM_SSH_PORT}" ed25519 # read by pin_host_key: most guests have an ed25519 key
  wait_for_guest "${deadline}"
  pin_host_key
}

# Trying the port starts none of Proxmox's tools. A given address is tried from the start of the
# boot.
wait_for_banner() { # <deadline>
  pace_next=20
  while :; do
    guest_read_banner "${vm_ip}" "${VM_SSH_PORT}"
    if [[ -n ${guest_banner} ]]; then
      log_info "SSH responds: ${guest_banner}"
      return 0
    fi
    local said=${run_said}
    fail_when_stopped
    if ((SECONDS >= $1)); then
      break
    fi
    pace_pause
  done
  result_fail timeout "SSH of VM ${vm_id} did not answer at ${vm_ip}:${VM_SSH_PORT} from node '${probe_node}' within ${VM_READY_TIMEOUT} s; last seen: ${said:-no greeting}" \
    "check that the guest runs an SSH server on port ${VM_SSH_PORT} and the node reaches ${vm_ip}; or raise VM_READY_TIMEOUT"
}

# By default, a Linux guest with two cards in one network answers for either address on both cards.
fail_place() { # <problem>
  result_fail timeout "$1" "look for an address in use twice, a second DHCP server, or a second card of the guest in this network, where the guest needs \
the sysctl net.ipv4.conf.all.arp_ignore=1; where none is: the guest tells another's address, so destroy it"
}

# Checks that the VM is what answers at its address. The guest reports the address itself, and can
# report another machine's. If the node is in that network, the network shows whose card answers
# there. If not, only an address that linus gave is accepted, or any that the guest reports with
# VM_ROUTED=true.
check_place() {
  local try
  for try in 1 2 3; do
    guest_check_place "${vm_ip}" "${vm_mac}"
    if [[ ${guest_place} != hidden ]]; then
      break
    fi
    guest_read_banner "${vm_ip}" "${VM_SSH_PORT}" # the neighbour entry may have expired
  done
  log_info "${guest_seen}"
  case ${guest_place} in
    yes) ;;
    hidden | routed)
      if [[ -z ${vm_given_ip} && ${VM_ROUTED} != true ]]; then
        fail_unseen
      fi
      ;;
    *)
      fail_place "VM ${vm_id} (card ${vm_mac}) on node '${probe_node}' is not what answers at ${vm_ip}: ${guest_seen}; nothing was sent there"
      ;;
  esac
}

# An SSH server that answers does not prove that the guest is ready. Without an agent there is
# nothing to ask: the start fails, or warns where VM_TRUST_FIRST_USE allows that.
wait_for_guest() { # <deadline>
  local -r began=${SECONDS}
  guest_host_key=${vm_told_key} pace_next=20
  if [[ -n ${vm_told_key} ]]; then
    guest_agent=yes # cloud-init was done before the memory was saved
    return 0
  fi
  while :; do
    guest_ask_ready "${vm_id}"
    case ${guest_cloud_init} in
      done)
        log_info 'cloud-init is done'
        return 0
        ;;
      none)
        log_info 'the guest has no cloud-init to wait for'
        return 0
        ;;
      failed)
        result_fail vm "cloud-init failed in VM ${vm_id} on node '${probe_node}' (exit ${guest_exit}): ${guest_out}" \
          "look at /var/log/cloud-init.log of a VM made in the same way"
        ;;
      *) ;;
    esac
    if [[ ${guest_agent} == no && ${VM_TRUST_FIRST_USE} == true ]] && ((SECONDS - began >= 30)); then
      result_warning "VM ${vm_id} has no guest agent that responds: it is not known whether cloud-init is done, its host key will be trusted on first use, and jobs with secrets will not run in it"
      return 0
    fi
    if ((SECONDS >= $1)); then
      break
    fi
    pace_pause
  done
  if [[ ${guest_agent} == no ]]; then
    fail_without_agent "${VM_READY_TIMEOUT}" "${run_said}"
  fi
  result_fail timeout "cloud-init of VM ${vm_id} on node '${probe_node}' was not done within ${VM_READY_TIMEOUT} s; last seen: ${guest_cloud_init} ${run_said}" \
    'raise VM_READY_TIMEOUT, or use a template that has less to do at its first boot'
}

pin_host_key() {
  vm_host_key=${guest_host_key}
  if [[ ${guest_agent} == no ]]; then
    return 0 # VM_TRUST_FIRST_USE allowed that
  elif [[ -z ${vm_host_key} ]]; then
    fail_unpinned "${run_said}"
    return 0
  fi
  guest_shown_key=''
  if [[ -n ${run_pids[scan]:-} ]]; then
    guest_end_scan "${vm_host_key}"
  fi
  if [[ ${guest_shown_key} != "${vm_host_key}" ]]; then # a key of another type, or the guest was still making its keys
    local type=${vm_host_key%% *}
    type=${type#ssh-}
    guest_start_scan "${vm_ip}" "${VM_SSH_PORT}" "${type%%-*}"
    guest_end_scan "${vm_host_key}"
  fi
  if [[ -n ${guest_shown_key} && ${guest_shown_key} != "${vm_host_key}" ]]; then
    result_fail timeout "the SSH host key shown at ${vm_ip}:${VM_SSH_PORT} is not that of VM ${vm_id} on node '${probe_node}'" \
      "another machine answers at ${vm_ip}: look for a second DHCP server or a static address in use twice"
  fi
}

fail_unpinned() { # <what was said>
  local -r failure="the SSH host key of VM ${vm_id} on node '${probe_node}' could not be read through its agent: $1"
  if [[ ${VM_TRUST_FIRST_USE} == true ]]; then
    result_warning "${failure}; it will be trusted on first use, and jobs with secrets will not run in the VM"
    return 0
  fi
  result_fail timeout "${failure}" 'use a template whose SSH server has its key in /etc/ssh and whose agent may run commands (build-template.sh makes one); VM_TRUST_FIRST_USE=true accepts others, for jobs without secrets'
}
