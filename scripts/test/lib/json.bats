#!/usr/bin/env bats
# lib/json.sh: Proxmox's JSON, read leniently and on one line each.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs json run
  run_init
}

@test "fields of an array of objects, missing ones empty" {
  recorded x '[{"vmid":100,"name":"a b","template":1},{"vmid":"101"},{"vmid":102,"name":null}]'
  json_rows x vmid name template
  [[ ${json_rc} -eq 0 && ${#json_lines[@]} -eq 3 ]]
  [[ ${json_lines[0]} == $'100\x1fa b\x1f1' && ${json_lines[1]} == $'101\x1f\x1f' && ${json_lines[2]} == $'102\x1f\x1f' ]]
}

@test "one object is one row; an empty array none; booleans are 1 and 0" {
  recorded x '{"exitcode":0,"exited":true,"truncated":false}'
  json_rows x exitcode exited truncated
  [[ ${json_lines[0]} == $'0\x1f1\x1f0' ]]
  recorded x '[]'
  json_rows x vmid
  [[ ${json_rc} -eq 0 && ${#json_lines[@]} -eq 0 ]]
}

@test "line breaks and separators inside a value cannot make a row or a field" {
  recorded x '[{"name":"a\nb\u001fc\r","vmid":1}]'
  json_rows x name vmid
  [[ ${#json_lines[@]} -eq 1 && ${json_lines[0]} == $'a b c \x1f1' ]]
}

@test "an answer without end is none, and a field is cut" {
  recorded x "{\"a\":\"$(printf '%09000d' 0)\",\"b\":1}"
  json_rows x a b
  [[ ${json_rc} -eq 0 && ${#json_lines[0]} -eq 4098 ]]
  json_most=9000 json_rows x a b
  [[ ${json_rc} -ne 0 && ${#json_lines[@]} -eq 0 ]]
}

@test "what is not JSON is told, not guessed" {
  recorded x 'proxy handler failed'
  json_rows x vmid
  [[ ${json_rc} -ne 0 && ${#json_lines[@]} -eq 0 ]]
  : >"${run_dir}/x.out"
  json_rows x vmid
  [[ ${json_rc} -ne 0 ]]
}

@test "it is read as Perl's own module reads it, which takes longer to load" {
  # shellcheck disable=SC2016 # perl's variables
  perl -MJSON::PP -e 'my ($same, $none, $pp, $reader) = (0, 0, JSON::PP->new->utf8->allow_nonref, shift);
    eval "package Ours; $reader; 1" or die $@;
    sub flat {
      my $v = shift;
      return "{" . join(",", map { "$_:" . flat($v->{$_}) } sort keys %$v) . "}" if ref $v eq "HASH";
      return "[" . join(",", map { flat($_) } @$v) . "]" if ref $v eq "ARRAY";
      return JSON::PP::is_bool($v) || ref $v eq "SCALAR" ? ($v && (ref $v ne "SCALAR" || $$v) ? "true" : "false") : defined $v ? "<$v>" : "null";
    }
    sub any {
      my ($deep, $kind) = ($_[0] + 1, int rand($_[0] > 4 ? 4 : 6));
      return int rand 1000 if $kind == 0;
      return (JSON::PP::true, JSON::PP::false, undef)[rand 3] if $kind == 1;
      return join "", map { chr((32 + rand 90, rand 32, 0x80 + rand 0x700, 0x1f600 + rand 50, 34, 92)[rand 6]) } 1 .. rand 10 if $kind < 4;
      return $kind == 4 ? [map { any($deep) } 1 .. rand 4] : {map { any(9) // "x", any($deep) } 1 .. rand 4};
    }
    for my $i (1 .. 4000) {
      my $text = $pp->pretty($i & 1)->ascii($i & 4)->encode(any(0));
      my @spoil = split //, "{}[]\",:\\01239.-tfnul \n\x01";
      for (2 .. $i % 4) { substr $text, rand length $text, $i & 8, $spoil[rand @spoil] }
      next if $text =~ /\\ud[89a-f](?!..\\ud[c-f]..)|[0-9]\.[0-9]|[0-9]e[-+]?[0-9]|-0\b/i; # half a pair, and 1.0, 3e3 and -0, which the module writes 1, 3000 and 0
      my ($want, $have) = map { $_ // "none" } eval { flat($pp->decode($text)) }, undef;
      $have = eval { flat(Ours::decode($text)) } // "none";
      $want eq $have or die "$text: $want, $have\n";
      $want eq "none" ? $none++ : $same++;
    }
    $same > 1000 && $none > 500 or die "$same $none\n";' -- "${json_reader}"
}

@test "addresses are those of the card with the MAC, without link-local ones" {
  recorded x '[{"name":"lo","hardware-address":"00:00:00:00:00:00","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]},
    {"name":"docker0","hardware-address":"02:42:00:00:00:01","ip-addresses":[{"ip-address":"172.17.0.1","ip-address-type":"ipv4"}]},
    {"name":"down","hardware-address":"bc:24:11:00:00:02"},
    {"name":"ens18","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"169.254.1.1","ip-address-type":"ipv4"},
      {"ip-address":"fe80::1","ip-address-type":"ipv6"},{"ip-address":"10.0.0.5","ip-address-type":"ipv4"},{"ip-address":"2001:db8::5","ip-address-type":"ipv6"},
      {"ip-address":"6.6.6.6; reboot","ip-address-type":"ipv4"}]}]'
  json_addresses x BC:24:11:00:00:01
  [[ ${#json_lines[@]} -eq 2 && ${json_lines[0]} == 'ipv4 10.0.0.5' && ${json_lines[1]} == 'ipv6 2001:db8::5' ]]
  json_addresses x BC:24:11:00:00:02
  [[ ${json_rc} -eq 0 && ${#json_lines[@]} -eq 0 ]]
}

@test "the wrapped form of pvesh is read too" {
  recorded x '{"result":[{"hardware-address":"aa:aa:aa:aa:aa:aa","ip-addresses":[{"ip-address":"10.0.0.5","ip-address-type":"ipv4"}]}]}'
  json_addresses x AA:AA:AA:AA:AA:AA
  [[ ${json_lines[0]} == 'ipv4 10.0.0.5' ]]
}
