# shellcheck shell=bash
# Copies of a VM of ours that runs. Where its storage can clone a snapshot with memory
# they go on from there (live), in the very machine that was saved; elsewhere each boots from a
# copy of its disk (disk). Either begins as the guest that it is a copy of, and becomes
# itself before its link is up (lib/restore.sh).
#
# A saved guest has its link up, and Proxmox takes a copy's down a moment after that runs: so
# its card is closed by network rules (lib/egress.sh) from before its start until it is
# itself.

source "${BASH_SOURCE[0]%/*}/restore.sh"

fork_snapshot=linus-fork # of the VM that is copied, while it is
fork_way='' fork_why=''  # live or disk
fork_pause=''            # milliseconds; empty: not known, or none

# --- the VM that is copied: power-vm.sh ---

fork_take() {
  if [[ ${vm_status} != running ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' does not run (status: ${vm_status}): there is nothing that copies could go on with" 'start it first'
  fi
  fork_require_copyable
  run_read 15 qm guest cmd "${vm_id}" ping
  if ((run_rc != 0)); then
    result_fail vm "the guest agent of VM ${vm_id} on node '${probe_node}' does not answer, and without it no copy gets an identity of its own: ${run_said}" \
      'see that qemu-guest-agent runs in the VM'
  fi
  fork_find_way
  log_info "${fork_way}: ${fork_why}"
  snapshot_find
  if [[ ${snapshot_state} != absent ]]; then
    snapshot_delete # of a fork that was killed
    power_require_proof
  fi
  if [[ ${fork_way} == live ]]; then
    fork_save
  fi
}

# What no copy can have, or would share with the VM.
fork_require_copyable() { # vm_config
  local key
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^(hostpci|usb|virtiofs|net[1-9]|tpmstate) ]]; then
      result_fail config "VM ${vm_id} on node '${probe_node}' has ${key}, which no copy of it can have" 'take that from the VM, and start it anew'
    fi
  done
}

# As Proxmox decides: a linked clone of a snapshot is LVM-thin's, RBD's and BTRFS's.
fork_find_way() {
  local key storage types='' known=' '
  fork_way=live
  for key in "${!vm_config[@]}"; do
    if [[ ! ${key} =~ ^(scsi|virtio|sata|ide|efidisk)[0-9]+$ || ${vm_config[${key}]} == *media=cdrom* || ${vm_config[${key}]} != *:* ]]; then
      continue
    fi
    storage=${vm_config[${key}]%%:*}
    if [[ ${known} == *" ${storage} "* ]]; then
      continue
    fi
    known+="${storage} "
    probe_start "${storage}"
    probe_storage "${storage}"
    probe_require
    types+="${types:+, }'${storage}' (${probe_storage_type})"
    if [[ ! ${probe_storage_type} =~ ^(lvmthin|rbd|btrfs)$ || (${probe_storage_type} == btrfs && ${vm_config[${key}]} == *.qcow2*) ]]; then
      fork_way=disk
      fork_why="its disk ${key} is on storage '${storage}' (${probe_storage_type}), of which Proxmox clones no snapshot: LVM-thin, RBD and BTRFS have that"
      return 0
    fi
  done
  if ! command -v nft >/dev/null; then
    fork_way=disk
    fork_why="nft is not on ${HOSTNAME}, and without it a copy would speak as the VM for a moment: apt-get install nftables"
    return 0
  fi
  fork_why="storage ${types} clones a snapshot with memory"
}

# How long the VM stands still is how long its agent does not answer; it is asked a
# hundred times a second, on the socket that QEMU has for it.
fork_save() {
  if [[ ${dry_run} == no ]]; then
    : >"${run_dir}/forking"
    # shellcheck disable=SC2016 # perl's variables, not the shell's
    run_start watch 3700 perl -MSocket -MTime::HiRes=clock_gettime,CLOCK_MONOTONIC,usleep -e '
      use strict; use warnings;
      my ($dir, $id, $flag) = @ARGV;
      my ($most, $asks, $rest, $agent) = (0, 0, "");
      chdir $dir and socket $agent, AF_UNIX, SOCK_STREAM, 0 and connect $agent, sockaddr_un("$id.qga") or die "$dir/$id.qga: $!\n";
      syswrite $agent, qq(\xff{"execute":"guest-sync-delimited","arguments":{"id":$$}}\n);
      while (-e $flag) {
        my $began = clock_gettime(CLOCK_MONOTONIC);
        until ($rest =~ s/^[^\n]*\n//) {
          my $readable = "";
          vec($readable, fileno $agent, 1) = 1;
          select $readable, undef, undef, 60 or die "the agent is silent\n";
          sysread $agent, $rest, 4096, length $rest or die "the agent is gone\n";
        }
        my $took = clock_gettime(CLOCK_MONOTONIC) - $began;
        $most = $took if $asks and $took > $most;
        $asks++ or open my $on, ">", "$flag.on";
        usleep 10000;
        syswrite $agent, qq({"execute":"guest-ping"}\n);
      }
      printf "%d\n", 1000 * $most + 0.5;' -- "${LINUS_QEMU_DIR:-/run/qemu-server}" "${vm_id}" "${run_dir}/forking"
    local -i looks
    for ((looks = 0; looks < 50; looks += 1)); do
      if [[ -e ${run_dir}/forking.on ]] || ! run_lives watch; then
        break
      fi
      run_pause 0.05
    done
  fi
  SNAPSHOT_MEMORY=true
  snapshot_take
  if [[ ${dry_run} == no ]]; then
    local -r said=${run_said}
    rm -f -- "${run_dir}/forking"
    run_wait watch
    if ((run_rc == 0)) && [[ ${run_out} =~ ^[0-9]{1,9}$ ]]; then
      fork_pause=${run_out}
    else
      log_warn "how long VM ${vm_id} stood still is not known: ${run_said}"
    fi
    run_said=${said}
  fi
}

