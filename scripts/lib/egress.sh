# shellcheck shell=bash
# Limits where a VM's packets may go, by a table `bridge linus` of nftables on its node. It has two
# chains for each VM that is not on the LAN like any machine. A VM's mode is a word
# linus-egress=<mode>[:<SSH port>][+|-<ranges>] in its description, so that it moves with the VM,
# and every node that has the VM knows it. Without the word the mode is lan: no rules.
#   internet  public addresses, and port 53 of its name servers (those its config
#             gives it, else this host's): no private address, no node, no neighbour,
#             and nothing of the ranges (-)
#   none      nothing
#   allow     what is public of the ranges (+); its proxy comes through SSH
# In every mode this node, and nobody else, reaches the SSH port. Neighbour queries and answers
# pass, in a form that carries nothing else, but not between limited VMs. What the VM sends must
# have its card's MAC and its one address. That address is the config's, or the one the guest
# reported after its boot, if nobody else has it. Until then only DHCP (or IPv6's neighbour and
# router discovery) passes. The other address family is closed.
#
# The rules are made from the configs of all VMs of this node at once, and replace the table in one
# transaction, so there is no entry without its VM. They match taps by name (tap<ID>i0), which are
# on the VM's bridge, or with firewall=1 on fwbr<ID>i0. A VM's other cards are closed. No
# connections are tracked. An empty chain named after the rules' checksum shows that the kernel has
# exactly these rules.
#
# In LINUS_LOCK_DIR (/run/linus, gone with a reboot): egress.rules, the rules that were applied
# last, and egress-<vmid>-<job>, `<MAC> <address>` as the guest reported.

source "${BASH_SOURCE[0]%/*}/address.sh"

egress_validate() { # VM_EGRESS, VM_EGRESS_RANGES, VM_SSH_PORT; vm_egress: the description's word, empty for lan
  validate_pattern VM_EGRESS "${VM_EGRESS}" 'lan|internet|none|allow' 'lan, internet, none or allow'
  if [[ -n ${VM_EGRESS_RANGES} ]]; then
    validate_pattern VM_EGRESS "${VM_EGRESS}" 'internet|allow' 'internet or allow where VM_EGRESS_RANGES is given'
    egress_perl ranges "${VM_EGRESS_RANGES}"
    if ((run_rc != 0)); then
      result_fail invalid "VM_EGRESS_RANGES: ${run_said}" 'give addresses or ranges such as 9.9.9.0/24, parted by commas, 5000 characters at most'
    fi
  fi
  vm_egress=''
  if [[ ${VM_EGRESS} != lan ]]; then
    vm_egress=linus-egress=${VM_EGRESS}
    if ((VM_SSH_PORT != 22)); then
      vm_egress+=:${VM_SSH_PORT}
    fi
    if [[ ${VM_EGRESS} == allow ]]; then
      vm_egress+=${VM_EGRESS_RANGES:++${VM_EGRESS_RANGES}}
    else
      vm_egress+=${VM_EGRESS_RANGES:+-${VM_EGRESS_RANGES}}
    fi
    egress_require_nft
  fi
}

egress_require_nft() {
  if ! command -v nft >/dev/null; then
    result_fail dependency "nft is not on ${HOSTNAME}, and without it a VM's network cannot be limited" \
      'install it (apt-get install nftables: nothing of it needs to run), or ask for egress lan'
  fi
}

# Reads the word in the description of the config just read.
egress_read_word() { # egress_word: empty for lan
  local -r form=' (linus-egress=[^ ]+) '
  egress_word=''
  if [[ ${vm_words:-} =~ ${form} ]]; then
    egress_word=${BASH_REMATCH[1]}
  fi
}

