# shellcheck shell=bash
# What a Proxmox host must have. Each part is looked at once and judged in one place: check-host
# reports the judgements, create-vm stops at the first that is not ok.
#
# A probe sets probe_kind (empty: ok, else a kind of result_fail), probe_text (what was found) and
# probe_remedy. The node is in probe_node once probe_cluster has run. Each start of Proxmox's tools
# takes most of a second, so they are used only for what cannot be seen without them, and the read
# that needs one runs beside the rest.

source "${BASH_SOURCE[0]%/*}/cluster.sh"
source "${BASH_SOURCE[0]%/*}/vm.sh"

probe_ok() { # <text>
  probe_kind=''
  probe_text=$1
  probe_remedy=''
}

probe_bad() { # <kind> <text> <remedy>
  probe_kind=$1
  probe_text=$2
  probe_remedy=$3
}

# Judges a failed read. A read that had no answer in time says nothing against the configuration.
probe_unread() { # <what was read> <remedy>
  local kind=config
  if ((run_rc == 124)); then
    kind=timeout
  fi
  probe_bad "${kind}" "could not read $1: ${run_said}" "$2"
}

# Judges the quorum, and the node: the wanted one, or this host's own. qm works only on the node it
# runs on, so another node does not do, even if it is online.
probe_cluster() { # <wanted node, or empty> [vms: cluster_vms, too]; probe_quorum: yes, no, or none where there is no cluster
  local -r wanted=$1
  local name known='' own
  probe_node=${wanted}
  cluster_read ${2:+"$2"}
  probe_quorum=${cluster_quorum}
  if ((cluster_rc != 0)); then
    probe_unread "the cluster's status on ${HOSTNAME}" \
      'run this on a Proxmox VE host, as root; look at: systemctl status pve-cluster'
    return 0
  fi
  own=${cluster_node}
  for name in "${cluster_nodes[@]}"; do
    known+="${known:+, }${name}"
  done
  probe_node=${wanted:-${own}}
  if [[ ${probe_quorum} == no ]]; then
    probe_bad config "the cluster has no quorum (asked on ${HOSTNAME})" \
      'bring the other nodes back: until then Proxmox refuses every change; look at: pvecm status'
  elif [[ ${probe_node} == "${own}" && ${cluster_online[${own}]:-0} != 1 ]]; then
    probe_bad offline "node '${own}' is offline, as the cluster sees it" 'look at: pvecm status, systemctl status pve-cluster corosync'
  elif [[ ${probe_node} == "${own}" ]]; then
    probe_ok "node '${own}' is online"
  elif [[ -z ${cluster_online[${wanted}]:-} ]]; then
    probe_bad config "node '${wanted}' does not exist (known: ${known})" 'set PROXMOX_NODE to one of these'
  elif [[ ${cluster_online[${wanted}]} != 1 ]]; then
    probe_bad offline "node '${wanted}' is offline" 'start the node, or set PROXMOX_NODE to one that is online'
  else
    probe_bad config "node '${wanted}' is not this host, which is '${own}'" "connect to '${wanted}' itself, or leave PROXMOX_NODE empty"
  fi
}

probe_start() { # <storage>: starts the read that probe_storage takes up
  run_start storage 60 pvesh get "/nodes/${probe_node}/storage/$1/status" --output-format json
}

