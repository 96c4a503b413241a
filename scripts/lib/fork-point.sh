# shellcheck shell=bash
# Prepares VM vm_id for copies (lib/fork.sh), as power-vm.sh's inputs ask: finds whether they can
# continue from its memory, and takes the snapshot for that.

source "${BASH_SOURCE[0]%/*}/fork.sh"
source "${BASH_SOURCE[0]%/*}/snapshot.sh"

fork_way='' fork_why='' # live or disk
fork_pause=''           # milliseconds; empty: not known, or no pause

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
    snapshot_delete # left by a fork that was killed
    power_require_proof
  fi
  if [[ ${fork_way} == live ]]; then
    fork_save
  fi
}

# A snapshot is cloned only on LVM-thin. Proxmox would do it on RBD and BTRFS, too. But on RBD
# neither the snapshot nor the VM could be removed while a copy exists, and of BTRFS it takes the
# disk in its current state (clone_image of its storage library, to 9.1), on which a saved memory
# ruins all files.
fork_find_way() {
  local key storage why types='' known=' '
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
    probe_require_storage "${storage}"
    types+="${types:+, }'${storage}' (${probe_storage_type})"
    case ${probe_storage_type} in
      lvmthin) continue ;;
      rbd) why='where a snapshot cannot be removed while copies of it are there, nor its VM' ;;
      btrfs) why='where Proxmox clones the disk as it is by then, and not as it was saved' ;;
      *) why='of which Proxmox clones no snapshot' ;;
    esac
    fork_way=disk
    fork_why="its disk ${key} is on storage '${storage}' (${probe_storage_type}), ${why}: LVM-thin can do it"
    return 0
  done
  if ! command -v nft >/dev/null; then
    fork_way=disk
    fork_why="nft is not on ${HOSTNAME}, and without it a copy would speak as the VM for a moment: apt-get install nftables"
    return 0
  fi
  fork_why="storage ${types} clones a snapshot with memory"
}

# Takes the snapshot with memory, and measures the pause. The VM was paused no longer than from one
# question to its agent until the answer to the next. The agent is asked a hundred times a second,
# or as often as a busy host allows, on its QEMU socket, before, while and after the snapshot is
# taken. An answer of the guest without an end does not count, and no wait is longer than a minute.
fork_save() {
  if [[ ${dry_run} == no ]]; then
    : >"${run_dir}/forking"
    # shellcheck disable=SC2016 # perl's variables, not the shell's
    run_start watch 3700 perl -MSocket -MTime::HiRes=clock_gettime,CLOCK_MONOTONIC,usleep -e '
      use strict; use warnings;
      my ($dir, $id, $flag) = @ARGV;
      my ($most, $more, $asked, $rest, $agent) = (0, 1, 0, "");
      chdir $dir and socket $agent, AF_UNIX, SOCK_STREAM, 0 and connect $agent, sockaddr_un("$id.qga") or die "$dir/$id.qga: $!\n";
      $SIG{ALRM} = sub { die "the agent is silent\n" };
      my $ask = qq(\xff{"execute":"guest-sync-delimited","arguments":{"id":$$}}\n);
      while ($more) {
        $more = -e $flag;
        my $asks = clock_gettime(CLOCK_MONOTONIC);
        syswrite $agent, $ask;
        alarm 60;
        until ($rest =~ s/^[^\n]*\n//) {
          sysread $agent, $rest, 4096, length $rest or die "the agent is gone\n";
          length $rest < 65536 or die "the agent says no end\n";
        }
        my $took = clock_gettime(CLOCK_MONOTONIC) - $asked;
        $most = $took if $asked and $took > $most;
        $asked or open my $on, ">", "$flag.on";
        ($asked, $ask) = ($asks, qq({"execute":"guest-ping"}\n));
        usleep 10000 if $more;
      }
      $most or die "the agent was asked too late\n";
      printf "%d\n", 1000 * $most + 0.5;' -- "${LINUS_QEMU_DIR:-/run/qemu-server}" "${vm_id}" "${run_dir}/forking"
    local -i looks
    for ((looks = 0; looks < 50; looks += 1)); do
      if [[ -e ${run_dir}/forking.on ]] || ! run_lives watch; then
        break
      fi
      run_pause 0.05
    done
    if [[ ! -e ${run_dir}/forking.on ]]; then
      rm -f -- "${run_dir}/forking" # the save that begins now is not measured
    fi
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
      log_warn "how long VM ${vm_id} was paused is not known: ${run_said}"
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