# Prints the VM's notes, changed only in the word. If the notes have the word twice, they have it
# once then.
egress_reword() { # <vmid> <word, or empty>; egress_notes
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 20 perl -e '
    use strict; use warnings;
    my ($file, $word) = @ARGV;
    open my $in, "<", $file or die "$file: $!\n";
    my $notes = "";
    while (<$in>) {
      last if /^\[.*\]\s*$/;
      $notes .= ($1 =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger) . "\n" if /^#(.*)/ or /^description:\s*(.*)/;
    }
    1 while $notes =~ s/(^|\s)linus-egress=\S*[ \t]?/$1/;
    $notes =~ s/(\blinus-vm=\d+)[ \t]*/"$1" . (length $word ? " $word" : "") . " "/e or die "$file: there is no linus-vm= in its notes\n";
    print $notes =~ s/\s+\z//r;' -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server/$1.conf" "$2"
  egress_notes=${run_out}
}

# Puts the rules of a VM in place before it starts, closed until its address is known, or sees that
# there are none for a VM without a mode. Also removes an entry left by the ID's last VM.
egress_prepare() { # <vmid>
  egress_read_word
  if [[ -z ${egress_word} ]]; then
    egress_clear "$1"
    return 0
  fi
  egress_require_nft
  egress_require_bridge "$1"
  egress_locate "$1" "${vm_job}"
  rm -f -- "${egress_file}"
  egress_must_have "$1"
}

egress_require_bridge() { # <vmid>, whose config was read
  local bridge=''
  if [[ ${vm_config[net0]:-} =~ (^|,)bridge=([^,]+) ]]; then
    bridge=${BASH_REMATCH[2]}
  fi
  run_read 10 run_alone ip -o link show dev "${bridge}" type bridge
  if ((run_rc != 0)) || [[ -z ${run_out} ]]; then
    result_fail config "the network of VM $1 cannot be limited: '${bridge}' on ${HOSTNAME} is no Linux bridge" \
      'use a Linux bridge (PROXMOX_BRIDGE), or egress lan'
  fi
}

egress_must_have() { # <vmid>
  egress_sync
  if [[ -z ${egress_reason} ]]; then
    egress_see "$1"
  fi
  if [[ -n ${egress_reason} ]]; then
    result_fail config "the network of VM $1 on ${HOSTNAME} could not be limited, so it is not let run: ${egress_reason}" \
      'look at: nft list table bridge linus; or ask for egress lan'
  fi
}

# Looks for the entry that the kernel has now.
egress_see() { # <vmid>; egress_reason: empty where it is there
  run_read 20 nft list map bridge linus from
  egress_reason=''
  if ((run_rc != 0)) || ! grep -qF "\"tap$1i0\" : goto from_$1" -- "${run_dir}/read.out"; then
    egress_reason="its entry is not in table bridge linus: ${run_said}"
  fi
}

# Opens the VM's network for the address that its guest reported, which has been checked.
egress_open() { # <vmid> <address> <mac>
  egress_locate "$1" "${vm_job}"
  { printf '%s %s\n' "${3,,}" "$2" >"${egress_file}.new" && mv -f -- "${egress_file}.new" "${egress_file}"; } 2>/dev/null || :
  egress_must_have "$1"
}

egress_locate() { # <vmid> <job>; egress_file
  egress_file=${LINUS_LOCK_DIR:-/run/linus}/egress-$1-$2
}

# Removes the rules of an ID whose VM is gone or is on the LAN.
egress_clear() { # <vmid>
  if [[ -e ${LINUS_LOCK_DIR:-/run/linus}/egress.rules ]] && grep -qF "\"tap$1i0\"" -- "${LINUS_LOCK_DIR:-/run/linus}/egress.rules"; then
    egress_sync
    if [[ -n ${egress_reason} ]]; then
      log_warn "the network rules of VM $1 could not be taken away: ${egress_reason}"
    fi
  fi
}

# Makes the kernel's table match the configs after a reboot, a move, a flush by somebody, or a VM's
# destroy by hand. It costs one grep if there are no rules.
egress_sweep() {
  if [[ ! -e ${LINUS_LOCK_DIR:-/run/linus}/egress.rules ]] \
    && ! grep -qRsF --include='*.conf' linus-egress= -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server/"; then
    return 0
  fi
  egress_sync
  if [[ -n ${egress_reason} ]]; then
    log_warn "the network rules of this host's VMs could not be checked: ${egress_reason}"
  fi
}

