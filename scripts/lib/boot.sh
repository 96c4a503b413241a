# shellcheck shell=bash
# The boot of VM vm_id, as the steps start_vm, wait_for_network and
# verify_ssh_ready; and how a start or a stop of it is seen to have landed.
# vm_config is the VM's.

vm_mac='' vm_bridge='' # of its card net0
vm_ip='' vm_host_key=''

start_vm() {
  retry_change start_has_landed 300 qm start "${vm_id}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not start VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said:-nothing} (status: ${vm_status})" \
      'check that the node has the memory free and that KVM works there'
  fi
}

start_has_landed() {
  vm_read_status "${vm_id}"
  if [[ ${vm_status} == running ]]; then
    retry_landed=yes
  fi
}

stop_has_landed() {
  vm_read_status "${vm_id}"
  if [[ ${vm_status} == stopped ]]; then
    retry_landed=yes
  fi
}

# --- wait_for_network ---

# What the config says of card and address. vm_given_ip: the address it gives
# the VM, empty when the network does; vm_ipv6_only: yes or no.
read_network() {
  local part
  local -a parts
  if [[ ! ${vm_config[net0]:-} =~ ([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}) ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' has no network card net0" "look at: qm config ${vm_id}"
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
  while ((SECONDS < deadline)); do
    guest_find_address "${vm_id}" "${vm_mac}"
    # An agent takes a while to come up, and some images have none.
    if [[ -z ${guest_ip} && ${guest_agent} == no ]] && ((SECONDS - began >= 20)); then
      guest_find_neighbour "${vm_mac}" "${family}"
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
      return 0
    fi
    if [[ ${guest_seen} != "${said}" ]]; then
      said=${guest_seen}
      log_info "${said}"
      fail_when_stopped
    fi
    sleep 1
  done
  fail_when_stopped
  result_fail timeout "VM ${vm_id} on node '${probe_node}' had no address after ${VM_NETWORK_TIMEOUT} s (card ${vm_mac} on ${vm_bridge}); last seen: ${guest_seen:-nothing}" \
    "check that a DHCP server (for IPv6 alone: a router) answers on ${vm_bridge} and the guest has qemu-guest-agent; or set VM_IP_CONFIG and VM_GATEWAY, or raise VM_NETWORK_TIMEOUT"
}

fail_when_stopped() {
  vm_read_status "${vm_id}"
  if [[ ${vm_status} == stopped ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' stopped by itself while it booted" \
      'look at its console when started by hand; CPU type and memory are the usual causes'
  fi
}

# --- verify_ssh_ready ---

verify_ssh_ready() {
  local -r deadline=$((SECONDS + VM_READY_TIMEOUT))
  wait_for_banner "${deadline}"
  wait_for_cloud_init "${deadline}"
  pin_host_key
}

wait_for_banner() { # <deadline>
  while ((SECONDS < $1)); do
    guest_read_banner "${vm_ip}" "${VM_SSH_PORT}"
    if [[ -n ${guest_banner} ]]; then
      log_info "SSH answers: ${guest_banner}"
      return 0
    fi
    sleep 1
  done
  fail_when_stopped
  result_fail timeout "SSH of VM ${vm_id} did not answer at ${vm_ip}:${VM_SSH_PORT} from node '${probe_node}' within ${VM_READY_TIMEOUT} s; last seen: ${run_said:-no greeting}" \
    "check that the guest runs an SSH server on port ${VM_SSH_PORT} and the node reaches ${vm_ip}; or raise VM_READY_TIMEOUT"
}

# An SSH server that answers is not a guest that is ready. Without an agent
# nobody can be asked: that is said, and left to the caller.
wait_for_cloud_init() { # <deadline>
  local -r began=${SECONDS}
  while ((SECONDS < $1)); do
    guest_check_cloud_init "${vm_id}"
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
    if [[ ${guest_agent} == no ]] && ((SECONDS - began >= 30)); then
      result_warning "VM ${vm_id} has no guest agent that answers: whether cloud-init is done is not known, and its host key cannot be read"
      return 0
    fi
    sleep 1
  done
  result_fail timeout "cloud-init of VM ${vm_id} on node '${probe_node}' was not done within ${VM_READY_TIMEOUT} s; last seen: ${guest_cloud_init} ${run_said}" \
    'raise VM_READY_TIMEOUT, or use a template that has less to do at its first boot'
}

pin_host_key() {
  vm_host_key=''
  if [[ ${guest_agent} == no ]]; then
    return 0
  fi
  guest_read_host_key "${vm_id}"
  if [[ -z ${guest_host_key} ]]; then
    result_warning "the SSH host key of VM ${vm_id} could not be read through its agent: ${run_said}"
    return 0
  fi
  vm_host_key=${guest_host_key}
  if ! command -v ssh-keyscan >/dev/null; then
    return 0
  fi
  guest_scan_host_key "${vm_ip}" "${VM_SSH_PORT}"
  if [[ -n ${guest_shown_key} && ${guest_shown_key} != "${vm_host_key}" ]]; then
    result_fail timeout "the SSH host key shown at ${vm_ip}:${VM_SSH_PORT} is not that of VM ${vm_id} on node '${probe_node}'" \
      "another machine answers at ${vm_ip}: look for a second DHCP server or a static address in use twice"
  fi
}
