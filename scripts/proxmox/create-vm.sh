#!/usr/bin/env bash
# Creates a VM on the Proxmox VE node this runs on, from a template (linked clone) or from a
# cloud image, starts it and waits until it is usable.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment):
#   VM_NAME             name, a DNS label (required)
#   SSH_PUBLIC_KEY      text of one public key, for the VM's user (required)
#   VM_CPU 2, VM_RAM 2048 (MB), VM_DISK 20 (GB)
#   VM_TEMPLATE         name or ID of a template on this node; empty: an image
#   VM_CHECKPOINT       ID of a checkpoint of that template on this node (checkpoint-vm.sh):
#                       the VM continues where the checkpoint was saved, with its own
#                       identity, and does not boot. LINUS_RESTORE:unfit says that the
#                       checkpoint does not fit; it comes before anything is made, or later
#                       if the checkpoint's memory has gone meanwhile. LINUS_RESTORE:failed
#                       says that the checkpoint is locked, or that the restore was undone;
#                       a boot may still work
#   VM_FORK             ID of a VM of this installation on this node: the new VM becomes a
#                       copy of it, of the same size. VM_FORK_JOB is the linus-job of that
#                       VM. With VM_FORK_LIVE=true the copy continues from the memory in that
#                       VM's snapshot linus-fork (power-vm.sh, fork), otherwise it boots from
#                       a copy of its disk. VM_TEMPLATE, VM_CPU, VM_RAM and VM_DISK have no
#                       effect then
#   VM_OS ubuntu        ubuntu, debian-12, debian-13, almalinux-9, rocky-9 (with a template
#                       it is only reported, and gives the user if the template sets none)
#   VM_IMAGE_URL, VM_IMAGE_SHA256   another image than VM_OS's (file:// works)
#   IMAGE_DIR           where images are kept (/var/lib/vz/template/linus)
#   PROXMOX_NODE        default: this host's own
#   PROXMOX_STORAGE local-lvm, PROXMOX_BRIDGE vmbr0, VM_VLAN_TAG
#   STORAGE_RESERVE 5   GB that stay free on the storages: with less, no VM is created
#   VM_ID_RANGE 100-999
#   VM_SSH_USER         default: the template's user, or the system's usual one
#   VM_SSH_PORT 22
#   VM_IP_CONFIG dhcp   or auto6 or dhcp6 (IPv6 only), ADDRESS/PREFIX, or a pool
#                       FIRST-LAST/PREFIX from which each VM gets one address;
#                       with VM_GATEWAY (lib/address.sh)
#   VM_NAMESERVERS      default: the host's
#   VM_EGRESS lan       lan, internet, none or allow: where its packets may go (lib/egress.sh)
#   VM_EGRESS_RANGES    addresses and ranges separated by commas: what allow reaches, or what
#                       internet does not reach
#   VM_CPU_TYPE         image: host where KVM works, else x86-64-v2-AES;
#                       template: the template's
#   VM_NETWORK_TIMEOUT 300, VM_READY_TIMEOUT 600 (seconds)
#   VM_ROUTED false     true: this node reaches VMs through a router; accept addresses that
#                       guests report, although this node cannot see their cards
#   VM_TRUST_FIRST_USE false   true: accept a VM whose guest agent does not respond, by the
#                       neighbour table and without a host key to pin
#   LINUS_JOB, LINUS_OWNER  UUIDs that mark the VM (default: generated)
#   LINUS_ENGINE        the engine that asks, if there are several: clones then take turns
#                       (lib/slot.sh)
#   LINUS_LEASE_SECONDS 0     time after which the host destroys the VM; 0: never
#   LINUS_HOST_DIR /var/lib/linus   holds leases, reserved addresses, quarantined IDs, what
#                       was checked in the last minute, and how long templates took to boot
#   LINUS_NONCE         delimits the output
# Options: --dry-run (check everything, print the commands, change nothing), --help
#
# The result is on stdout in LINUS_ lines (lib/result.sh), the log on stderr.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration,
# 4 node offline, 5 creation, configuration or start failed, 6 network or SSH timeout,
# 129/130/141/143 signal. On every failure the script destroys its own VM.
# LINUS_VM_OUTCOME:exists says that a VM already has the name, and was not touched. The
# result of a restored VM has LINUS_VM_SOURCE:restored, that of a fork has
# LINUS_VM_SOURCE:forked.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/create.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"