egress_sync() { # egress_reason: empty where the kernel has the rules
  local -r dir=${LINUS_LOCK_DIR:-/run/linus}
  egress_reason=''
  vm_check_lock_dir "${dir}"
  if [[ -n ${vm_reason} ]]; then
    egress_reason=${vm_reason}
    vm_reason=''
  elif ! { exec 8>>"${dir}/egress.lock"; } 2>/dev/null || ! flock -w 60 8; then
    egress_reason="could not take the lock ${dir}/egress.lock"
  else
    egress_sync_locked "${dir}"
  fi
  exec 8>&-
}

egress_sync_locked() { # <directory>
  local -r rules=${run_dir}/egress.rules
  local sum
  run_read 20 run_alone ip -o addr show
  egress_perl "${LINUS_PVE_DIR:-/etc/pve}" "$1" "${LINUS_RESOLV_CONF:-/etc/resolv.conf}" "${run_out}"
  if ((run_rc != 0)); then
    egress_reason="the configs of its VMs could not be read: ${run_said}"
    return 0
  fi
  if ! cp -- "${run_dir}/read.out" "${rules}" 2>/dev/null; then
    egress_reason="could not write ${rules}"
    return 0
  fi
  run_read 10 run_alone sha256sum "${rules}"
  sum=sum_${run_out:0:32}
  if [[ -s ${rules} ]]; then
    run_read 20 nft list chain bridge linus "${sum}"
    if ((run_rc == 0)) && [[ -e $1/egress.rules ]]; then
      return 0
    fi
  fi
  # The file is written first, so that rules that may be in the kernel are looked for. Half a file
  # would remove all rules.
  if ! {
    printf '%s\n' 'table bridge linus' 'delete table bridge linus' \
      && { [[ ! -s ${rules} ]] || { cat -- "${rules}" && printf 'add chain bridge linus %s\n' "${sum}"; }; }
  } 2>/dev/null >"$1/egress.rules.new" || ! mv -f -- "$1/egress.rules.new" "$1/egress.rules" 2>/dev/null; then
    egress_reason="could not write $1/egress.rules: is its disk full?"
    return 0
  fi
  run_read 60 nft -f "$1/egress.rules"
  if ((run_rc != 0)); then
    egress_reason="nft: ${run_said}"
  elif [[ -s ${rules} ]]; then
    run_read 20 nft list chain bridge linus "${sum}"
    if ((run_rc != 0)); then
      egress_reason="nft took the rules, and does not have them: ${run_said}"
    fi
  else
    rm -f -- "$1/egress.rules"
  fi
}

