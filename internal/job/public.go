package job

import "net/netip"

// notPublic are ranges of unicast that are nobody's on the internet, or lead to IPv4; of AS112, which
// stands in for private networks' name servers; and Azure's platform, which every machine there reaches.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
	netip.MustParsePrefix("192.31.196.0/24"), netip.MustParsePrefix("192.175.48.0/24"), netip.MustParsePrefix("2620:4f:8000::/48"),
	netip.MustParsePrefix("168.63.129.16/32"),
}

var global6 = netip.MustParsePrefix("2000::/3")

// IsPublic reports whether an address is a machine's on the internet.
func IsPublic(a netip.Addr) bool {
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.Zone() != "" || a.Is4In6() || a.Is6() && !global6.Contains(a) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// IsLoopback reports whether a host, a name or an address, is nobody but this machine.
func IsLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}
