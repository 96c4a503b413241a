#!/usr/bin/env bash
# Stops and destroys one VM of linus on the Proxmox VE node this runs on, with its disks. It
# touches nothing unless the VM's config proves that it is the VM meant. It reads the config
# again right before the stop and right before the destroy.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all required:
#   VM_ID, VM_NAME            the VM
#   LINUS_JOB, LINUS_OWNER    the UUIDs in its description (list-vms shows them)
# and optionally:
#   ACTION                    destroy, or forget: remove the lease and free the address of a
#                             VM that is not proven, or is protected; the VM itself is not
#                             touched (default: destroy)
#   VM_KIND                   vm; template: remove only a template that build-template or
#                             save-vm made; volume: remove only the holder of a volume, with
#                             the volume, unless a VM has it (default: vm)
#   PROXMOX_NODE              default: this host's own
#   LINUS_ENGINE              the engine that asks, if there are several (lib/fence.sh)
#   LINUS_NONCE               delimits the output
# Options: --dry-run (check the proof, print the commands, change nothing), --help
#
# It can be run twice: a VM that does not exist is a success. The result is on stdout in
# LINUS_ lines (lib/result.sh), the log on stderr. The script reports the VM's fate even if
# it fails:
#   LINUS_VM_OUTCOME:destroyed  this run destroyed it
#   LINUS_VM_OUTCOME:gone       the cluster has no VM with that ID
#   LINUS_VM_OUTCOME:foreign    another VM has that ID now, and was not touched: the VM
#                               meant is gone (the exit code is still 5)
#   LINUS_VM_OUTCOME:refused    it was left alone: it has the name, job or owner, but the
#                               proof is incomplete; or it is on another node; or somebody
#                               has protected it (protection: 1), or moved a volume to one
#                               of its own disks; or it holds a volume that VMs have
#   LINUS_VM_MOVED:<node>       it was refused because it is on that node
#   LINUS_VM_OUTCOME:failed     destroying it failed: try again
#   LINUS_VM_OUTCOME:fenced     other engines have taken LINUS_ENGINE for dead: nothing is
#                               done for it any more
# Without that line nothing is known about the VM.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration,
# 4 node offline, 5 foreign, refused, failed or fenced, 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/sweep.sh"

usage() {
  printf '%s\n' \
    'usage: VM_ID=... VM_NAME=... LINUS_JOB=... LINUS_OWNER=... destroy-vm.sh [--dry-run | --help]' \
    'Destroys that VM when its description proves that it is the one; list-vms.sh shows' \
    'the values. Exit codes are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${ACTION:=destroy}" "${VM_KIND:=vm}" "${PROXMOX_NODE:=}"
}

validate_environment() {
  vm_read_inputs
  fence_read_inputs
  validate_pattern ACTION "${ACTION}" 'destroy|forget' 'destroy or forget'
  validate_pattern VM_KIND "${VM_KIND}" 'vm|template|volume' 'vm, template or volume'
  vm_kind=${VM_KIND}
  validate_node "${PROXMOX_NODE}"
  validate_tools qm pvesh pvesm perl timeout flock
  probe_cluster "${PROXMOX_NODE}"
  # If pmxcfs cannot be read, neither can the VM's config: its fate is reported then.
  probe_node=${probe_node:-${HOSTNAME}}
  if ((cluster_rc == 0)); then
    probe_require
  fi
}