usage() {
  printf '%s\n' \
    'usage: VM_NAME=... SSH_PUBLIC_KEY=... [VM_TEMPLATE=...] create-vm.sh [--dry-run | --help]' \
    'Creates and starts a VM on this Proxmox VE node. All inputs and exit codes' \
    'are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  read_settings
}

# --- output_result ---

# Nothing that happens between the result and the exit undoes the VM, except a caller that is gone.
# VM_ID and VM_NODE were reported when the ID was reserved.
output_result() {
  run_stoppable=no
  result_line VM_NAME "${vm_name}"
  result_line VM_IP "${vm_ip}"
  result_line VM_USER "${vm_user}"
  result_line VM_OS "${vm_system}"
  result_line VM_CPU "${VM_CPU}"
  result_line VM_RAM "${VM_RAM}"
  result_line VM_DISK "${VM_DISK}"
  if [[ -n ${vm_host_key} ]]; then
    result_line VM_HOST_KEY "${vm_host_key}"
  fi
  if [[ -n ${VM_CHECKPOINT} ]]; then
    result_line VM_SOURCE restored
  elif [[ -n ${VM_FORK} ]]; then
    result_line VM_SOURCE forked
  fi
  result_line RESULT SUCCESS
  vm_committed=yes
}

print_plan() {
  key_file=ssh-public-key.pub
  image_file=${image_file:-${IMAGE_DIR}/${image_os}.qcow2}
  if [[ ${address_kind} == pool ]]; then
    address_choose
  fi
  if [[ -z ${template_id} ]]; then
    result_text PLAN "fetch ${image_url} to ${image_file}, unless it is there and its checksum is right"
  fi
  build_create_command
  result_text PLAN "${create_command[*]@Q}"
  if [[ -n ${template_id} ]]; then
    build_set_command
    result_text PLAN "${set_command[*]@Q}"
  fi
  result_text PLAN "qm resize ${vm_id} ${vm_boot_disk:-scsi0} ${VM_DISK}G"
  if [[ -n ${vm_egress} ]]; then
    result_text PLAN "nft -f ${LINUS_LOCK_DIR:-/run/linus}/egress.rules, with egress ${VM_EGRESS} for tap${vm_id}i0"
  fi
  local -ra start_command=(qm start "${vm_id}" "${vm_start_options[@]}")
  result_text PLAN "${start_command[*]}"
  if [[ ${vm_alike} == yes ]]; then
    result_text PLAN 'in the VM, through its agent: MAC, host name, machine ID, SSH host keys, network, instance of cloud-init, random numbers, clock'
    result_text PLAN "qm set ${vm_id} --net0 ${vm_card/,link_down=1/}"
  fi
  result_line RESULT SUCCESS
  vm_committed=yes
}

main() {
  local steps=9
  if [[ -n ${VM_CHECKPOINT:-}${VM_FORK:-} ]]; then
    steps=11
  fi
  script_begin "${steps}" rollback
  tools_start
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step allocate_vm_id 'choosing a VM ID'
  if [[ ${dry_run} == yes ]]; then
    print_plan
    return 0
  fi
  result_run_step download_os_image 'getting the image'
  result_run_step create_vm 'creating the VM'
  result_run_step configure_vm 'configuring the VM'
  result_run_step start_vm 'starting the VM'
  if [[ ${vm_alike} == yes ]]; then
    result_run_step take_identity 'giving it an identity of its own'
    result_run_step link_up 'letting it into the network'
  fi
  result_run_step wait_for_network 'waiting for its address'
  result_run_step verify_ssh_ready 'waiting until it is ready'
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