probe_storage() { # <storage>; probe_storage_type: dir, lvmthin, ...; empty if unfit; probe_storage_shared: 1 if all nodes have it; probe_free_mib: empty if unknown
  probe_storage_type=''
  probe_storage_shared=''
  probe_free_mib=''
  local active enabled content avail type
  run_wait storage
  run_ask_again storage pvesh get "/nodes/${probe_node}/storage/$1/status" --output-format json
  if ((run_rc != 0)); then
    if [[ ${run_said} == *"does not exist"* || ${run_said} == *"No such storage"* ]]; then
      probe_no_storage "$1"
    else
      probe_unread "storage '$1' on node '${probe_node}'" 'look at: pvesm status'
    fi
    return 0
  fi
  json_rows storage active enabled content avail type shared
  IFS=$'\x1f' read -r active enabled content avail type probe_storage_shared <<<"${json_lines[0]:-}"
  if [[ ${active} != 1 || ${enabled:-1} != 1 ]]; then
    probe_bad config "storage '$1' on node '${probe_node}' is not active" 'look at: pvesm status; then bring it up, or set PROXMOX_STORAGE to another'
  elif [[ ",${content// /}," != *,images,* ]]; then
    probe_bad config "storage '$1' on node '${probe_node}' does not take VM disks (content: ${content})" \
      "allow the content 'images' (Datacenter, Storage), or set PROXMOX_STORAGE to another"
  else
    probe_storage_type=${type}
    if [[ ${avail} =~ ^[0-9]{1,18}$ ]]; then
      probe_free_mib=$((avail / 1048576))
    fi
    probe_ok "storage '$1' (${type:-unknown type}) is active, $((${avail:-0} / 1073741824)) GiB free"
  fi
}

# Lists all VMs and containers of the cluster (cluster_vms), or ends the script.
probe_vms() {
  cluster_list_vms
  if ((run_rc != 0)); then
    result_fail vm "could not list the VMs on node '${probe_node}': ${run_said}" 'look at: systemctl status pve-cluster'
  fi
}

# A full storage pauses every VM on it, whoever owns it, so some of it must stay free.
probe_reserve() { # <storage> <MiB to be written> [<of what>: of memory]; probe_free_mib: empty if unknown
  local beside=''
  if (($2 > 0)); then
    beside=" beside $2 MiB ${3:-of memory}"
  fi
  if [[ -z ${probe_free_mib} ]] || ((probe_free_mib >= STORAGE_RESERVE * 1024 + $2)); then
    probe_ok "storage '$1' has the ${STORAGE_RESERVE} GiB that are to stay free"
  else
    probe_bad config "storage '$1' on node '${probe_node}' has $((probe_free_mib / 1024)) GiB free, and ${STORAGE_RESERVE} GiB are to stay free${beside}" \
      "remove what is not needed (pvesm list $1), make the storage larger, or set PROXMOX_STORAGE_RESERVE (STORAGE_RESERVE) lower: a full storage pauses every VM on it"
  fi
}