destroy_vm() {
  local refused_remedy="destroy it by hand (qm destroy ${vm_id}), or make its proof whole again: name ${vm_name}, tag linus, and linus-job=${vm_job} linus-owner=${vm_owner} linus-vm=${vm_id} in its notes"
  if [[ ${dry_run} == yes ]]; then
    plan_destroy
  else
    vm_destroy "${vm_id}" "${probe_node}"
  fi
  if [[ ${vm_reason} == 'it is protected'* ]]; then
    refused_remedy="take the protection off (qm set ${vm_id} --protection 0): then it is destroyed"
  elif [[ ${vm_reason} == 'it has a volume'* ]]; then
    refused_remedy="keep what is on that disk elsewhere (qm disk move ${vm_id} ${volume_moved} --target-vmid ID), or give it up (qm set ${vm_id} --delete ${volume_moved}): then it is destroyed"
  elif [[ ${vm_reason} == 'the volume is attached'* ]]; then
    refused_remedy='take it off there first (linus volume detach), or remove the snapshots of that VM that have it'
  fi
  if [[ ${vm_outcome} != planned ]]; then
    result_line VM_OUTCOME "${vm_outcome}"
  fi
  case ${vm_outcome} in
    planned | destroyed) ;;
    gone) log_info "VM ${vm_id} does not exist on node '${probe_node}' or any other: already gone" ;;
    foreign)
      result_fail vm "refused to destroy VM ${vm_id} on node '${probe_node}': it is another VM now, and ${vm_name} is gone: ${vm_reason}; nothing was touched" \
        "check VM_ID, VM_NAME, LINUS_JOB and LINUS_OWNER against list-vms.sh"
      ;;
    fenced)
      fence_fail "destroy VM ${vm_id} on node '${probe_node}'"
      ;;
    refused)
      if [[ ${vm_state} == moved ]]; then
        result_line VM_MOVED "${vm_moved_to}"
      fi
      result_fail vm "refused to destroy VM ${vm_id} on node '${probe_node}': ${vm_reason}; nothing was touched" "${refused_remedy}"
      ;;
    *)
      if [[ -n ${vm_clones:-} || ${vm_reason} == *'base volume '*' still in use'* ]]; then
        vm_find_clones "${vm_id}"
        result_fail vm "VM ${vm_id} on node '${probe_node}' has linked clones, which read its disk: ${vm_clones:-none that a config tells of}" \
          'destroy these VMs first (checkpoints by: linus template checkpoint remove), then remove it again; until then it can stay, and new VMs be made of another template'
      fi
      if [[ -n ${vm_ha_failure:-} && ${vm_reason} == "${vm_ha_failure}" ]]; then
        result_fail vm "could not destroy VM ${vm_id} on node '${probe_node}' (host ${HOSTNAME}): ${vm_reason}" "${vm_ha_remedy}"
      fi
      result_fail vm "could not destroy VM ${vm_id} on node '${probe_node}' (host ${HOSTNAME}): ${vm_reason}" \
        "run it again; if it persists, look at: qm config ${vm_id} and the task log of node '${probe_node}'"
      ;;
  esac
  vm_tell_leftovers "${vm_id}"
}

# Afterwards linus does not check the VM again. A VM that is proven to be linus's is destroyed, not
# forgotten.
forget_vm() {
  vm_check_before_destroy "${vm_id}" "${probe_node}"
  if [[ -z ${vm_doubt} ]]; then
    result_fail vm "refused to forget VM ${vm_id} on node '${probe_node}': it is proven to be ${vm_name}" 'destroy it'
  elif [[ ${vm_outcome} == failed ]]; then
    result_fail vm "could not check VM ${vm_id} on node '${probe_node}' (host ${HOSTNAME}): ${vm_reason}" 'run it again'
  elif [[ ${dry_run} == no ]]; then
    lease_drop "${vm_id}" "${vm_job}"
    address_drop "${vm_job}"
    egress_read_word
    if [[ -n ${egress_word} ]]; then
      result_warning "VM ${vm_id} keeps its network rules as long as its notes have the word ${egress_word}: take it out of them to lift these"
    fi
  fi
}

plan_destroy() {
  vm_outcome=planned
  vm_leftovers='' vm_unseen=''
  vm_reason=''
  vm_check_before_destroy "${vm_id}" "${probe_node}"
  if [[ ${vm_outcome} == planned ]]; then
    result_text PLAN "qm stop ${vm_id}"
    volume_find_foreign "${vm_id}"
    if [[ -n ${volume_foreign} ]]; then
      result_text PLAN "qm set ${vm_id} --delete ${volume_foreign}"
    fi
    if [[ ${vm_config[protection]:-0} != 0 ]]; then
      result_text PLAN "qm set ${vm_id} --protection 0"
    fi
    result_text PLAN "qm destroy ${vm_id} --purge 1"
  fi
}

output_result() {
  result_line VM_ID "${vm_id}"
  result_line VM_NAME "${vm_name}"
  result_line VM_NODE "${probe_node}"
  result_line RESULT SUCCESS
}

main() {
  script_begin 3
  tools_start
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  if [[ ${ACTION} == forget ]]; then
    result_run_step forget_vm 'forgetting the VM'
  else
    result_run_step destroy_vm 'destroying the VM'
  fi
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
