package job

import (
	"net/netip"
	"slices"
)

// notPublic are ranges that belong to nobody or everybody on the internet, or lead to IPv4; those of
// AS112, which stands in for private networks' name servers; and Azure's platform address, which
// every machine there reaches.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("224.0.0.0/4"),
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("192.31.196.0/24"), netip.MustParsePrefix("192.175.48.0/24"), netip.MustParsePrefix("2620:4f:8000::/48"),
	netip.MustParsePrefix("168.63.129.16/32"),
}

var global6 = netip.MustParsePrefix("2000::/3")

// IsPublic reports whether an address can be a machine's on the internet.
func IsPublic(a netip.Addr) bool {
	return a.Zone() == "" && IsPublicRange(netip.PrefixFrom(a, a.BitLen()))
}

// IsPublicRange reports whether all addresses of a range are public.
func IsPublicRange(p netip.Prefix) bool {
	if !p.Addr().Is4() && (p.Bits() < global6.Bits() || !global6.Contains(p.Addr())) {
		return false
	}
	return !slices.ContainsFunc(notPublic, p.Overlaps)
}

// HasPublic reports whether a range contains public addresses.
func HasPublic(p netip.Prefix) bool {
	within := func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }
	return (p.Addr().Is4() || p.Overlaps(global6)) && !slices.ContainsFunc(notPublic, within)
}

// IsLoopback reports whether a host, a name or an address, can only be this machine.
func IsLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
