# shellcheck shell=bash
# What pmxcfs reports of the cluster: its nodes, its quorum, and the VMs and containers of all
# nodes. Proxmox's own tools rely on it, it is never late, and reading it starts none of them.

source "${BASH_SOURCE[0]%/*}/json.sh"

# Reads the nodes, and which of them is this one.
#   cluster_node    this node's name; empty when pmxcfs does not tell
#   cluster_quorum  yes, no, or none where there is no cluster
#   cluster_nodes   all of them, in order; cluster_online has 1 or 0 for each, and
#                   cluster_ip its address, empty when pmxcfs does not tell
cluster_read() { # [vms: cluster_vms, too]; cluster_rc: 0 when it could be read, else run_said says why
  local line name online ip
  local -i nodes
  cluster_node='' cluster_quorum=none cluster_nodes=()
  declare -gA cluster_online=() cluster_ip=()
  cluster_perl members ${1:+"$1"}
  cluster_rc=${run_rc}
  if ((cluster_rc != 0)); then
    return 0
  fi
  run_lines read
  IFS=$'\x1f' read -r cluster_node cluster_quorum nodes <<<"${run_lines[0]}"
  for line in "${run_lines[@]:1:nodes}"; do
    IFS=$'\x1f' read -r name online ip <<<"${line}"
    cluster_nodes+=("${name}")
    cluster_online[${name}]=${online}
    cluster_ip[${name}]=${ip}
  done
  if [[ ${1:-} == vms ]]; then
    cluster_vms=("${run_lines[@]:nodes+1}")
  fi
}

# Lists all VMs and containers in cluster_vms, a line `ID NODE KIND TEMPLATE NAME` each. KIND is
# qemu-server or lxc, TEMPLATE is 1 or 0 (0 also for a checkpoint, which only Proxmox takes for a
# template), and NAME may be empty. A config that cannot be read still holds its ID.
cluster_list_vms() { # run_rc, cluster_vms
  cluster_perl vms
  run_lines read
  cluster_vms=("${run_lines[@]}")
}

# Prints the nodes as in .members (a host without a cluster has no list): "NODE\x1fQUORUM\x1fNUMBER"
# for this node, then "NODE\x1fONLINE\x1fADDRESS" for each node. Prints the VMs for the part vms.
cluster_perl() { # <members or vms...>; run_rc, run_out
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 60 run_alone perl -e "${json_reader}"'
    my ($root, @parts) = @ARGV;
    chdir $root or die "$root: $!\n";
    -e ".members" and -d "nodes" or die "$root is not the cluster file system of Proxmox VE (pmxcfs), or it is not mounted\n";
    sub names { opendir my $dir, shift or return; return sort grep { !/^\./ } readdir $dir }
    sub members {
      open my $in, "<", ".members" or die "$root/.members: $!\n";
      defined(read $in, my $text, 1 << 24) or die "$root/.members: $!\n";
      my $doc = decode($text);
      ref $doc eq "HASH" and text($doc->{nodename}) =~ /^[A-Za-z0-9.-]+$/ or die "$root/.members does not name this node\n";
      my ($own, $cluster) = @$doc{"nodename", "cluster"};
      my $nodes = $doc->{nodelist} // {$own => {online => 1}};
      ref $nodes eq "HASH" or die "the list of nodes in $root/.members cannot be read\n";
      my @names = sort grep { /^[A-Za-z0-9.-]+$/ and ref $nodes->{$_} eq "HASH" } keys %$nodes;
      print join("\x1f", $own, !ref $cluster ? "none" : text($cluster->{quorate}) eq "1" ? "yes" : "no", scalar @names), "\n";
      for my $name (@names) {
        my $ip = text($nodes->{$name}{ip});
        print join("\x1f", $name, text($nodes->{$name}{online}) eq "1" ? 1 : 0, $ip =~ /^[0-9A-Fa-f.:]+$/ ? $ip : ""), "\n";
      }
    }
    sub vms {
      for my $kind ("qemu-server", "lxc") {
        for my $node (names("nodes")) {
          for my $id (map { /^(\d+)\.conf$/ } names("nodes/$node/$kind")) {
            my ($file, $text, $name, $template, $checkpoint) = ("nodes/$node/$kind/$id.conf", "", "", 0, 0);
            if (open my $in, "<", $file) {
              read $in, $text, 1 << 21;
            } elsif ($! == 2 and !-l $file) { # no such file
              next;
            }
            for my $line (split /\n/, $text // "") {
              last if $line =~ /^\[.*\]\s*$/;
              $name ||= $1 if $line =~ ($kind eq "lxc" ? qr/^hostname:\s*(\S+)/ : qr/^name:\s*(\S+)/);
              $template = 1 if $line =~ /^template:\s*1\s*$/;
              $checkpoint = 1 if $line =~ /^(?:#|description:).*linus-checkpoint(?:=|%3D)/;
            }
            $template = 0 if $checkpoint;
            print join(" ", $id, $node, $kind, $template, substr $name, 0, 255) =~ tr/\0-\x1f\x7f/ /r, "\n";
          }
        }
      }
      -e ".members" or die "$root: pmxcfs is gone\n";
    }
    for my $part (@parts) { $part eq "vms" ? vms() : members() }' -- "${LINUS_PVE_DIR:-/etc/pve}" "$@"
}
