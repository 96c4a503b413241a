package job

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Addresses says where VMs get their addresses from: the network (First is then invalid) or a pool.
type Addresses struct {
	First, Last netip.Addr // of a pool; equal for a single address
	Bits        int        // of the network's prefix
}

// maxPool bounds a pool, as the host script does.
const maxPool = 1 << 16

// byNetwork are the ways to get an address from the network; auto6 (or slaac) and dhcp6 are for
// IPv6-only networks.
var byNetwork = []string{"dhcp", "auto6", "slaac", "dhcp6"}

// ParseAddresses parses dhcp, auto6, dhcp6, an address with its prefix length, as in 10.0.0.50/24,
// or a pool, as in 10.0.0.50-10.0.0.99/24.
func ParseAddresses(text string) (Addresses, error) {
	if slices.Contains(byNetwork, text) {
		return Addresses{}, nil
	}
	addresses, _, _ := strings.Cut(text, "/")
	first, last, isRange := strings.Cut(addresses, "-")
	if !isRange {
		last = first
	}
	a := Addresses{}
	prefix, err := netip.ParsePrefix(first + strings.TrimPrefix(text, addresses))
	if err == nil {
		a.First, a.Bits = prefix.Addr(), prefix.Bits()
		a.Last, err = netip.ParseAddr(last)
	}
	switch {
	case err != nil || a.Bits == 0 || a.First.Zone() != "":
		return Addresses{}, fmt.Errorf("%q is not dhcp, auto6, dhcp6, an address such as 10.0.0.50/24 or a pool such as 10.0.0.50-10.0.0.99/24", text)
	case !prefix.Contains(a.Last):
		return Addresses{}, fmt.Errorf("%s is not in the network %s", a.Last, prefix.Masked())
	case a.Last.Less(a.First):
		return Addresses{}, fmt.Errorf("the pool ends at %s, before it begins", a.Last)
	case a.Size() > maxPool:
		return Addresses{}, fmt.Errorf("the pool has more than %d addresses", maxPool)
	}
	return a, nil
}

// Fixed reports whether addresses are configured rather than obtained from the network.
func (a Addresses) Fixed() bool { return a.First.IsValid() }

// Size returns the number of addresses in a pool, capped at maxPool+1.
func (a Addresses) Size() int {
	n := 1
	for at := a.First; at != a.Last && n <= maxPool; at = at.Next() {
		n++
	}
	return n
}

// NetworkContains reports whether a gateway is in the network of a fixed address.
func (a Addresses) NetworkContains(gateway netip.Addr) bool {
	return a.Fixed() && netip.PrefixFrom(a.First, a.Bits).Contains(gateway)
}
