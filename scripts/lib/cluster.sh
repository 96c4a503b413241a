# shellcheck shell=bash
# What pmxcfs tells of the cluster: its nodes, its quorum, and the VMs and
# containers of all nodes. It is what Proxmox's own tools go by, it is never
# late, and reading it starts none of them.

source "${BASH_SOURCE[0]%/*}/json.sh"
source "${BASH_SOURCE[0]%/*}/run.sh"

# The nodes, and this one among them.
#   cluster_node    this node's name; empty when pmxcfs does not tell
#   cluster_quorum  yes, no, or none where there is no cluster
#   cluster_nodes   all of them, in order; cluster_online has 1 or 0 for each, and
#                   cluster_ip its address, empty when pmxcfs does not tell
cluster_read() { # cluster_rc: 0 when it could be read, else run_said says why
  local line name online ip
  cluster_node='' cluster_quorum=none cluster_nodes=()
  declare -gA cluster_online=() cluster_ip=()
  run_read 30 cat -- "${LINUS_PVE_DIR:-/etc/pve}/.members"
  cluster_rc=${run_rc}
  if ((cluster_rc != 0)); then
    return 0
  fi
  json_members read
  cluster_rc=${json_rc}
  if ((cluster_rc != 0)); then
    return 0
  fi
  IFS=$'\x1f' read -r cluster_node cluster_quorum <<<"${json_lines[0]}"
  for line in "${json_lines[@]:1}"; do
    IFS=$'\x1f' read -r name online ip <<<"${line}"
    cluster_nodes+=("${name}")
    cluster_online[${name}]=${online}
    cluster_ip[${name}]=${ip}
  done
}

# All VMs and containers, in cluster_vms: a line `ID NODE KIND TEMPLATE NAME` each,
# where KIND is qemu-server or lxc, TEMPLATE 1 or 0 (also for a checkpoint, which only
# Proxmox takes for one), and NAME may be empty. A config that cannot be read holds its ID
# all the same.
cluster_list_vms() { # run_rc, cluster_vms
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 60 perl -MFile::Glob=:bsd_glob -e '
    use strict; use warnings;
    my $root = shift;
    chdir $root or die "$root: $!\n";
    -e ".members" and -d "nodes" or die "$root is not the cluster file system of Proxmox VE (pmxcfs), or it is not mounted\n";
    for my $file (bsd_glob("nodes/*/{qemu-server,lxc}/*.conf", GLOB_BRACE)) {
      my ($node, $kind, $id) = $file =~ m{^nodes/([^/]+)/([^/]+)/(\d+)\.conf$} or next;
      my ($text, $name, $template, $checkpoint) = ("", "", 0, 0);
      if (open my $in, "<", $file) {
        read $in, $text, 1 << 21;
      } elsif ($!{ENOENT} and !-l $file) {
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
    -e ".members" or die "$root: pmxcfs is gone\n";' -- "${LINUS_PVE_DIR:-/etc/pve}"
  run_lines read
  cluster_vms=("${run_lines[@]}")
}
