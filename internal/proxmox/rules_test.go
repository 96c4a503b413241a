package proxmox

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// kernelRules is what lib/egress.sh reads from a kernel for a VM of mode internet with an
// IPv4 address, and one of mode none with IPv6.
const kernelRules = `map from: "tap200i0" : goto from_200
map from: "tap200i1" : drop
map to: "tap200i0" : goto to_200
chain from_200: ether saddr != bc:24:11:00:02:00 drop
chain from_200: arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp operation { request, reply } arp saddr ether bc:24:11:00:02:00 arp saddr ip { 0.0.0.0, 10.99.0.200 } meta length 28 accept
chain from_200: ether type != ip drop
chain from_200: ip hdrlength != 5 drop
chain from_200: ip frag-off & 8191 != 0 drop
chain from_200: ip saddr { 0.0.0.0, 10.99.0.200 } ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept
chain from_200: ip saddr != 10.99.0.200 drop
chain from_200: ip daddr @node4 tcp sport 22 tcp flags != syn / syn,ack accept
chain from_200: ip daddr { 10.99.0.53, 10.99.0.54 } udp dport 53 accept
chain from_200: ip daddr { 10.99.0.53, 10.99.0.54 } tcp dport 53 accept
chain from_200: ip daddr @closed4 drop
chain from_200: ip daddr 203.0.0.0/24 drop
chain from_200: accept
chain from_200: drop
chain to_200: drop
map from: "tap201i0" : goto from_201
map to: "tap201i0" : goto to_201
chain from_201: ether saddr != bc:24:11:00:02:00 drop
chain from_201: ether type != ip6 drop
chain from_201: icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 daddr != ff02::/16 ip6 daddr != fe80::/10 ip6 daddr != fd99::/64 ip6 daddr != @node6 drop
chain from_201: ip6 length 8 ip6 nexthdr ipv6-icmp ip6 hoplimit 255 meta length 48 icmpv6 type nd-router-solicit icmpv6 code no-route ip6 saddr { ::, fe80::be24:11ff:fe00:200 } accept
chain from_201: ip6 nexthdr ip ip6 hoplimit 1 @nh,320,64 { 0x3a00010005020000, 0x3a00050200000100 } @nh,384,8 { 0x83, 0x84, 0x8f } ip6 saddr { ::, fe80::be24:11ff:fe00:200 } ip6 daddr ff02::/16 meta length <= 216 accept
chain from_201: icmpv6 type { nd-router-solicit, nd-redirect } drop
chain from_201: ip6 saddr != fd99::201 drop
chain from_201: ip6 daddr @node6 tcp sport 22 tcp flags != syn / syn,ack accept
chain from_201: ip6 daddr @closed6 drop
chain from_201: accept
chain to_201: drop
chain prerouting: type filter hook prerouting priority -250
chain prerouting: iifname vmap @from
chain input: type filter hook input priority -250
chain input: iifname vmap @from
chain postrouting: type filter hook postrouting priority 250
chain postrouting: oifname vmap @to
map from: "tap203i0" : goto from_203
map to: "tap203i0" : goto to_203
chain from_203: ether type != ip drop
chain from_203: ip daddr @closed4 drop
chain from_203: ip daddr @ranges_203 accept
chain from_203: drop
chain to_203: drop
set ranges_203: 9.9.8.0-9.9.9.255, 10.0.0.0/8
set closed4: 10.0.0.0/8, 169.254.0.0/16
set closed6: ::/3, 4000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
set node4: 203.0.113.1
set node6: empty`

func TestRules_SayWhichDecides(t *testing.T) {
	t.Parallel()
	r := rules(strings.Split(kernelRules, "\n"))
	for _, tt := range []struct {
		id       int
		to, want string
	}{
		{200, "9.9.9.9:443", "accept"},
		{200, "169.254.169.254:80", "ip daddr @closed4 drop (169.254.0.0/16)"},
		{200, "10.99.0.53:22", "ip daddr @closed4 drop (10.0.0.0/8)"},
		{200, "10.99.0.54:53", "ip daddr { 10.99.0.53, 10.99.0.54 } tcp dport 53 accept"},
		{200, "203.0.0.7:443", "ip daddr 203.0.0.0/24 drop"},
		{200, "203.0.113.1:22", "accept"},
		{200, "[2620:fe::9]:443", "ether type != ip drop"},
		{201, "9.9.9.9:443", "ether type != ip6 drop"},
		{201, "[2620:fe::9]:443", "accept"},
		{201, "[fd99::1]:443", "ip6 daddr @closed6 drop (4000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff)"},
		{201, "[64:ff9b::1]:443", "ip6 daddr @closed6 drop (::/3)"},
		{201, "[::1]:443", ""},
		{200, "127.0.0.1:443", ""},
		{202, "9.9.9.9:443", ""},
		{203, "9.9.9.9:443", "ip daddr @ranges_203 accept (9.9.8.0-9.9.9.255)"},
		{203, "9.9.7.1:443", "drop"},
		{203, "10.0.0.1:443", "ip daddr @closed4 drop (10.0.0.0/8)"},
	} {
		if got := r.decides(tt.id, netip.MustParseAddrPort(tt.to)); got != tt.want {
			t.Errorf("VM %d to %s: %q, want %q", tt.id, tt.to, got, tt.want)
		}
	}
}

// Nothing is said by rules that are not understood, or that no packet comes to.
func TestRules_SayNothingThatIsNotSure(t *testing.T) {
	t.Parallel()
	to := netip.MustParseAddrPort("9.9.9.9:443")
	change := func(old, fresh string) rules {
		text := strings.Replace(kernelRules, old, fresh, 1)
		if text == kernelRules {
			t.Fatalf("no %q", old)
		}
		return strings.Split(text, "\n")
	}
	for _, tt := range []struct{ old, fresh, problem string }{
		{`map from: "tap200i0" : goto from_200`, "", "map from does not have the VM's card"},
		{`map to: "tap200i0" : goto to_200`, `map to: "tap200i0" : accept`, "map to does not have the VM's card"},
		{"chain prerouting: iifname vmap @from", "chain prerouting: accept", "chain prerouting does not have"},
		{"chain input: type filter hook input priority -250", "", "chain input does not have"},
		{"chain postrouting: oifname vmap @to", "", "chain postrouting does not have"},
		{"chain to_200: drop", "", "chain to_200 is not there"},
		{"chain from_200: ip hdrlength != 5 drop", "chain from_200: meta mark 7 accept", ""},
		{"chain from_200: ip daddr 203.0.0.0/24 drop", "chain from_200: ip daddr 203.0.0.0/24 queue", "203.0.0.7:443"},
		{"set closed4: 10.0.0.0/8, 169.254.0.0/16", "set closed4: private", ""},
	} {
		r := change(tt.old, tt.fresh)
		if a, err := netip.ParseAddrPort(tt.problem); err == nil {
			tt.problem = ""
			if got := r.decides(200, a); got != "" {
				t.Errorf("%q: %q decides", tt.fresh, got)
			}
			continue
		}
		if got := r.decides(200, to); got != "" {
			t.Errorf("%q: %q decides", tt.fresh, got)
		}
		if got := r.problem(200); (got == "") != (tt.problem == "") || !strings.Contains(got, tt.problem) {
			t.Errorf("%q: problem %q, want %q", tt.fresh, got, tt.problem)
		}
	}
	if r := rules(slices.DeleteFunc(strings.Split(kernelRules, "\n"), func(l string) bool { return strings.HasPrefix(l, "set closed4") })); r.decides(200, to) != "" {
		t.Error("a set that was not read is taken for empty")
	}
}