fork_remove() {
  snapshot_find
  if [[ ${snapshot_state} == absent ]]; then
    log_info "VM ${vm_id} has no snapshot '${SNAPSHOT}'"
    return 0
  fi
  snapshot_delete
}

# --- the copy: create-vm.sh ---

fork_validate_inputs() {
  if [[ -z ${VM_FORK} ]]; then
    return 0
  fi
  validate_number VM_FORK "${VM_FORK}" 100 999999999
  validate_uuid VM_FORK_JOB "${VM_FORK_JOB}"
  validate_pattern VM_FORK_LIVE "${VM_FORK_LIVE}" 'true|false' 'true or false'
  if [[ -n ${VM_CHECKPOINT} ]]; then
    result_fail invalid 'VM_FORK and VM_CHECKPOINT are both given' 'give one of them'
  fi
}

fork_unfit() { # <why>
  result_fail config "VM ${VM_FORK} on node '${probe_node}' cannot be copied: $1" "look at: qm config ${VM_FORK}${2:+ --snapshot $2}"
}

fork_validate() {
  local snapshot=''
  if [[ ${VM_FORK_LIVE} == true ]]; then
    snapshot=${fork_snapshot}
  fi
  validate_tools od
  vm_read "${VM_FORK}" '' "${snapshot}"
  if [[ ${vm_state} != present ]]; then
    fork_unfit "it is not there${run_said:+: ${run_said}}"
  elif [[ ${vm_words} != *" linus-job=${VM_FORK_JOB} "* || ${vm_words} != *" linus-owner=${vm_owner} "* || ${vm_words} != *" linus-vm=${VM_FORK} "* ]]; then
    fork_unfit 'it is not proven to be the VM that is meant'
  elif [[ ${vm_config[template]:-0} != 0 ]]; then
    fork_unfit 'it is a template'
  elif [[ -n ${snapshot} && (-z ${vm_config[vmstate]:-} || -n ${vm_config[snapstate]:-} || -z ${vm_config[runningmachine]:-} || -z ${vm_config[runningcpu]:-}) ]]; then
    fork_unfit "it has no snapshot '${snapshot}' with its memory" "${snapshot}"
  fi
  local -r vm_id=${VM_FORK}
  fork_require_copyable
  fork_take_shape
  template_id=${VM_FORK} clone_source=${VM_FORK} clone_options=(--full 1) vm_alike=yes
  declare -gA checkpoint=([MAC]=${vm_mac,,})
  restore_boots=yes restore_patience=${VM_READY_TIMEOUT} restore_takes=300 # there is no boot to fall back on
  if [[ -n ${snapshot} ]]; then
    clone_options=(--snapname "${snapshot}" --full 0)
    restore_boots=no restore_patience=60
    vm_start_options=(--stateuri "${vm_config[vmstate]}" --machine "${vm_config[runningmachine]}" --force-cpu "${vm_config[runningcpu]}")
    if [[ -n ${vm_config["running-nets-host-mtu"]:-} ]]; then # which 8.x neither notes nor takes
      vm_start_options+=(--nets-host-mtu "${vm_config["running-nets-host-mtu"]}")
    fi
    if [[ -z ${vm_egress} ]]; then
      egress_require_nft
      vm_egress=linus-egress=none restore_egress=${vm_egress}
    fi
  fi
}

# A copy has the size of what is copied: a state is loaded into the very machine it is of.
fork_take_shape() { # vm_config
  if [[ ! ${vm_config[memory]:-} =~ ^(current=)?([0-9]{1,6})$ ]]; then
    fork_unfit "its memory is '${vm_config[memory]:-}'"
  fi
  VM_RAM=${BASH_REMATCH[2]} VM_CPU=${vm_config[cores]:-1} VM_CPU_TYPE=''
  vm_find_boot_disk
  vm_disk_kib "${vm_config[${vm_boot_disk:-scsi0}]:-}"
  VM_DISK=$((vm_kib / 1048576))
  if ((vm_kib == 0 || vm_kib % 1048576 != 0)); then
    fork_unfit "the size of its disk is no number of GB: ${vm_config[${vm_boot_disk:-scsi0}]:-none}"
  elif [[ ${vm_config[sockets]:-1} != 1 ]]; then
    fork_unfit "it has ${vm_config[sockets]} sockets"
  fi
  read_network
  vm_user=${vm_config[ciuser]:-}
}
