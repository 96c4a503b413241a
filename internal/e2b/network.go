package e2b

import (
	"fmt"
	"net/netip"
	"slices"

	"linus/internal/vm"
)

// network is how clients say where a sandbox may connect to. VMs have modes for that: what is none
// of them is refused.
type network struct {
	Allow  []string       `json:"allowOut"`
	Deny   []string       `json:"denyOut"`
	Rules  map[string]any `json:"rules"`
	Proxy  map[string]any `json:"egressProxy"`
	Public bool           `json:"allowPublicTraffic"` // to whoever has no token, too
	Mask   string         `json:"maskRequestHost"`

	Internet *bool `json:"allow_internet_access"` // where one is changed
}

const everything = "0.0.0.0/0"

// private are the ranges that egress internet keeps a VM from.
var private = []netip.Prefix{
	netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// egress returns the network of a VM that may connect to where a client says. internet false is as
// if everything were denied.
func (n *network) egress(internet *bool) (out vm.Network, err error) {
	if n == nil {
		n = &network{}
	}
	switch {
	case len(n.Rules) > 0:
		return out, invalid("network.rules", "requests of sandboxes are not changed on their way", "leave it out; a job's credentials are what linus has for that: linus help credentials")
	case n.Proxy != nil:
		return out, invalid("network.egressProxy", "sandboxes connect through no proxy", "leave it out, and set a proxy in the sandbox's environment")
	case n.Mask != "":
		return out, invalid("network.maskRequestHost", "ports of sandboxes are served as localhost there", "leave it out")
	}
	denied := internet != nil && !*internet || slices.Contains(n.Deny, everything)
	var inside []string
	for _, text := range n.Deny {
		at, err := prefix(text)
		switch {
		case text == everything:
		case err != nil:
			return out, invalid("network.denyOut", fmt.Sprintf("%.80q is neither an address nor a range", text), "give CIDR blocks such as 10.0.0.0/8")
		case !slices.ContainsFunc(private, func(p netip.Prefix) bool { return p.Bits() <= at.Bits() && p.Contains(at.Addr()) }):
			return out, invalid("network.denyOut", fmt.Sprintf("single public ranges such as %s cannot be denied", text), "deny 0.0.0.0/0 for no connections at all, private ranges for public addresses only, or leave it out")
		default:
			inside = append(inside, text)
		}
	}
	switch {
	case len(n.Allow) > 0 && !slices.Equal(n.Allow, []string{everything}):
		if !denied {
			return out, invalid("network.allowOut", "is a list where nothing is denied", "deny 0.0.0.0/0, too, for sandboxes that connect to these names only, or leave it out")
		}
		for _, name := range n.Allow {
			if _, err := prefix(name); err == nil {
				return out, invalid("network.allowOut", fmt.Sprintf("addresses such as %.80s cannot be listed", name), "list names, such as example.com or *.example.com, which are reached by HTTP and HTTPS: linus help network")
			}
		}
		out.Egress, out.Allow = vm.EgressAllow, n.Allow
	case denied && len(n.Allow) == 0:
		out.Egress = vm.EgressNone
	case len(inside) > 0 && len(n.Allow) == 0:
		out.Egress = vm.EgressInternet
	}
	return out, nil
}

// public reports whether whoever knows a port's host may reach it.
func (n *network) public() bool { return n != nil && n.Public }

func prefix(text string) (netip.Prefix, error) {
	if at, err := netip.ParseAddr(text); err == nil {
		return at.Prefix(at.BitLen())
	}
	p, err := netip.ParsePrefix(text)
	return p.Masked(), err
}