# Reads what the kernel has for a VM, whatever its config says: lines `<set|map|chain> <name>: <one
# rule, or the elements>`. egress_reason: why no table could be read.
egress_read() { # <vmid>; run_lines
  egress_reason=''
  run_lines=()
  if ! command -v nft >/dev/null; then
    egress_reason="nft is not on ${HOSTNAME}"
    return 0
  fi
  run_start table 20 nft list table bridge linus
  run_wait table
  if ((run_rc != 0)); then
    egress_reason="there is no table bridge linus: ${run_said}"
    return 0
  fi
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 20 perl -e '
    use strict; use warnings;
    my ($id, $file) = @ARGV;
    open my $in, "<", $file or die "$file: $!\n";
    my $text = do { local $/; <$in> };
    $text =~ s/(elements = \{[^}]*\})/$1 =~ s{\s+}{ }gr/ge;
    my (@lines, %sets);
    while ($text =~ /^\s*(set|map|chain) (\w+) \{(?: ([^\n]*) \}$|\n(.*?)^\s*\}$)/gms) {
      my ($kind, $name, $body) = ($1, $2, $3 // $4);
      next if $kind eq "chain" and $name !~ /^(?:(?:from|to)_$id|prerouting|input|postrouting)$/;
      my $all = $kind eq "chain" && $name =~ /_/;
      $sets{$name} = "empty" if $kind eq "set";
      for my $line (split $all ? qr/\n/ : qr/[;\n]/, $body) {
        $line =~ s/^\s+|\s+$//g;
        next unless length $line;
        if ($kind eq "chain") { push @lines, "chain $name: $line"; next }
        next unless $line =~ /^elements = \{\s*(.*?)\s*\}$/;
        if ($kind eq "set") { $sets{$name} = $1; next }
        push @lines, map { "map $name: $_" } grep { /^"?tap${id}i\d+"? :/ } split /, /, $1;
      }
    }
    my $rules = join "\n", grep { /_$id:/ } @lines;
    print map { "$_\n" } @lines, map { "set $_: $sets{$_}" } grep { $rules =~ /\@$_\b/ } sort keys %sets;' -- "$1" "${run_dir}/table.out"
  if ((run_rc != 0)); then
    egress_reason="table bridge linus could not be read: ${run_said}"
    return 0
  fi
  run_lines read
}

