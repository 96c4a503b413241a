#!/usr/bin/env bash
# Lists the VMs of linus on every online node, or on this one: those whose description carries
# linus-job=<uuid>, linus-owner=<uuid> and linus-vm=<their ID> (lib/vm.sh).
# First it destroys the VMs of this host whose lease has expired (lib/lease.sh), and what a
# killed run of linus left unfinished. It also makes sure that the kernel has the rules of VMs
# whose network is limited (lib/egress.sh).
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all optional:
#   LINUS_OWNER    only the VMs of this installation
#   VM_KIND        vm; template: the templates that build-template or save-vm made, instead
#                  of VMs; volume: the holders of volumes (default: vm)
#   LIST_NODES     all, or own: only this node, without asking other nodes (default: all)
#   LINUS_NONCE    delimits the output
# Options: --help
#
# One line per VM on stdout:
#   LINUS_VM:id=<n> node=<node> name=<name> status=<status> job=<uuid> owner=<uuid>
# A checkpoint has ` checkpoint=<ID of its template>` at the end (lib/checkpoint.sh: it is a
# template to Proxmox, and a VM here). A template that was saved (save-vm.sh) has at the end
# ` from=<name of the VM> before=<the VM's template> by=<who saved it> at=<seconds since 1970>`.
# One line per VM ID that is not used because volumes of a destroyed VM of linus are still
# there:
#   LINUS_QUARANTINED:<id> <volume> ...
# One line per expired VM of this host that is left alone because its proof is incomplete or
# somebody has protected it (of any installation: there are few, and people should see them):
#   LINUS_LEFT_ALONE:<id> <job> <name> <why>
# A node that is offline, or does not respond, gives a LINUS_WARNING: its VMs are not in the
# list, which does not prove that they are gone.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 the cluster returns
# no list, 6 it does not respond in time, 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/cluster.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/sweep.sh"

owner=''

usage() {
  printf '%s\n' \
    'usage: [LINUS_OWNER=...] list-vms.sh [--help]' \
    'Lists the VMs of linus on every online node.' >&2
}

read_inputs() { # <argument...>
  script_read_options '' "$@"
  owner=${LINUS_OWNER:-}
  : "${VM_KIND:=vm}" "${LIST_NODES:=all}"
}

validate_environment() {
  if [[ -n ${owner} ]]; then
    validate_uuid LINUS_OWNER "${owner}"
  fi
  validate_pattern VM_KIND "${VM_KIND}" 'vm|template|volume' 'vm, template or volume'
  validate_pattern LIST_NODES "${LIST_NODES}" 'all|own' 'all or own'
  validate_tools pvesh perl timeout
}

sweep_host() {
  local vmid line
  lease_sweep
  checkpoint_sweep
  egress_sweep
  quarantine_read
  for vmid in "${!quarantined[@]}"; do
    result_text QUARANTINED "${vmid} ${quarantined[${vmid}]}"
  done
  left_read
  for line in "${left_alone[@]}"; do
    result_text LEFT_ALONE "${line}"
  done
}

list_vms() {
  local line node status
  if [[ ${LIST_NODES} == own ]]; then
    list_own
    return 0
  fi
  run_ask pvesh get /nodes --output-format json
  json_rows read node status
  if ((run_rc == 124)); then
    result_fail timeout "could not list the nodes on ${HOSTNAME}: ${run_said}" 'try again when the host has less to do; look at: pvesh get /nodes'
  elif ((run_rc != 0 || json_rc != 0)); then
    result_fail config "could not list the nodes on ${HOSTNAME}: ${run_said}" 'run this on a Proxmox VE host, as root; look at: pvesh get /nodes'
  fi
  local -ra nodes=("${json_lines[@]}")
  for line in "${nodes[@]}"; do
    IFS=$'\x1f' read -r node status <<<"${line}"
    if [[ ${status} == online ]]; then
      list_node "${node}"
    else
      result_warning "node '${node}' is ${status:-unknown}: its VMs are not in this list"
    fi
  done
}

list_own() {
  # shellcheck disable=SC2119 # its argument can be left out
  cluster_read
  if ((cluster_rc != 0)); then
    result_fail config "could not read the cluster's status on ${HOSTNAME}: ${run_said}" 'run this on a Proxmox VE host, as root; look at: systemctl status pve-cluster'
  fi
  list_node "${cluster_node}"
}

