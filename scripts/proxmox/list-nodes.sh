#!/usr/bin/env bash
# Reports the nodes of this Proxmox VE cluster: which are online, how much memory each has and
# how much of it is configured for VMs and containers, its templates and storages, and the SSH
# host keys that the cluster has for it. It changes nothing, and starts one of Proxmox's tools.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there. A host without
# a cluster counts as the only node.
#
# Inputs (environment), all optional:
#   LINUS_NONCE    delimits the output
# Options: --help
#
# On stdout:
#   LINUS_VM_NODE:<node>               this node
#   LINUS_QUORUM:<yes|no|none>         none: there is no cluster
#   LINUS_NODE:name=<node> online=<0|1> ip=<address> memory=<MiB> used=<MiB> ha=<state>
#                one line for each node; what is not known is empty. ha is the HA manager's
#                state of the node, such as online or maintenance
#   LINUS_NODE_KEY:<node> <SSH host key>
#   LINUS_NODE_STORAGE:<node> <storage> <active|inactive> <shared|local>
#   LINUS_NODE_TEMPLATE:<node> <id> <name> <build> <sum> <shared|local> <has>
#                build: the UUID of its build or saving, - if linus did not make it;
#                sum: the sha256 of its config without lock; shared: all its disks are on
#                storages that every node has; has: what its build has installed, separated
#                by commas, - if that is not known
#   LINUS_NODE_VMS:<node> <id>:<MiB>:<status> ...   its VMs and containers, 500 on a line;
#                the status is unknown if Proxmox has not looked at it yet
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 the cluster's state
# cannot be read, 6 it does not respond in time, 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/cluster.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/validate.sh"

usage() {
  printf '%s\n' \
    'usage: list-nodes.sh [--help]' \
    'Reports the nodes of this cluster, their memory, templates and host keys.' >&2
}

read_nodes() {
  run_start resources 60 pvesh get /cluster/resources --output-format json
  # shellcheck disable=SC2119 # its argument can be left out
  cluster_read
  if ((cluster_rc != 0)); then
    result_fail config "could not read the cluster's status on ${HOSTNAME}: ${run_said}" 'run this on a Proxmox VE host, as root; look at: systemctl status pve-cluster'
  fi
  run_wait resources
  if ((run_rc == 124)); then
    result_fail timeout "could not read the cluster's resources on ${HOSTNAME}: ${run_said}" 'try again when the host has less to do; look at: pvesh get /cluster/resources'
  fi
  local -r said=${run_said}
  read_resources
  if ((run_rc != 0 || json_rc != 0)); then
    result_fail config "could not read the cluster's resources on ${HOSTNAME}: ${said}" 'look at: pvesh get /cluster/resources; systemctl status pve-cluster'
  fi
}

