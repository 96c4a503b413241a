# shellcheck shell=bash
# The snapshots of a VM, from the sections of its config. Only for sizes a tool is started.

source "${BASH_SOURCE[0]%/*}/vm.sh"

# Prints each snapshot of the VM meant as one line, oldest first:
#   LINUS_SNAPSHOT:name=<name> time=<seconds since 1970> parent=<name> memory=<yes|no>
#                  memory_bytes=<n> disk_bytes=<n> current=<yes|no> whole=<yes|no>
# Without parent, the snapshot has none; without a size, the size is not known. current is the
# snapshot that the disk continues from. A snapshot that is not whole was left by a take or a
# removal that did not finish.
snapshots_show() {
  local line name since parent state memory disks current whole has
  local -a lines
  snapshots_read "${LINUS_PVE_DIR:-/etc/pve}"
  if ((run_rc != 0)); then
    result_fail vm "could not list the snapshots of VM ${vm_id}: ${run_said}" "look at: qm listsnapshot ${vm_id}"
  fi
  run_lines read
  lines=("${run_lines[@]}")
  declare -gA snapshots_sizes=() snapshots_asked=()
  for line in "${lines[@]}"; do
    IFS=$'\x1f' read -r name since parent state memory disks current <<<"${line}"
    whole=yes has=no
    if [[ -n ${state} ]]; then
      whole=no
    fi
    if [[ -n ${memory} ]]; then
      has=yes
    fi
    snapshots_measure_memory "${memory}"
    snapshots_measure_disks "${name}" "${disks}"
    line="name=${name} time=${since}${parent:+ parent=${parent}} memory=${has}"
    result_line SNAPSHOT "${line}${snapshots_memory:+ memory_bytes=${snapshots_memory}}${snapshots_disk:+ disk_bytes=${snapshots_disk}} current=${current} whole=${whole}"
  done
}

