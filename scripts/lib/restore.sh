# shellcheck shell=bash
# A VM that is restored from a checkpoint instead of booted: whether VM_CHECKPOINT fits what is
# asked for and where, and how the clone's QEMU is started. A checkpoint that does not fit is
# reported before anything is made (LINUS_RESTORE:unfit). A restore that is hindered now, or fails
# later, is reported, too (LINUS_RESTORE:failed, or unfit if the memory has gone since): a boot may
# still work. This is also how any VM that begins as another guest, such as a fork (lib/fork.sh),
# gets its own identity and its link.

source "${BASH_SOURCE[0]%/*}/boot.sh"
source "${BASH_SOURCE[0]%/*}/checkpoint.sh"
source "${BASH_SOURCE[0]%/*}/identity.sh"

restore_begun=no    # yes from the clone on
restore_patience=60 # seconds until the guest's agent has answered
restore_takes=90    # seconds it has to take its identity
restore_boots=no    # yes: the guest boots: its cloud-init writes its network, and knows its instance
restore_egress=''   # the word that closes its network until it has its identity, if it has no word of its own

restore_unfit() { # <what does not fit> <what to do>
  result_line RESTORE unfit
  result_fail config "checkpoint ${VM_CHECKPOINT} on node '${probe_node}' cannot be restored: $1" "$2"
}

# What may be different the next time is not the checkpoint's fault, so the checkpoint stays.
restore_hindered() { # <by what> <what to do>
  result_line RESTORE failed
  result_fail config "checkpoint ${VM_CHECKPOINT} on node '${probe_node}' cannot be restored now: $1" "$2"
}

# Reads what must be the same for QEMU to read a saved state: its own version, and the processor.
# QEMU reports its version itself, so no tool of Proxmox is started.
restore_read_host() { # restore_qemu, restore_cpu
  local line
  restore_qemu='' restore_cpu=''
  run_read 30 kvm --version
  if ((run_rc == 0)) && [[ ${run_out%%$'\n'*} =~ ^QEMU\ emulator\ version\ [^[:cntrl:]]{1,200}$ ]]; then
    restore_qemu=${run_out%%$'\n'*}
  fi
  while IFS= read -r line; do
    if [[ ${line} =~ ^model\ name[[:space:]]*:\ *([^[:cntrl:]]{1,200})$ ]]; then
      restore_cpu=${BASH_REMATCH[1]}
      break
    fi
  done </proc/cpuinfo
  restore_cpu=${restore_cpu:-${HOSTTYPE}}
}

# Reads what changes when a template is built again under its ID or name: Proxmox gives each VM that
# it creates a UUID, and notes the date. restore_generation: empty if the template has neither;
# restore_ctime: the date, which clones take over.
restore_read_generation() { # vm_config is the template's
  local uuid=''
  local -r uuid_form='(^|,)uuid=([0-9A-Fa-f-]{36})(,|$)' date_form='(^|,)ctime=([0-9]{1,12})(,|$)'
  restore_generation='' restore_ctime=''
  if [[ ${vm_config[smbios1]:-} =~ ${uuid_form} ]]; then
    uuid=${BASH_REMATCH[2],,}
  fi
  if [[ ${vm_config[meta]:-} =~ ${date_form} ]]; then
    restore_ctime=${BASH_REMATCH[2]}
  fi
  if [[ -n ${uuid}${restore_ctime} ]]; then
    restore_generation=${uuid:-none}.${restore_ctime:-0}
  fi
}

# --- validate ---

