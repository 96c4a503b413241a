# shellcheck shell=bash
# Reading Proxmox's JSON with the perl every Proxmox host has; nothing is
# installed on the host, and jq is not part of Proxmox.
#
# What a guest has a hand in is bounded: an answer longer than json_most bytes (16
# MiB where the caller has not set it) is none, nor is one that took a minute to
# read, and of a field the first 4 KiB are taken.

# Flattens an array of objects (or one object) to one line per object, its
# fields parted by the unit separator \x1f (not white space, so that empty
# fields stay). Missing fields are empty; control characters become blanks.
json_rows() { # <tag of a finished run> <field...>; json_lines, json_rc
  json_perl "$1" '
    my $rows = ref $doc eq "ARRAY" ? $doc : [$doc];
    for my $row (grep { ref eq "HASH" } @$rows) {
      print join("\x1f", map { text($row->{$_}) } @ARGV), "\n";
    }' "${@:2}"
}

# The addresses of the interface with this hardware address, one per line, as
# the guest agent tells them: the first few that are written as what they are
# said to be and that one machine can have for itself in a network. Whether it
# is the VM's is seen elsewhere.
json_addresses() { # <tag> <mac>; json_lines: "ipv4 ADDR" or "ipv6 ADDR"
  json_perl "$1" '
    my %form = (ipv4 => qr/^(?!0|169\.254\.|22[4-9]\.|2[3-5]\d\.)\d{1,3}(\.\d{1,3}){3}\z/, ipv6 => qr/^(?!fe[89ab]|ff|::$)[0-9a-f:]{2,39}\z/i);
    my $left = 16;
    $doc = $doc->{result} if ref $doc eq "HASH";
    for my $nic (grep { ref eq "HASH" } ref $doc eq "ARRAY" ? @$doc : ()) {
      next unless lc($nic->{"hardware-address"} // "") eq lc $ARGV[0];
      my $ips = $nic->{"ip-addresses"};
      for my $ip (grep { ref eq "HASH" } ref $ips eq "ARRAY" ? @$ips : ()) {
        my ($type, $addr) = map { $_ // "" } @$ip{"ip-address-type", "ip-address"};
        next unless $form{$type} and $addr =~ $form{$type} and inet_pton($type eq "ipv4" ? AF_INET : AF_INET6, $addr) and $left-- > 0;
        print "$type $addr\n";
      }
    }' "$2"
}

# The nodes as pmxcfs's .members has them; a host without a cluster has no list.
json_members() { # <tag>; json_lines: "NODE\x1fQUORUM" of this node, then "NODE\x1fONLINE\x1fADDRESS" of each
  json_perl "$1" '
    die "it does not name this node\n" unless ref $doc eq "HASH" and text($doc->{nodename}) =~ /^[A-Za-z0-9.-]+$/;
    my ($own, $cluster) = @$doc{"nodename", "cluster"};
    my $nodes = $doc->{nodelist} // {$own => {online => 1}};
    die "its list of nodes cannot be read\n" unless ref $nodes eq "HASH";
    print "$own\x1f", !ref $cluster ? "none" : text($cluster->{quorate}) eq "1" ? "yes" : "no", "\n";
    for my $name (sort grep { /^[A-Za-z0-9.-]+$/ and ref $nodes->{$_} eq "HASH" } keys %$nodes) {
      my $ip = text($nodes->{$name}{ip});
      print "$name\x1f", text($nodes->{$name}{online}) eq "1" ? 1 : 0, "\x1f", $ip =~ /^[0-9A-Fa-f.:]+$/ ? $ip : "", "\n";
    }'
}

json_perl() { # <tag> <program> <argument...>; json_lines, json_rc (0: it was JSON)
  local -r tag=$1 program=$2
  shift 2
  json_rc=0
  json_lines=()
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  timeout -k 5 60 perl -MJSON::PP -MSocket=inet_pton,AF_INET,AF_INET6 -e '
    use strict; use warnings;
    sub text { my $v = shift // ""; $v = $v ? 1 : 0 if JSON::PP::is_bool($v); $v = substr $v, 0, 4096; $v =~ s/[[:cntrl:]]/ /g; return $v }
    my ($file, $most) = splice @ARGV, 0, 2;
    open my $in, "<", $file or die "$file: $!\n";
    defined(read $in, my $text, $most + 1) or die "$file: $!\n";
    die "longer than $most bytes\n" if length $text > $most;
    my $doc = JSON::PP->new->utf8->allow_nonref->decode($text);
    binmode STDOUT, ":utf8";
    '"${program}" -- "${run_dir}/${tag}.out" "${json_most:-16777216}" "$@" >"${run_dir}/rows" 2>"${run_dir}/rows.err" || json_rc=$?
  if ((json_rc == 0)); then
    mapfile -t json_lines <"${run_dir}/rows"
  fi
}