# Prints NAME TIME PARENT STATE VMSTATE DISKS CURRENT of each snapshot, separated by \x1f. A disk is
# its storage's type, its place in the storage's own names (volume group or pool), and the volume.
# The proof is repeated here: the sections are those of the file that names the job.
snapshots_read() { # <directory of pmxcfs>; run_rc
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 30 perl -e '
    use strict; use warnings;
    my ($root, $id, $job) = @ARGV;
    sub slurp { my $file = shift; open my $in, "<", $file or return undef; defined(read $in, my $text, 1 << 21) or return undef; return $text }
    my $text = slurp("$root/qemu-server/$id.conf") // die "$root/qemu-server/$id.conf: $!\n";
    my ($store, %storages);
    for (split /\n/, slurp("$root/storage.cfg") // "") {
      if (/^(lvmthin|zfspool):\s*(\S+)/) { $store = $2; $storages{$store}{type} = $1 }
      elsif (/^\S/) { undef $store }
      elsif (defined $store and /^\s+(?:vgname|pool)\s+([A-Za-z0-9+_.\/-]+)\s*$/) { $storages{$store}{in} = $1 }
    }
    my ($head, $current, $now, %of) = ("", "");
    for my $line (split /\n/, $text) {
      if ($line =~ /^\[(.*)\]\s*$/) {
        $now = $1 =~ /^([A-Za-z][A-Za-z0-9_-]{1,39})\z/ && lc $1 ne "pending" ? $of{$1} = {disks => []} : {};
      } elsif (!$now) {
        $head .= $line =~ /^#/ ? $line =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger : "";
        $current = $1 if $line =~ /^parent:\s*([A-Za-z0-9_-]+)\s*$/;
      } elsif ($line =~ /^(snaptime|parent|snapstate|vmstate):\s*([A-Za-z0-9_.:\/-]+)\s*$/) {
        $now->{$1} = $2;
      } elsif ($line =~ /^(?:scsi|virtio|sata|ide|efidisk|tpmstate)\d+:\s*([A-Za-z][A-Za-z0-9_.-]*):(?:[^,\s\/]+\/)?([A-Za-z0-9_.-]+)(?:,|\s*$)/ and $line !~ /media=cdrom/) {
        my $on = $storages{$1} // {};
        push @{$now->{disks}}, ($on->{type} // "unknown") . ":" . ($on->{in} // "") . ":$2";
      }
    }
    die "its config is another VM\x27s now\n" unless index($head, "linus-job=$job") >= 0;
    for my $name (sort { ($of{$a}{snaptime} // 0) <=> ($of{$b}{snaptime} // 0) || $a cmp $b } keys %of) {
      my $s = $of{$name};
      my $time = ($s->{snaptime} // "") =~ /^(\d{1,12})\z/ ? $1 : 0;
      print join("\x1f", $name, $time, $s->{parent} // "", $s->{snapstate} // "", $s->{vmstate} // "",
        join(" ", @{$s->{disks}}), $name eq $current ? "yes" : "no"), "\n";
    }' -- "$1" "${vm_id}" "${vm_job}"
}

# Reads the size of a volume with a snapshot's memory: all of it is taken.
snapshots_measure_memory() { # <volume, or empty>; snapshots_memory: bytes, or empty
  local -r storage=${1%%:*}
  local line volume format type size
  snapshots_memory=''
  if [[ -z $1 ]]; then
    return 0
  elif [[ -z ${snapshots_asked[${storage}]:-} ]]; then
    snapshots_asked[${storage}]=yes
    run_read 60 pvesm list "${storage}" --vmid "${vm_id}"
    run_lines read
    for line in "${run_lines[@]}"; do
      # shellcheck disable=SC2034 # format and type are passed over
      read -r volume format type size _ <<<"${line}"
      if [[ ${size} =~ ^[0-9]{1,18}$ ]]; then
        snapshots_sizes[${volume}]=${size}
      fi
    done
  fi
  snapshots_memory=${snapshots_sizes[$1]:-}
}

# Sums what the storage reports of a snapshot for all its disks: ZFS what would be free without it,
# LVM-thin what it maps, shared or not. No other storage reports it.
snapshots_measure_disks() { # <snapshot> <disks>; snapshots_disk: bytes, or empty
  local disk type in volume key where
  local -i sum=0
  snapshots_disk=''
  for disk in $2; do
    IFS=: read -r type in volume <<<"${disk}"
    case ${type} in
      lvmthin) key="${in}/snap_${volume}_$1" ;;
      zfspool) key="${in}/${volume}@$1" ;;
      *) return 0 ;;
    esac
    where="${type} ${in}"
    if [[ -z ${snapshots_asked[${where}]:-} ]]; then
      snapshots_asked[${where}]=yes
      "snapshots_ask_${type}" "${in}"
    fi
    if [[ -z ${snapshots_sizes[${key}]:-} ]]; then
      return 0
    fi
    sum+=${snapshots_sizes[${key}]}
  done
  if [[ -n $2 ]]; then
    snapshots_disk=${sum}
  fi
}

snapshots_ask_lvmthin() { # <volume group>
  local line name size percent
  run_read 30 lvs --noheadings --nosuffix --units b --options lv_name,lv_size,data_percent -- "$1"
  run_lines read
  for line in "${run_lines[@]}"; do
    read -r name size percent _ <<<"${line}"
    if [[ ${name} == snap_* && ${size} =~ ^[0-9]{1,16}$ && ${percent} =~ ^([0-9]{1,3})[.,]([0-9]{2}) ]]; then
      name="$1/${name}"
      snapshots_sizes[${name}]=$((size / 1000 * (10#${BASH_REMATCH[1]}${BASH_REMATCH[2]}) / 10))
    fi
  done
}

snapshots_ask_zfspool() { # <pool>
  local line name used
  run_read 30 zfs list -Hp -t snapshot -d 2 -o name,used -- "$1"
  run_lines read
  for line in "${run_lines[@]}"; do
    IFS=$'\t' read -r name used _ <<<"${line}"
    if [[ ${used} =~ ^[0-9]{1,18}$ ]]; then
      snapshots_sizes[${name}]=${used}
    fi
  done
}
