# shellcheck shell=bash
# Reads Proxmox's JSON with the perl that every Proxmox host has: nothing is installed on the host,
# and jq is not part of Proxmox. Perl's own module takes four times as long to load as perl itself,
# so a few lines read JSON here, as strictly.
#
# Data that a guest has a hand in is bounded: an answer longer than json_most bytes (16 MiB unless
# the caller sets it) is discarded, as is one that takes a minute to read, and only the first 4 KiB
# of a field are taken.

source "${BASH_SOURCE[0]%/*}/run.sh"

# Flattens an array of objects (or one object) to one line per object, its fields separated by the
# unit separator \x1f (not white space, so that empty fields stay). Missing fields are empty;
# control characters become blanks.
json_rows() { # <tag of a finished run> <field...>; json_lines, json_rc
  json_perl "$1" '
    my $rows = ref $doc eq "ARRAY" ? $doc : [$doc];
    for my $row (grep { ref eq "HASH" } @$rows) {
      print join("\x1f", map { text($row->{$_}) } @ARGV), "\n";
    }' "${@:2}"
}

# Lists the addresses of the interface with this hardware address, one per line, as the guest agent
# reports them: the first few that have the form of their type and that one machine can have for
# itself in a network. Whether an address is really the VM's is checked elsewhere.
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
        next unless $form{$type} and $addr =~ $form{$type} and $left-- > 0;
        next if $type eq "ipv4" ? grep { $_ > 255 or /^0./ } split /\./, $addr : do { require Socket; !Socket::inet_pton(Socket::AF_INET6(), $addr) };
        print "$type $addr\n";
      }
    }' "$2"
}

# Perl code that reads JSON: decode($bytes), and text($value) as one line. true and false are
# references to 1 and 0.
# shellcheck disable=SC2016 # perl's variables, not the shell's
json_reader='
    use strict;
    sub text { my $v = shift // ""; $v = $$v if ref $v eq "SCALAR"; $v = substr $v, 0, 4096; $v =~ s/[[:cntrl:]]/ /g; return $v }
    my %escape = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t");
    sub string {
      my $text = "";
      while (1) {
        if (/\G([^"\\\x00-\x1f]+)/gc) { $text .= $1 }
        elsif (/\G"/gc) { return $text }
        elsif (/\G\\u([dD][89abAB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})/gc) { $text .= chr 0x10000 + (hex($1) - 0xd800) * 0x400 + hex($2) - 0xdc00 }
        elsif (/\G\\u([0-9A-Fa-f]{4})/gc) { $text .= chr($1 =~ /^d[89a-f]/i ? 0xfffd : hex $1) }
        elsif (/\G\\(["\\\/bfnrt])/gc) { $text .= $escape{$1} // $1 }
        else { die "no JSON: a string that does not end, or holds what it may not\n" }
      }
    }
    sub value {
      my $depth = shift;
      die "no JSON: too deep\n" if $depth > 100;
      /\G[ \t\n\r]+/gc;
      my $value;
      if (/\G"/gc) { $value = string() }
      elsif (/\G(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?![0-9A-Za-z.])/gc) { $value = $1 }
      elsif (/\G(true|false|null)\b/gc) { my ($true, $false) = (1, 0); $value = $1 eq "true" ? \$true : $1 eq "false" ? \$false : undef }
      elsif (/\G([\[{])[ \t\n\r]*/gc) {
        my $object = $1 eq "{";
        $value = $object ? {} : [];
        until ($object ? /\G[ \t\n\r]*\}/gc : /\G[ \t\n\r]*\]/gc) {
          die "no JSON: at " . (pos() // 0) . "\n" if $object ? %$value && !/\G[ \t\n\r]*,/gc : @$value && !/\G[ \t\n\r]*,/gc;
          my $name;
          if ($object) {
            /\G[ \t\n\r]*"/gc or die "no JSON: at " . (pos() // 0) . "\n";
            $name = string();
            /\G[ \t\n\r]*:/gc or die "no JSON: at " . (pos() // 0) . "\n";
          }
          my $member = value($depth + 1);
          if ($object) { $value->{$name} = $member } else { push @$value, $member }
        }
      }
      else { die "no JSON: at " . (pos() // 0) . "\n" }
      return $value;
    }
    sub decode {
      local $_ = shift;
      utf8::decode($_) or die "no JSON: not UTF-8\n";
      my $value = value(0);
      /\G[ \t\n\r]*\z/gc or die "no JSON: more than one value\n";
      return $value;
    }'

json_perl() { # <tag> <program> <argument...>; json_lines, json_rc (0: it was JSON)
  local -r tag=$1 program=$2
  shift 2
  json_lines=()
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_start rows 60 run_alone perl -e "${json_reader}"'
    my ($file, $most) = splice @ARGV, 0, 2;
    open my $in, "<", $file or die "$file: $!\n";
    defined(read $in, my $text, $most + 1) or die "$file: $!\n";
    die "longer than $most bytes\n" if length $text > $most;
    my $doc = decode($text);
    binmode STDOUT, ":utf8";
    '"${program}" -- "${run_dir}/${tag}.out" "${json_most:-16777216}" "$@"
  run_await rows
  run_slurp "${run_dir}/rows.rc"
  json_rc=${run_text:-137}
  if ((json_rc == 0)); then
    mapfile -t json_lines <"${run_dir}/rows.out"
  fi
}
