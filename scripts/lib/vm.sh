# shellcheck shell=bash
# One VM on this node: its config, and whose it is. lib/destroy.sh destroys it.
#
# A VM is linus's when its description carries linus-job=<uuid>, linus-owner=<installation id> and
# linus-vm=<its own ID>. A clone and a restored backup have everything of a VM, its description too,
# under an ID of their own: they belong to whoever made them. The caller says in vm_job, vm_owner
# and vm_name which VM is meant. A clone takes a description but no tags, so until its tags are set
# it also carries linus-state=cloning. A template of linus also carries linus-template=1, and is
# touched only if vm_kind (vm when not set) is template. The holder of a volume (lib/volume.sh)
# carries linus-volume=<name>, and is touched only if vm_kind is volume. A checkpoint
# (lib/checkpoint.sh) carries linus-checkpoint=<ID>, and is a VM here, though Proxmox calls it a
# template.

source "${BASH_SOURCE[0]%/*}/json.sh"
source "${BASH_SOURCE[0]%/*}/validate.sh"

vm_id='' # the VM's ID, or the ID that is tried while one is made
vm_job='' vm_owner='' vm_name=''
vm_egress='' # the description's word that limits its network (lib/egress.sh); empty: no limit

# Reads which existing VM is meant from the inputs.
vm_read_inputs() {
  vm_id=${VM_ID:-} vm_name=${VM_NAME:-} vm_job=${LINUS_JOB:-} vm_owner=${LINUS_OWNER:-}
  validate_number VM_ID "${vm_id}" 100 999999999
  validate_name VM_NAME "${vm_name}"
  validate_uuid LINUS_JOB "${vm_job}"
  validate_uuid LINUS_OWNER "${vm_owner}"
}

vm_marker() { # vm_description: what goes into the description
  vm_description="linus-job=${vm_job} linus-owner=${vm_owner}${vm_id:+ linus-vm=${vm_id}}${vm_egress:+ ${vm_egress}}"
}