# Ends the script unless the storage is fit, and has room where that is asked.
probe_require_storage() { # <storage> [<MiB to be written> [<of what>]]; as probe_storage
  probe_start "$1"
  probe_storage "$1"
  probe_require
  if (($# > 1)); then
    probe_reserve "$@"
    probe_require
  fi
}

# Does the same for each storage of the config just read.
probe_room() { # <MiB to be written> [<of what>]
  local storage vm_storages probe_storage_type
  vm_find_storages
  for storage in ${vm_storages}; do
    probe_require_storage "${storage}" "$@"
  done
}

probe_no_storage() { # <storage>
  local line storage storages=''
  run_ask pvesh get "/nodes/${probe_node}/storage" --content images --output-format json
  json_rows read storage
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r storage <<<"${line}"
    storages+="${storages:+, }${storage}"
  done
  if ((run_rc != 0 || json_rc != 0)); then
    probe_bad config "storage '$1' does not exist on node '${probe_node}'" 'set PROXMOX_STORAGE to one of: pvesm status --content images'
  else
    probe_bad config "storage '$1' does not exist on node '${probe_node}' (storages that take VM disks: ${storages:-none})" 'set PROXMOX_STORAGE to one of these'
  fi
}

# The host itself shows its Linux bridges, those of the software-defined network too. Only Proxmox's
# list, from /etc/network/interfaces, shows others (Open vSwitch), and which bridges there are.
probe_bridge() { # <bridge>
  local line iface type bridges=''
  run_read 10 run_alone ip -o link show dev "$1" type bridge
  if ((run_rc == 0)) && [[ ${run_out} =~ ^[0-9]+:\ "$1"[:@] ]]; then
    probe_ok "bridge '$1' exists"
    return 0
  fi
  run_ask pvesh get "/nodes/${probe_node}/network" --output-format json
  json_rows read iface type
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r iface type <<<"${line}"
    if [[ ${type} == *[Bb]ridge* ]]; then
      bridges+="${bridges:+, }${iface}"
      if [[ ${iface} == "$1" ]]; then
        probe_ok "bridge '$1' exists"
        return 0
      fi
    fi
  done
  if ((run_rc != 0 || json_rc != 0)); then
    probe_unread "the network of node '${probe_node}'" 'look at: pvesh get /nodes/localhost/network'
  else
    probe_bad config "bridge '$1' does not exist on node '${probe_node}' (bridges: ${bridges:-none})" 'set PROXMOX_BRIDGE to one of these'
  fi
}

# Tells whether the node has any template, for callers who have not named one: a cloud image does,
# too, only slower. cluster_vms must hold its VMs.
probe_templates() {
  probe_list_templates
  if [[ -z ${probe_known_templates} ]]; then
    probe_bad warn "node '${probe_node}' has no template" \
      'make one: build-template.sh; VMs are then linked clones, made in seconds, else each is made from a cloud image (VM_OS)'
  else
    probe_ok "templates: ${probe_known_templates}"
  fi
}

probe_list_templates() { # probe_known_templates: their names and IDs
  local line vmid node kind template name
  probe_known_templates=''
  for line in "${cluster_vms[@]}"; do
    read -r vmid node kind template name <<<"${line}"
    if [[ ${node}/${kind} == "${probe_node}/qemu-server" && ${template} == 1 ]]; then
      probe_known_templates+="${probe_known_templates:+, }${name} (${vmid})"
    fi
  done
}

# Finds the template in cluster_vms. A template lies on a node, and its clones are made on that
# node. probe_template_id is set when the template is found and fit; vm_config is its config.
probe_template() { # <name or ID>
  local line vmid node kind name template matches=''
  probe_template_id=''
  probe_list_templates
  for line in "${cluster_vms[@]}"; do
    read -r vmid node kind template name <<<"${line}"
    if [[ ${node}/${kind} == "${probe_node}/qemu-server" ]] && [[ ${vmid} == "$1" || (${name} == "$1" && ${template} == 1) ]]; then
      matches+="${matches:+ }${vmid}"
    fi
  done
  if [[ -z ${matches} ]]; then
    probe_bad config "template '$1' does not exist on node '${probe_node}' (templates: ${probe_known_templates:-none})" \
      'make one: build-template.sh; or set VM_TEMPLATE to the name or ID of a template of this node'
    return 0
  elif [[ ${matches} == *' '* ]]; then
    probe_bad config "template '$1' is the name of several VMs on node '${probe_node}': ${matches}" 'set VM_TEMPLATE to the ID of one'
    return 0
  fi
  vm_look "${matches}"
  vm_find_boot_disk
  if [[ ${vm_state} != present ]]; then
    probe_unread "the config of template '$1' (VM ${matches})" "look at: qm config ${matches}"
  elif [[ ${vm_config[template]:-0} != 1 ]]; then
    probe_bad config "VM ${matches} ('$1') on node '${probe_node}' is not a template" "turn it into one (qm template ${matches}), or name another"
  elif [[ ${vm_words} == *' linus-checkpoint='* ]]; then
    probe_bad config "VM ${matches} ('$1') on node '${probe_node}' is a checkpoint, not a template" 'set VM_TEMPLATE to the template that it was made of, and VM_CHECKPOINT to its ID'
  elif [[ -z ${vm_boot_disk} ]]; then
    probe_bad config "template '$1' (VM ${matches}) has no disk to boot from" "look at: qm config ${matches}"
  elif [[ " ${vm_config[*]} " != *cloudinit* ]]; then
    probe_bad config "template '$1' (VM ${matches}) has no cloud-init drive" "add one: qm set ${matches} --scsi1 STORAGE:cloudinit"
  else
    probe_template_id=${matches}
    probe_ok "template '$1' is VM ${matches}"
  fi
}

probe_require() { # ends the script when the probe before was not ok
  if [[ -n ${probe_kind} ]]; then
    result_fail "${probe_kind}" "${probe_text}" "${probe_remedy}"
  fi
  log_info "${probe_text}"
}