# Looks into the VMs whose config has a marker somewhere, and those that this host has a lease of.
list_node() { # <node>
  local line vmid name status template kind checkpoints_rc=0
  local -A marked=() checkpoints=()
  local -r dir=${LINUS_PVE_DIR:-/etc/pve}/nodes/$1/qemu-server
  run_read 60 run_alone grep -RlF --include='*.conf' -e linus-job= -- "${dir}"
  local -r marked_rc=${run_rc}
  run_lines read
  for line in "${run_lines[@]}"; do
    line=${line##*/}
    marked[${line%.conf}]=yes
  done
  if [[ ${VM_KIND} == vm ]]; then
    run_read 60 run_alone grep -RlF --include='*.conf' -e linus-checkpoint= -- "${dir}"
    checkpoints_rc=${run_rc}
    run_lines read
    for line in "${run_lines[@]}"; do
      line=${line##*/}
      checkpoints[${line%.conf}]=yes
    done
  fi
  run_ask pvesh get "/nodes/$1/qemu" --output-format json
  json_rows read vmid name status template
  if ((run_rc != 0 || json_rc != 0)); then
    result_warning "node '$1' did not list its VMs: ${run_said}"
    return 0
  fi
  local -ra vms=("${json_lines[@]}")
  for line in "${vms[@]}"; do
    IFS=$'\x1f' read -r vmid name status template <<<"${line}"
    kind=vm
    if [[ ${template:-0} == 1 ]]; then
      kind=template
    fi
    lease_find "${vmid}"
    # A checkpoint is a template that is listed as a VM, if its words say so (list_vm).
    if [[ (${kind} == "${VM_KIND/volume/vm}" || -n ${checkpoints[${vmid}]:-} || ${checkpoints_rc} -gt 1) && (${marked_rc} -gt 1 || -n ${marked[${vmid}]:-} || -n ${lease_jobs}) ]]; then
      list_vm "$1" "${vmid}" "${name}" "${status}" "${kind}"
    fi
  done
}

list_vm() { # <node> <vmid> <name> <status> <kind>
  local -r uuid='[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
  local -r job_word=" linus-job=(${uuid}) " owner_word=" linus-owner=(${uuid}) "
  vm_read "$2" "$1"
  # The VM was destroyed, or moved elsewhere, after the node was asked: there is no VM to list, and
  # no reason to doubt the list.
  if [[ ${vm_state} == absent || ${vm_state} == moved ]]; then
    return 0
  elif [[ ${vm_state} == unknown ]]; then
    result_warning "the config of VM $2 on node '$1' could not be read: ${run_said}"
    return 0
  elif [[ -n ${vm_copy_of} ]]; then
    log_info "VM $2 on node '$1' is a copy of VM ${vm_copy_of}, and not ours"
    return 0
  fi
  if [[ ! ${vm_words} =~ ${job_word} ]]; then
    list_bare "$@"
    return 0
  fi
  vm_job=${BASH_REMATCH[1]}
  if [[ ! ${vm_words} =~ ${owner_word} || ${vm_words} != *" linus-vm=$2 "* ]]; then
    return 0
  fi
  vm_owner=${BASH_REMATCH[1]}
  if [[ (${VM_KIND} == vm && ${vm_words} != *' linus-volume='* && ($5 == vm || ${vm_words} == *' linus-checkpoint='*)) ||
    (${VM_KIND} == volume && ${vm_words} == *' linus-volume='*) ||
    (${VM_KIND} == template && ${vm_words} == *' linus-template=1 '*) ]]; then
    tell_vm "$1" "$2" "$3" "$4"
  fi
}

# An unfinished destroy leaves a VM with neither name nor mark. Its lease proves that it is linus's,
# and is on the host on which the VM was made. Volumes have no lease.
list_bare() { # <node> <vmid> <name> <status>
  if [[ ${VM_KIND} == volume ]]; then
    return 0
  fi
  lease_find "$2"
  for vm_job in ${lease_jobs}; do
    lease_load "$2" "${vm_job}"
    if [[ ${lease_found} == yes && ${lease_node} == "$1" ]]; then
      vm_owner=${lease_owner} vm_name=${lease_name}
      lease_match "$2"
      if [[ ${lease_matches} == yes ]]; then
        tell_vm "$1" "$2" "${vm_name}" "$4"
      fi
    fi
  done
}

tell_vm() { # <node> <vmid> <name> <status>
  local status=$4 template='' saved=''
  local -r word=' linus-checkpoint=([0-9]+) '
  if [[ ${vm_config[template]:-0} == 1 && ${vm_words} =~ ${word} ]]; then
    template=${BASH_REMATCH[1]}
  fi
  if [[ ${VM_KIND} == template ]]; then
    saved_words
  fi
  vm_find_suspended "${status}"
  if [[ ${vm_suspended} == yes ]]; then
    status=suspended
  fi
  if [[ -z ${owner} || ${vm_owner} == "${owner}" ]]; then
    result_line VM "id=$2 node=$1 name=$3 status=${status} job=${vm_job} owner=${vm_owner}${template:+ checkpoint=${template}}${saved}"
  fi
}

saved_words() { # saved: what its description says of how it was saved
  local word
  for word in ${vm_words}; do
    if [[ ${word} =~ ^linus-(from|before|by|at)=[A-Za-z0-9._@:+-]{1,64}$ && ${saved} != *" ${BASH_REMATCH[1]}="* ]]; then
      saved+=" ${word#linus-}"
    fi
  done
}

main() {
  script_begin 3
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs'
  result_run_step sweep_host 'ending leases that are over'
  result_run_step list_vms 'reading the nodes'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