# json_lines: what is to be printed, a key and its value each, except for the nodes: `MEMORY NODE
# MIB USED HA`.
read_resources() {
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  json_perl resources '
    use Digest::SHA qw(sha256_hex);
    use File::Glob ":bsd_glob";
    my $root = shift @ARGV;
    my $name = qr/[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?/;
    my $uuid = qr/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/;
    sub mib { my $n = text(shift); return $n =~ /^[0-9]{1,18}(\.[0-9]+)?$/ ? int($n / 1048576) : "" }
    die "it is no list\n" unless ref $doc eq "ARRAY";
    my (%status, %shared, %vms);
    for my $row (grep { ref eq "HASH" } @$doc) {
      my ($type, $node) = map { text($row->{$_}) } qw(type node);
      next unless $node =~ /^$name$/;
      if ($type eq "node") {
        my $ha = text($row->{hastate});
        printf "MEMORY %s %s %s %s\n", $node, map { length ? $_ : "-" } mib($row->{maxmem}), mib($row->{mem}), $ha =~ /^[a-z_-]{1,32}$/ ? $ha : "";
      } elsif ($type eq "storage" and text($row->{storage}) =~ /^([A-Za-z][A-Za-z0-9_.-]*)$/) {
        my $storage = $1;
        $shared{$storage} = text($row->{shared}) eq "1";
        print "NODE_STORAGE $node $storage ", text($row->{status}) eq "available" ? "active" : "inactive", " ", $shared{$storage} ? "shared" : "local", "\n";
      } elsif ($type =~ /^(qemu|lxc)$/) {
        $status{text($row->{vmid})} = text($row->{status});
      }
    }
    chdir $root or die "$root: $!\n";
    for my $file (bsd_glob("nodes/*/{qemu-server,lxc}/*.conf", GLOB_BRACE)) {
      my ($node, $kind, $id) = $file =~ m{^nodes/([A-Za-z0-9.-]+)/([^/]+)/([0-9]{3,9})\.conf$} or next;
      my ($text, $disks, %conf) = ("", "");
      open my $in, "<", $file or next;
      defined(read $in, $text, 1 << 21) or next;
      for my $line (split /\n/, $text) {
        last if $line =~ /^\[.*\]\s*$/;
        $conf{build} = $1 if $line =~ /^(?:#|description:).*linus-template(?:=|%3D)1/ and $line =~ /linus-job(?:=|%3D)($uuid)/;
        $conf{has} = $1 if $conf{build} and $line =~ /linus-vm(?:=|%3D)$id\b/ and $line =~ /linus-has(?:=|%3D)([a-z]+(?:,[a-z]+)*)/;
        $conf{checkpoint} = 1 if $line =~ /^(?:#|description:).*linus-checkpoint(?:=|%3D)/;
        $conf{$1} //= $2 if $line =~ /^(name|template|memory):\s*(\S+)/;
        $disks .= " $1" if $line =~ /^(?:scsi|virtio|sata|ide|efidisk|tpmstate)[0-9]+:\s*([A-Za-z][A-Za-z0-9_.-]*):/;
      }
      if ($kind eq "qemu-server" and ($conf{template} // 0) eq "1") {
        my $local = !$disks || grep { !$shared{$_} } split " ", $disks;
        next if $conf{checkpoint} or ($conf{name} // "") !~ /^$name$/;
        my $sum = sha256_hex(join "\n", sort grep { !/^lock:/ } split /\n/, $text);
        print "NODE_TEMPLATE $node $id $conf{name} ", $conf{build} // "-", " $sum ", $local ? "local" : "shared", " ", $conf{has} // "-", "\n";
        next;
      }
      my ($memory) = ($conf{memory} // "") =~ /^(?:current=)?([0-9]{1,9})/;
      my $state = $status{$id} // "";
      push @{ $vms{$node} }, join ":", $id, $memory || 512, $state =~ /^[a-z]{1,20}$/ ? $state : "unknown";
    }
    for my $node (sort keys %vms) {
      print "NODE_VMS $node @$_\n" for map { [splice @{ $vms{$node} }, 0, 500] } 0 .. $#{ $vms{$node} } / 500;
    }' "${LINUS_PVE_DIR:-/etc/pve}"
}

report_nodes() {
  local line key value name memory used ha
  local -A facts=()
  result_line VM_NODE "${cluster_node}"
  result_line QUORUM "${cluster_quorum}"
  for line in "${json_lines[@]}"; do
    read -r key name memory used ha <<<"${line}"
    if [[ ${key} == MEMORY ]]; then
      facts[${name}]="memory=${memory#-} used=${used#-} ha=${ha#-}"
    else
      value=${line#* }
      result_line "${key}" "${value}"
    fi
  done
  for name in "${cluster_nodes[@]}"; do
    result_line NODE "name=${name} online=${cluster_online[${name}]} ip=${cluster_ip[${name}]} ${facts[${name}]:-memory= used= ha=}"
    report_keys "${name}"
  done
}

# Proxmox writes the file on that node, with lines `NODE TYPE KEY`.
report_keys() { # <node>
  local line host type key
  local -a lines=()
  { mapfile -n 10 -t lines <"${LINUS_PVE_DIR:-/etc/pve}/nodes/$1/ssh_known_hosts"; } 2>/dev/null || :
  for line in "${lines[@]}"; do
    read -r host type key _ <<<"${line}"
    if [[ ${host} == "$1" && ${type} =~ ^[a-z0-9@.-]{1,64}$ && ${key} =~ ^[A-Za-z0-9+/]{1,4000}={0,2}$ ]]; then
      result_line NODE_KEY "$1 ${type} ${key}"
    fi
  done
}

main() {
  script_begin 2
  script_read_options '' "$@"
  validate_tools pvesh perl timeout
  result_run_step read_nodes 'reading the nodes'
  result_run_step report_nodes 'reporting the nodes'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