# Reads the config as it runs, or a snapshot's with today's description, without the changes that
# wait for a restart. It reads the file, as pmxcfs shows those of all nodes to every node: `qm config`
# refuses what an unfinished destroy left.
#   vm_state   present; moved: another node has a VM of that ID (vm_moved_to); absent: no node has;
#              unknown: it could not be read, which does not mean that anything is gone
#   vm_digest  of the file as it was read, by which Proxmox knows it, too
#   vm_config  its keys and values, the description's words in one line
#   vm_words   the same words, a blank before and after each
#   vm_asked   the ID that was asked for
#   vm_copy_of the ID that the words name, if that is another: the config is a copy's
vm_read() { # <vmid> [<node>: one other than this, or empty] [<snapshot>]
  local key value
  local -r named=' linus-vm=([0-9]+) '
  run_read 30 vm_read_file "${LINUS_PVE_DIR:-/etc/pve}" "$1" "${2:-}" "${3:-}"
  vm_asked=$1
  vm_state=unknown
  vm_moved_to='' vm_digest=''
  vm_copy_of=''
  declare -gA vm_config=()
  vm_words=' '
  if ((run_rc != 0)); then
    return 0
  fi
  {
    read -r vm_state vm_digest vm_moved_to
    while read -r key value; do
      vm_config[${key}]=${value}
    done
  } <<<"${run_out}"
  vm_digest=${vm_digest#-}
  vm_words=" ${vm_config[description]:-} "
  if [[ ${vm_words} =~ ${named} && ${vm_words} != *" linus-vm=$1 "* ]]; then
    vm_copy_of=${BASH_REMATCH[1]}
  fi
}

# The digest in the first line covers the lock, so it is left out.
vm_find_sum() { # vm_sum: sha256 of the config just read, whatever lock it has
  vm_sum=$(sed -e '1s/ .*//' -e '/^lock /d' <<<"${run_out}")
  vm_sum=$(sha256sum <<<"${vm_sum}")
  vm_sum=${vm_sum%% *}
}

# Does the same for callers that read back what they have just changed, and look for what must be
# there. For a file that is where it should be and holds nothing unusual, no perl is started. What
# cannot be read to its end shows fewer keys here, so it proves nothing for a destroy, and has no
# digest (vm_digest is empty).
vm_look() { # <vmid>
  local vm_glance=yes
  vm_read "$1"
}

vm_glance_file() { # <directory of pmxcfs> <vmid>; ends the shell if it could tell
  local line description=''
  local -a lines
  local -A conf=()
  local -r key='^([a-z][a-z_-]*[0-9]*):[[:space:]]*([^[:space:]].*)$' escape='^([^%]*)%([2-6][0-9A-Fa-f]|7[0-9A-Ea-e])(.*)$'
  if [[ ! -L $1/qemu-server || ! -e $1/.members ]] || ! { mapfile -n 1000 lines <"$1/qemu-server/$2.conf"; } 2>/dev/null; then
    return 0
  fi
  if ((${#lines[@]} == 0 || ${#lines[@]} == 1000)) || [[ ${lines[-1]} != *$'\n' ]]; then
    return 0
  fi
  for line in "${lines[@]%$'\n'}"; do
    if ((${#line} > 4096)) || [[ ${line} == *[^[:print:]]* ]]; then
      return 0
    elif [[ ${line} == '['*']' ]]; then
      break
    elif [[ ${line} == '#'* ]]; then
      line=${line#'#'}
      while [[ ${line} =~ ${escape} ]]; do
        description+=${BASH_REMATCH[1]}
        printf -v line '%b' "\\x${BASH_REMATCH[2]}"
        description+=${line}
        line=${BASH_REMATCH[3]}
      done
      if [[ ${line} == *%* ]]; then
        return 0
      fi
      description+="${line} "
    elif [[ ${line} =~ ${key} && ${BASH_REMATCH[1]} != @(description|cipassword) ]]; then
      conf[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]}
    elif [[ -n ${line} ]]; then
      return 0
    fi
  done
  read -ra lines <<<"${description}"
  if ((${#lines[@]} > 0)); then
    conf[description]=${lines[*]}
  fi
  printf 'present -\n'
  for line in "${!conf[@]}"; do
    printf '%s %s\n' "${line}" "${conf[${line}]}"
  done
  exit 0
}

# Prints `present SHA1`, `moved SHA1 NODE` or `absent`, then a line `KEY VALUE` for each key. A file
# counts as missing only if its directory is that of pmxcfs, which has files of its own, and the
# node has quorum: without quorum, another node may have the VM now. A line that is not Proxmox's
# becomes a key `unparsed`.
vm_read_file() { # <directory of pmxcfs> <vmid> <node, or empty> <snapshot, or empty>
  if [[ ${vm_glance:-no} == yes ]]; then
    vm_glance_file "$1" "$2"
  fi
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  exec perl -e '
    use strict;
    my ($root, $id, $node, $snapshot) = @ARGV;
    chdir $root or die "$root: $!\n";
    my $own = length $node ? "nodes/$node/qemu-server" : readlink "qemu-server";
    die "$root is not the cluster file system of Proxmox VE (pmxcfs), or it is not mounted\n" unless $own and -e ".members" and -d $own;
    my ($text, $where);
    sub others { opendir my $nodes, "nodes" or die "$root/nodes: $!\n"; return map { "nodes/$_/qemu-server" } sort grep { !/^\./ } readdir $nodes }
    SEARCH: for (1, 2) { # one look may miss a VM that moves just then
      for my $dirs (sub { $own }, \&others) {
        for my $dir ($dirs->()) {
          if (open my $in, "<", "$dir/$id.conf") {
            $where = $dir;
            defined(read $in, $text, 1 << 21) or die "$root/$dir/$id.conf: $!\n";
            last SEARCH;
          }
          $! == 2 or die "$root/$dir/$id.conf: $!\n"; # no such file
        }
      }
    }
    if (!defined $text) {
      open my $in, "<", ".members" or die "$root: pmxcfs is gone\n";
      my $members = do { local $/; <$in> } // "";
      die "the cluster has no quorum: whether another node has VM $id is not known\n" if $members =~ /"quorate"\s*+:\s*+(?!"?1\b)/;
      print "absent\n";
      exit;
    }
    my ($description, $in, %conf) = ("", "");
    for my $line (split /\n/, $text) {
      if ($line =~ /^\[(.*)\]\s*$/) {
        last unless length $snapshot and $in ne $snapshot;
        ($in, %conf) = ($1);
        next;
      }
      next if length $in and ($in ne $snapshot or $line =~ /^(#|description:)/);
      if ($line =~ /^#(.*)/ or $line =~ /^description:(.*)/) {
        $description .= ($1 =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger) . "\n";
      } elsif ($line =~ /^([a-z][a-z_-]*[0-9]*):\s*(\S.*)/) {
        $conf{$1} = $1 eq "cipassword" ? "hidden" : $2;
      } elsif ($line =~ /\S/) {
        $conf{unparsed} = $line;
      }
    }
    %conf = () if $in ne $snapshot; # there is none of that name
    require Digest::SHA;
    my $sha1 = Digest::SHA::sha1_hex($text);
    my $answer = $where eq $own ? "present $sha1\n" : "moved $sha1 " . ($where =~ m{^nodes/([^/]+)})[0] . "\n";
    $conf{description} = join " ", split " ", $description if length $description;
    for my $key (sort keys %conf) {
      $conf{$key} =~ tr/\0-\x1f\x7f/ /;
      $answer .= "$key $conf{$key}\n";
    }
    die "$root/$where/$id.conf is too long\n" if length $answer > 60000;
    print $answer;' -- "$@"
}

# Tells whether the config just read is that of the VM meant. vm_doubt: empty when proven, else what
# speaks against it.
vm_prove() {
  vm_doubt=''
  if [[ ${vm_state} == moved ]]; then
    vm_doubt="node '${vm_moved_to}' has a VM of that ID, and only there it can be looked at and destroyed"
  elif [[ ${vm_state} != present ]]; then
    vm_doubt="its config could not be read"
  elif [[ ${vm_words} != *" linus-job=${vm_job} "* ]]; then
    vm_doubt="its description does not carry linus-job=${vm_job}"
  elif [[ ${vm_words} != *" linus-owner=${vm_owner} "* ]]; then
    vm_doubt="its description does not carry linus-owner=${vm_owner}"
  elif [[ -n ${vm_copy_of} ]]; then
    vm_doubt="its description carries linus-vm=${vm_copy_of}: it is a copy of that VM"
  elif [[ ${vm_words} != *" linus-vm=${vm_asked} "* ]]; then
    vm_doubt="its description does not carry linus-vm=${vm_asked}"
  elif [[ ${vm_config[name]:-} != "${vm_name}" ]]; then
    vm_doubt="its name is '${vm_config[name]:-}', not '${vm_name}'"
  elif [[ ${vm_kind:-vm} == vm && ${vm_config[template]:-0} != 0 && ${vm_words} != *' linus-checkpoint='* ]]; then
    vm_doubt="it is a template"
  elif [[ ${vm_kind:-vm} == template && ${vm_config[template]:-0} != 1 ]]; then
    vm_doubt="it is not a template"
  elif [[ ${vm_kind:-vm} == template && ${vm_words} != *" linus-template=1 "* ]]; then
    vm_doubt="its description does not carry linus-template=1"
  elif [[ ${vm_kind:-vm} == volume && ${vm_words} != *' linus-volume='* ]]; then
    vm_doubt="its description does not carry linus-volume="
  elif [[ ${vm_kind:-vm} != volume && ${vm_words} == *' linus-volume='* ]]; then
    vm_doubt="it holds a volume"
  elif [[ ${vm_words} != *" linus-state=cloning "* && ";${vm_config[tags]:-};" != *[\;,\ ]linus[\;,\ ]* ]]; then
    vm_doubt="it does not carry the tag 'linus'"
  fi
}

# Tells whether the VM runs, in the way Proxmox itself does: QEMU writes its process ID to a file,
# whose name is among the process's arguments. Reading that starts no tool.
vm_see_process() { # <vmid>; vm_process: running, stopped or unknown
  local -r dir=${LINUS_QEMU_DIR:-/run/qemu-server}
  local pid='' IFS=$'\x1f'
  local -a words=()
  vm_process=unknown
  if [[ ! -d ${dir} ]] || ! { [[ ! -e ${dir}/$1.pid ]] || IFS= read -r pid <"${dir}/$1.pid"; } 2>/dev/null; then
    return 0
  fi
  vm_process=stopped
  if [[ ${pid} =~ ^[1-9][0-9]{0,9}$ ]]; then
    { mapfile -d '' -t words <"/proc/${pid}/cmdline"; } 2>/dev/null || :
  fi
  if [[ "${IFS}${words[*]}${IFS}" =~ ${IFS}-pidfile${IFS}[^${IFS}]*/qemu-server/"$1.pid"${IFS} ]]; then # QEMU has a hundred words
    vm_process=running
  fi
}

# qm is asked only if the process is not as expected.
vm_expect_status() { # <vmid> <running|stopped>; vm_status, as vm_read_status sets it
  vm_see_process "$1"
  vm_status=${vm_process}
  if [[ ${vm_process} != "$2" ]]; then
    vm_read_status "$1"
  fi
}

# For a VM that is a resource of the HA manager, qm start, stop and shutdown only ask that manager,
# which looks every ten seconds. This waits for it, three minutes at most. vm_ha: yes if the manager
# was asked; vm_status as vm_expect_status sets it.
vm_await_status() { # <vmid> <running|stopped> <what qm said>
  local -i looks
  vm_ha=no
  if [[ $3 == *'Requesting HA '* ]]; then
    vm_ha=yes
  fi
  vm_expect_status "$1" "$2"
  for ((looks = 0; looks < 90; looks += 1)); do
    if [[ ${vm_ha} == no || ${vm_status} == "$2" ]]; then
      return 0
    fi
    run_pause 2
    vm_see_process "$1"
    if [[ ${vm_process} == @("$2"|unknown) ]]; then
      vm_expect_status "$1" "$2"
    fi
  done
}

# Says in vm_ha_failure, and vm_ha_remedy, that the HA manager has not done it.
vm_blame_ha() { # <vmid> <start or stop>
  vm_ha_failure="the HA manager, whose resource it is, was asked to $2 it, and has not done so in three minutes"
  vm_ha_remedy="see that it works (ha-manager status; systemctl status pve-ha-crm pve-ha-lrm), or take the VM out of it (ha-manager remove vm:$1), then try again"
}

vm_read_status() { # <vmid>; vm_status: running, stopped, ... or unknown
  run_read 60 qm status "$1"
  vm_status=unknown
  if ((run_rc == 0)) && [[ ${run_out} =~ ^status:\ ([a-z-]+) ]]; then
    vm_status=${BASH_REMATCH[1]}
  fi
}

# Reads the size of a drive from its config line, in KiB; 0 if the line has none.
vm_disk_kib() { # <drive's value>; vm_kib
  vm_kib=0
  if [[ $1 =~ (^|,)size=([0-9]+)([KMGT]?) ]]; then
    vm_kib=${BASH_REMATCH[2]}
    case ${BASH_REMATCH[3]} in
      K) ;;
      M) vm_kib=$((vm_kib * 1024)) ;;
      G) vm_kib=$((vm_kib * 1024 * 1024)) ;;
      T) vm_kib=$((vm_kib * 1024 * 1024 * 1024)) ;;
      *) vm_kib=$((vm_kib / 1024)) ;;
    esac
  fi
}

# Sums what the disks of the config just read, and so a full copy of them, may take: vm_disks_mib.
vm_measure_disks() {
  local key
  vm_disks_mib=0
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^(scsi|virtio|sata|ide|efidisk|tpmstate)[0-9]+$ && ${vm_config[${key}]} != *media=cdrom* ]]; then
      vm_disk_kib "${vm_config[${key}]}"
      vm_disks_mib=$((vm_disks_mib + vm_kib / 1024))
    fi
  done
}

# Finds what of the config just read a copy that continues from the VM's memory cannot have, or
# would share with the VM. vm_uncopyable: its key; empty if there is none.
vm_find_uncopyable() {
  local key
  vm_uncopyable=''
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^(hostpci|usb|virtiofs|ivshmem|parallel|net[1-9]|tpmstate) ]]; then
      vm_uncopyable=${key}
      return 0
    fi
  done
}

# Finds the drive that the VM boots from: the first of its boot order that is a disk.
vm_find_boot_disk() { # vm_boot_disk: such as scsi0
  local drive
  vm_boot_disk=''
  local order=${vm_config[boot]:-}
  order=${order#order=}
  for drive in ${order//;/ } "${vm_config[bootdisk]:-scsi0}" scsi0 virtio0 sata0 ide0; do
    if [[ ${drive} =~ ^(scsi|virtio|sata|ide)[0-9]+$ && -n ${vm_config[${drive}]:-} &&
      ${vm_config[${drive}]} != *media=cdrom* && ${vm_config[${drive}]} != *cloudinit* ]]; then
      vm_boot_disk=${drive}
      return 0
    fi
  done
}

vm_find_storages() { # vm_storages: those of its drives, separated by blanks; vm_volumes: its own volumes on them
  local key
  vm_storages='' vm_volumes=''
  for key in "${!vm_config[@]}"; do
    if [[ ${key} =~ ^((scsi|virtio|sata|ide|efidisk|tpmstate|unused)[0-9]+|vmstate)$ &&
      ${vm_config[${key}]} =~ ^([A-Za-z][A-Za-z0-9_.-]*): && " ${vm_storages} " != *" ${BASH_REMATCH[1]} "* ]]; then
      vm_storages+="${vm_storages:+ }${BASH_REMATCH[1]}"
    fi
    if [[ ${key} =~ ^([a-z]+[0-9]+|vmstate)$ && ${vm_config[${key}]} =~ ^([A-Za-z][A-Za-z0-9_.-]*:([^,]*/)?(vm|base)-"${vm_asked:-}"-[^,/]*) ]]; then
      vm_volumes+="${vm_volumes:+ }${BASH_REMATCH[1]}"
    fi
  done
}

# Tells whether the VM of the config just read is off with its memory on the disk. Proxmox calls it
# stopped.
vm_find_suspended() { # <its status>; vm_suspended: yes or no
  vm_suspended=no
  if [[ $1 == stopped && -n ${vm_config[vmstate]:-} && ${vm_config[lock]:-suspended} == suspended ]]; then
    vm_suspended=yes
  fi
}

# vm_busy: yes when a task of Proxmox may be at work on the VM, also when that cannot be told. A
# clone's task has the ID of its template, so any clone may be this VM's, and the backup of several
# VMs has no ID. The list also has tasks that have ended, or were killed: a task lives while its
# process does, which its UPID names by ID and start. Proxmox shows 50 tasks of the list unless it
# is asked for more, and the newest come last.
vm_find_tasks() { # <vmid> <node>
  local line upid ended
  local -r form='^UPID:[^:]+:([0-9A-Fa-f]+):([0-9A-Fa-f]+):[0-9A-Fa-f]+:([^:]+):([^:]*):'
  vm_busy=yes
  run_ask pvesh get "/nodes/$2/tasks" --source active --limit 100000 --output-format json
  json_rows read upid endtime
  if ((run_rc != 0 || json_rc != 0)); then
    return 0
  fi
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r upid ended <<<"${line}"
    if [[ ! ${upid} =~ ${form} ]]; then
      return 0
    fi
    local type=${BASH_REMATCH[3]} id=${BASH_REMATCH[4]} start=$((16#${BASH_REMATCH[2]}))
    stat_read "$((16#${BASH_REMATCH[1]}))"
    if [[ -z ${ended} && ${stat_start} == "${start}" && (${id} == "$1" || ${type} == qmclone || ${type}${id} == vzdump) ]]; then
      return 0
    fi
  done
  vm_busy=no
}

# Locks and network rules lie in a directory that is only root's: in one that others may write to
# (/run/lock), they could hold a lock, or put a link in its place.
vm_check_lock_dir() { # <directory>, made if it is missing; vm_reason: why it will not do
  vm_reason=''
  if [[ ${vm_lock_dir:-} == "$1" ]]; then # seen before
    return 0
  fi
  if [[ ! -e $1 ]]; then
    mkdir -m 0700 -- "$1" 2>/dev/null || :
  fi
  run_read 10 run_alone stat -c %a -- "$1"
  vm_lock_dir=$1
  if [[ -L $1 || ! -d $1 || ! -O $1 || ! ${run_out} =~ ^[0-7]+$ ]] || ((8#${run_out} & 8#22)); then
    vm_lock_dir=''
    vm_reason="could not take a lock in $1: it must be a directory of this user's that nobody else may write to"
  fi
}