restore_validate() { # restore_generation is the template's; afterwards vm_config is the checkpoint's
  local -r again='have it made anew (checkpoint-vm.sh), or leave VM_CHECKPOINT empty: the VM boots then'
  if [[ -z ${VM_TEMPLATE} ]]; then
    restore_unfit 'it is made of a template, and VM_TEMPLATE is empty' 'set VM_TEMPLATE to that template'
  fi
  validate_tools kvm od
  checkpoint_load "${VM_CHECKPOINT}"
  vm_read "${VM_CHECKPOINT}"
  vm_find_boot_disk
  if [[ ${vm_state} == unknown ]]; then
    restore_hindered "its config could not be read: ${run_said}" "look at: qm config ${VM_CHECKPOINT}"
  elif [[ ${vm_state} != present ]]; then
    restore_unfit "there is no VM ${VM_CHECKPOINT} here" "${again}"
  elif [[ ${vm_words} != *" linus-checkpoint=${template_id} "* || ${vm_words} != *" linus-vm=${VM_CHECKPOINT} "* || ${vm_config[template]:-0} != 1 ]]; then
    restore_unfit "it is not a checkpoint of template '${VM_TEMPLATE}' (VM ${template_id})" "${again}"
  elif [[ ${vm_words} != *" linus-owner=${vm_owner} "* ]]; then
    restore_unfit "it is another installation's" "${again}"
  elif [[ -n ${vm_config[lock]:-} ]]; then
    restore_hindered "VM is locked (${vm_config[lock]})" 'wait for the work that holds the lock (a backup?) to end'
  elif [[ ${checkpoint_found} != yes || ${vm_words} != *" linus-job=${checkpoint[JOB]:-} "* || ${vm_words} != *" linus-owner=${checkpoint[OWNER]:-} "* ]]; then
    restore_unfit "${checkpoint_meta} does not tell of it" "${again}"
  fi
  restore_check_state "${again}"
  restore_check_shape "${again}"
  restore_read_host
  if [[ -z ${restore_qemu} ]]; then
    restore_hindered "which QEMU is installed is not known: ${run_said}" 'look at: kvm --version'
  elif [[ ${checkpoint[QEMU]:-} != "${restore_qemu}" || ${checkpoint[CPU_MODEL]:-} != "${restore_cpu}" ]]; then
    restore_unfit "it was saved on ${checkpoint[QEMU]:-nothing}, ${checkpoint[CPU_MODEL]:-nothing}, and this is ${restore_qemu}, ${restore_cpu}" "${again}"
  fi
  vm_start_options=(--stateuri "${checkpoint_state}" --machine "${checkpoint[MACHINE]}" --force-cpu "${checkpoint[CPU]}")
  if [[ -n ${checkpoint[NETS_HOST_MTU]:-} ]]; then # Proxmox 8.x neither notes nor takes it
    vm_start_options+=(--nets-host-mtu "${checkpoint[NETS_HOST_MTU]}")
  fi
}