# Prints the table, or nothing if no VM of this node has a mode. A faulty config closes its VM. With
# `ranges <list>` it only checks the ranges.
egress_perl() { # <directory of pmxcfs> <directory of learned addresses> <resolv.conf> <ip -o addr>; run_rc, and its output
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 60 perl -MSocket=inet_pton,inet_ntop,AF_INET,AF_INET6 -MFile::Glob=:bsd_glob -e '
    use strict; use warnings;
    my ($root, $state, $resolv, $cards) = @ARGV;
    # With AS112, which stands in for the name servers of private networks, and the platform of Azure.
    my %closed = (
      4 => [qw(0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
        192.31.196.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3)],
      # All but 2000::/3, and of that what carries IPv4 or is nobody else.
      6 => [qw(::/3 2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 4000::/2 8000::/1)],
    );
    sub family { return $_[0] =~ /:/ ? 6 : 4 }
    sub address { # its text as nft writes it; empty if there is none
      my $text = shift // "";
      my $kind = $text =~ /:/ ? AF_INET6 : AF_INET;
      my $ip = inet_pton($kind, $text);
      return defined $ip ? inet_ntop($kind, $ip) : "";
    }
    sub network { # <address> <prefix length>
      my ($ip, $length) = @_;
      my $kind = family($ip) == 6 ? AF_INET6 : AF_INET;
      my $raw = inet_pton($kind, $ip);
      my $bits = 8 * length $raw;
      return inet_ntop($kind, $raw & pack "B*", "1" x $length . "0" x ($bits - $length)) . "/$length";
    }
    sub ranges { # of a list; none where one is not as it should be
      my @all;
      for (split /,/, length $_[0] <= 5000 ? $_[0] : "", -1) {
        my ($ip, $length) = m{^([0-9a-f.:]+)(?:/([1-9]\d{0,2}))?\z} or return;
        return unless length address($ip) and ($length //= 128 - 96 * (family($ip) == 4)) <= 128 - 96 * (family($ip) == 4);
        push @all, network(address($ip), $length);
      }
      return @all;
    }
    if ($root eq "ranges") { ranges($state) or die "not all of them are ranges\n"; exit }
    sub set { my %seen; return "{ " . join(", ", grep { !$seen{$_}++ } @_) . " }" }

    my %node = (4 => [], 6 => []);
    for (split /\n/, $cards) {
      next unless m{^\d+:\s+\S+\s+inet6?\s+(?:(\S+)\s+peer\s+)?([0-9A-Fa-f.:]+)/(\d+)\s.*scope (?:global|site)};
      my ($ip, $network, $length) = (address($1 // $2), address($2), $3);
      next unless length $ip and length $network and $length >= 8;
      push @{ $node{ family($ip) } }, $ip;
      push @{ $closed{ family($ip) } }, network($network, $length);
    }
    my @host;
    if (open my $in, "<", $resolv) {
      while (<$in>) { push @host, address($1) if /^\s*nameserver\s+([0-9A-Fa-f.:]+)/ }
    }

    chdir $root or die "$root: $!\n";
    my ($own) = readlink "qemu-server";
    die "$root is not the cluster file system of Proxmox VE (pmxcfs), or it is not mounted\n" unless $own and -e ".members";
    opendir my $dir, $own or die "$root/$own: $!\n";
    my (@sets, @chains, @from, @to, @macs, %there);
    for my $file (sort readdir $dir) {
      my ($id) = $file =~ /^(\d+)\.conf$/ or next;
      open my $in, "<", "$own/$file" or $!{ENOENT} ? next : die "$root/$own/$file: $!\n";
      $there{$id} = 1;
      my ($description, %conf) = ("");
      while (<$in>) {
        last if /^\[.*\]\s*$/;
        if (/^#(.*)/ or /^description:(.*)/) { $description .= ($1 =~ s/%([0-9A-Fa-f]{2})/chr hex $1/ger) . "\n" }
        elsif (/^([a-z][a-z_-]*[0-9]*):\s*(\S.*)/) { $conf{$1} = $2 }
      }
      my %word = map { /^linus-(egress|job)=(.*)/ ? ($1 => $2) : () } split " ", $description;
      next unless defined $word{egress} and ($conf{template} // 0) eq "0";
      my ($mode, $port, $sign, $list) = $word{egress} =~ /^(internet|none|allow)(?::([1-9]\d{0,4}))?(?:([+-])(.*))?$/;
      my @ranges = ranges($list // "");
      $mode = "none" if !defined $mode or defined $list && (!@ranges or $sign ne ($mode eq "allow" ? "+" : "-"));
      $port //= 22;
      my ($mac) = lc($conf{net0} // "") =~ /\b([0-9a-f]{2}(?::[0-9a-f]{2}){5})\b/;
      for my $card (sort grep { defined $mac ? /^net[1-9]\d*$/ : /^net\d+$/ } keys %conf) {
        my $tap = "tap${id}i" . substr $card, 3;
        push @from, "\"$tap\" : drop";
        push @to, "\"$tap\" : drop";
      }
      next unless defined $mac;
      my %ip = map { /^(ip6?)=(.+)/ ? ($1 => $2) : () } split /,/, $conf{ipconfig0} // "ip=dhcp";
      my $f = $ip{ip} ? 4 : $ip{ip6} ? 6 : 4;
      my ($given, $length) = split m{/}, $f == 4 ? $ip{ip} // "dhcp" : $ip{ip6};
      my $ip = address($given);
      if (!length $ip and ($word{job} // "") =~ /^[0-9a-f-]{36}$/ and open my $said, "<", "$state/egress-$id-$word{job}") {
        my ($card, $address) = split " ", <$said> // "";
        $ip = address($address) if ($card // "") eq $mac;
        $length = $f == 6 ? 64 : 32;
      }
      $ip = "" if length $ip and family($ip) != $f;
      $length = $f == 6 ? 64 : 32 unless defined $length and $length =~ /^[1-9]\d{0,2}$/ and $length <= ($f == 6 ? 128 : 32);
      my @dns = grep { length and family($_) == $f } ($conf{nameserver} // "") =~ /\S/ ? map { address($_) } split /[\s,;]+/, $conf{nameserver} : @host;
      my $l3 = $f == 6 ? "ip6" : "ip";
      my $first = "tcp flags & (syn | ack) == syn";
      my $later = "tcp flags & (syn | ack) != syn";
      my $near = length $ip ? network($ip, $length) : "";
      push @macs, $mac;
      my @out = "ether saddr != $mac drop";
      my @in = "ether saddr \@limited drop"; # of one that is as limited not even its questions
      # meta length is what came, whatever the headers say, and nothing is behind them.
      if ($f == 4) {
        my $arp = "arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp operation { request, reply }";
        my $own = "$arp arp saddr ether $mac arp saddr ip " . set("0.0.0.0", $ip || ());
        push @out, "$own meta length 28 accept", "$own meta length 46 \@nh,224,128 0 \@nh,352,16 0 accept"; # bare, or padded with zeros
        push @in, "$arp meta length <= 46 accept";
        # Of a later fragment the kernel may take any bytes for ports.
        push @out, "ether type != ip drop", "ip hdrlength != 5 drop", "ip frag-off & 0x1fff != 0 drop";
        push @in, "ether type != ip drop", "ip frag-off & 0x1fff != 0 drop";
        if (!length address($given)) {
          push @out, "ip saddr " . set("0.0.0.0", $ip || ()) . " ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept";
          push @in, "udp sport 67 udp dport 68 accept";
        }
      } else {
        my @mac = map { hex } split /:/, $mac;
        my $own = address(sprintf "fe80::%x:%x:%x:%x", ($mac[0] ^ 2) << 8 | $mac[1], $mac[2] << 8 | 0xff, 0xfe00 | $mac[3], $mac[4] << 8 | $mac[5]);
        my $mine = set($own, $ip || ());
        my $about = "\@th,64,128 " . set(map { "0x" . unpack "H*", inet_pton(AF_INET6, $_) } $own, $ip || ());
        # Neighbour discovery, which no router hands on, without a header or a byte that is not its own.
        my $nd = sub {
          my ($type, $bytes) = @_;
          return "ip6 nexthdr ipv6-icmp ip6 hoplimit 255 ip6 length $bytes meta length " . (40 + $bytes) . " icmpv6 type nd-$type icmpv6 code 0";
        };
        # Listeners to groups say so behind a router alert, which is written in two ways.
        my $mld = "ip6 nexthdr 0 ip6 hoplimit 1 \@nh,320,64 { 0x3a00050200000100, 0x3a00010005020000 }";
        my $types = "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect, mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } drop";
        push @out, "ether type != ip6 drop";
        push @out, "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 daddr != ff02::/16 ip6 daddr != fe80::/10" .
          (length $near && " ip6 daddr != $near") . " ip6 daddr != \@node6 drop";
        for (["neighbor-advert", 24, "ip6 saddr $mine $about", 192, "0201" . $mac =~ tr/://dr], ["neighbor-solicit", 24, "ip6 saddr $mine", 192, "0101" . $mac =~ tr/://dr],
          ["neighbor-solicit", 24, "ip6 saddr ::" . (length $ip && " $about"), 192, "0e01"], ["router-solicit", 8, "ip6 saddr " . set("::", $own), 64, "0101" . $mac =~ tr/://dr]) {
          my ($type, $bytes, $what, $at, $option) = @$_; # its card, or for the question whether an address is free a random number
          push @out, $nd->($type, $bytes) . " $what accept", $nd->($type, $bytes + 8) . " $what \@th,$at," . 4 * length($option) . " 0x$option accept";
        }
        push @out, "$mld \@nh,384,8 { 131, 132, 143 } ip6 saddr " . set("::", $own) . " ip6 daddr ff02::/16 meta length <= 216 accept", $types;
        push @in, "ether type != ip6 drop";
        push @in, "icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } ip6 daddr != ff02::/16 ip6 daddr != $mine drop";
        push @in, map { $nd->(@$_) . " accept" } ["neighbor-solicit", 24], ["neighbor-solicit", 32], ["neighbor-solicit", 40], ["neighbor-advert", 24], ["neighbor-advert", 32];
        push @in, "ip6 nexthdr ipv6-icmp ip6 hoplimit 255 icmpv6 type nd-router-advert icmpv6 code 0 ip6 saddr fe80::/10 accept";
        push @in, "$mld \@nh,384,8 130 ip6 saddr fe80::/10 ip6 daddr ff02::/16 meta length <= 76 accept", $types;
        push @out, "ip6 nexthdr { 0, 43, 44, 51, 60, 135 } drop"; # of what is behind such a header nothing is sure
        push @in, "ip6 nexthdr { 0, 43, 44, 51, 60, 135 } drop";
        if (!length address($given)) {
          push @out, "ip6 saddr $own ip6 daddr ff02::1:2 udp sport 546 udp dport 547 accept";
          push @in, "udp sport 547 udp dport 546 accept";
        }
      }
      if (length $ip) {
        push @out, "$l3 saddr != $ip drop";
        push @in, "$l3 daddr != $ip drop";
        push @out, "$l3 daddr \@node$f tcp sport $port $later accept";
        push @in, "$l3 saddr \@node$f tcp dport $port accept";
      }
      @ranges = grep { family($_) == $f } @ranges;
      if (length $ip and $mode eq "internet" || $mode eq "allow" && @ranges) {
        push @sets, "  set ranges_$id { type ipv${f}_addr; flags interval; auto-merge; elements = " . set(@ranges) . "; }\n" if @ranges;
        if (@ranges and $mode eq "internet") {
          push @out, "$l3 daddr \@ranges_$id drop";
          push @in, "$l3 saddr \@ranges_$id drop";
        }
        if (@dns and $mode eq "internet") {
          my $servers = set(@dns);
          push @out, "$l3 daddr $servers udp dport 53 accept", "$l3 daddr $servers tcp dport 53 accept";
          push @in, "$l3 saddr $servers udp sport 53 accept", "$l3 saddr $servers tcp sport 53 $later accept";
        }
        # Of a router on the way, whose own address may be private.
        push @in, $f == 4 ? "ip protocol icmp icmp type { destination-unreachable, time-exceeded, parameter-problem } accept"
          : "ip6 nexthdr ipv6-icmp icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept";
        push @out, "$l3 daddr \@closed$f drop", "$l3 daddr $near drop", $mode eq "allow" ? "$l3 daddr \@ranges_$id accept" : "accept";
        push @in, "$l3 saddr \@closed$f drop", "$l3 saddr $near drop", "$first drop", $mode eq "allow" ? "$l3 saddr \@ranges_$id accept" : "accept";
      }
      push @chains, map { my ($name, @rules) = @$_; "  chain ${name}_$id {\n" . join("", map { "    $_\n" } @rules, "drop") . "  }\n" } ["from", @out], ["to", @in];
      push @from, "\"tap${id}i0\" : goto from_$id";
      push @to, "\"tap${id}i0\" : goto to_$id";
    }
    -e ".members" or die "$root: pmxcfs is gone\n"; # and what was not found may be there
    unlink grep { m{/egress-(\d+)-[^/]*$} and !$there{$1} } bsd_glob("$state/egress-*");
    exit unless @from;
    print "table bridge linus {\n";
    for my $f (4, 6) {
      my $node = @{ $node{$f} } ? " elements = " . set(@{ $node{$f} }) . ";" : "";
      print "  set node$f { type ipv${f}_addr;$node }\n";
      print "  set closed$f { type ipv${f}_addr; flags interval; auto-merge; elements = " . set(@{ $closed{$f} }) . "; }\n";
    }
    print "  set limited { type ether_addr; elements = " . set(@macs) . "; }\n" if @macs;
    print @sets, @chains;
    print "  map from { type ifname : verdict; elements = " . set(@from) . "; }\n";
    print "  map to { type ifname : verdict; elements = " . set(@to) . "; }\n";
    # input is for frames that a bridge takes before it routes them, such as spanning tree.
    print "  chain prerouting { type filter hook prerouting priority -250; policy accept; iifname vmap \@from; }\n";
    print "  chain input { type filter hook input priority -250; policy accept; iifname vmap \@from; }\n";
    print "  chain postrouting { type filter hook postrouting priority 250; policy accept; oifname vmap \@to; }\n";
    print "}\n";' -- "$@"
}