restore_check_state() { # <what to do>
  local size=''
  if [[ -f ${checkpoint_state} && ! -L ${checkpoint_state} && -O ${checkpoint_state} ]]; then
    run_read 10 run_alone stat -c %s -- "${checkpoint_state}"
    size=${run_out}
    if ((run_rc == 124)); then
      restore_hindered "its memory in ${checkpoint_state} could not be looked at: ${run_said}" "look at: df ${checkpoint_dir}"
    fi
  fi
  if [[ -z ${size} || ${size} != "${checkpoint[SIZE]:-}" ]]; then
    restore_unfit "its memory is not in ${checkpoint_state}, or not whole" "$1"
  elif ((${#checkpoint_state} > 128)); then
    restore_unfit "Proxmox takes a path of at most 128 characters, and ${checkpoint_state} is longer" 'set LINUS_HOST_DIR to a shorter one'
  elif [[ -z ${checkpoint[MACHINE]:-} || -z ${checkpoint[CPU]:-} || ! ${checkpoint[MAC]:-} =~ ^[0-9a-f]{2}(:[0-9a-f]{2}){5}$ ]]; then
    restore_unfit "${checkpoint_meta} does not say with which machine, processor and card it was saved" "$1"
  fi
}

# A state is loaded into exactly the machine that it was saved from.
restore_check_shape() { # <what to do>
  if [[ ${checkpoint[GENERATION]:-} != "${restore_generation}" ]]; then
    restore_unfit "template '${VM_TEMPLATE}' was rebuilt since" "$1"
  fi
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  if [[ ${checkpoint[CORES]:-}/${checkpoint[MEMORY]:-}/${checkpoint[DISK]:-} != "${VM_CPU}/${VM_RAM}/${VM_DISK}" ||
    ${vm_config[cores]:-1}/${vm_config[memory]:-} != "${VM_CPU}/${VM_RAM}" || ${vm_kib} -ne $((VM_DISK * 1024 * 1024)) ]]; then
    restore_unfit "it has ${checkpoint[CORES]:-?} cores, ${checkpoint[MEMORY]:-?} MB and a disk of ${checkpoint[DISK]:-?} GB, not ${VM_CPU}, ${VM_RAM} and ${VM_DISK}" "$1"
  elif [[ -n ${VM_CPU_TYPE} && ${VM_CPU_TYPE} != "${vm_config[cpu]:-}" ]]; then
    restore_unfit "its CPU type is '${vm_config[cpu]:-}', not '${VM_CPU_TYPE}'" "$1"
  elif [[ -n ${VM_SSH_USER} && ${VM_SSH_USER} != "${checkpoint[USER]:-}" ]]; then
    restore_unfit "its user is '${checkpoint[USER]:-}', not '${VM_SSH_USER}'" "$1"
  fi
  vm_find_uncopyable
  if [[ -n ${vm_uncopyable} ]]; then
    restore_unfit "it has ${vm_uncopyable}, which no copy can have" "$1"
  fi
}

# --- identity ---

# The agent continues with the rest of the guest: it is there as soon as QEMU is, or a moment later.
take_identity() {
  local part ip4='' gw4='' ip6='' gw6=''
  local -a parts
  local -r deadline=$((SECONDS + restore_patience))
  read_network
  IFS=, read -ra parts <<<"${vm_config[ipconfig0]:-}"
  for part in "${parts[@]}"; do
    case ${part} in
      ip=*) ip4=${part#*=} ;;
      gw=*) gw4=${part#*=} ;;
      ip6=*) ip6=${part#*=} ;;
      gw6=*) gw6=${part#*=} ;;
      *) ;;
    esac
  done
  restore_read_resolvers
  identity_draw 80
  local -r bytes=${identity_bytes}
  if ((${#bytes} != 160)); then
    result_fail vm "could not draw random bytes for VM ${vm_id}: ${run_said}" 'look at: od -N 80 /dev/urandom'
  fi
  while :; do
    identity_take "${vm_id}" "${restore_takes}" "name=${vm_name}" "mac=${vm_mac,,}" "old_mac=${checkpoint[MAC]}" "user=${vm_user}" \
      "key=${SSH_PUBLIC_KEY}" "time=${EPOCHSECONDS}" "seed=${bytes:32}" "machine_id=${bytes:0:12}4${bytes:13:3}8${bytes:17:15}" \
      "ip4=${ip4}" "gw4=${gw4}" "ip6=${ip6}" "gw6=${gw6}" "servers=${restore_servers}" "search=${restore_search}" "boots=${restore_boots}"
    if [[ ${identity_exit} == 0 && ${identity_said} == *'linus-identity taken'* ]]; then
      log_info 'the guest has an identity of its own'
      if [[ ${restore_boots} == no ]]; then # else its cloud-init may still be at work
        vm_told_key=${guest_host_key}
      fi
      return 0
    elif [[ -n ${identity_exit} || ${run_rc} -eq 0 ]] || ((SECONDS >= deadline)); then
      break
    fi
    fail_when_stopped
    run_pause 0.2
  done
  local from="restored from checkpoint ${VM_CHECKPOINT}" remedy='leave VM_CHECKPOINT empty: the VM boots then; and destroy the checkpoint when it happens again'
  if [[ -n ${VM_FORK:-} ]]; then
    from="a fork of VM ${VM_FORK}" remedy='look at what its agent can do: qm guest exec ID -- id; where it cannot be helped, make VMs of a template'
  fi
  result_fail vm "VM ${vm_id} on node '${probe_node}', ${from}, did not take an identity of its own (exit ${identity_exit:-unknown}): ${identity_said}" "${remedy}"
}

# Proxmox does the same for a cloud-init drive: the config's resolvers, else the host's own.
restore_read_resolvers() { # restore_servers, restore_search
  local word rest
  restore_servers=${vm_config[nameserver]:-}
  restore_search=${vm_config[searchdomain]:-}
  if [[ -n ${restore_servers}${restore_search} ]]; then
    return 0
  fi
  while read -r word rest; do
    if [[ ${word} == nameserver && ${rest} =~ ^[0-9a-fA-F.:]+ && ${rest} != 127.* ]]; then
      restore_servers+="${restore_servers:+ }${BASH_REMATCH[0]}"
    elif [[ ${word} == search && ${rest} =~ ^[A-Za-z0-9._-]+ ]]; then
      restore_search=${BASH_REMATCH[0]}
    fi
  done 2>/dev/null <"${LINUS_RESOLV_CONF:-/etc/resolv.conf}" || :
}

# Puts the link up: from here on the VM's packets leave it. Proxmox changes the link at once if the
# card stays the same; a change that waits for a restart would not be in the config that is read
# back.
link_up() {
  local -a change=(--net0 "${vm_config[net0]/,link_down=1/}")
  if [[ -n ${restore_egress} ]]; then
    vm_egress=''
    vm_marker
    change+=(--description "${vm_description}")
  fi
  if [[ -z ${vm_given_ip} ]]; then
    local family=4
    if [[ ${vm_ipv6_only} == yes ]]; then
      family=6
    fi
    guest_start_address "${vm_id}" "${vm_mac}" "${family}"
  fi
  retry_change link_is_up 120 qm set "${vm_id}" "${change[@]}"
  if [[ -n ${restore_egress} ]]; then
    egress_clear "${vm_id}"
  fi
  pace_start
  if [[ ${retry_landed} != yes ]]; then
    retry_fail "the link of VM ${vm_id} on node '${probe_node}' could not be put up: Proxmox answered: ${run_said:-nothing}" "look at the task log of node '${probe_node}'"
  fi
  if [[ -z ${vm_given_ip} ]]; then
    guest_end_address "${vm_mac}"
    vm_told_ip=${guest_ip:-${guest_ipv6}}
  fi
}

link_is_up() {
  vm_look "${vm_id}"
  vm_prove
  egress_read_word
  if [[ -z ${vm_doubt} && -n ${vm_config[net0]:-} && ,${vm_config[net0]:-}, != *,link_down=1,* && ${egress_word} == "${vm_egress}" ]]; then
    retry_landed=yes
  fi
}
