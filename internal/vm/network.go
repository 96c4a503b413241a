package vm

import (
	"cmp"
	"net/netip"
	"slices"
)

// Network says how a new VM is connected; empty fields mean the server's settings.
type Network struct {
	Bridge  string `json:"bridge,omitempty"`
	VLAN    int    `json:"vlan,omitempty"`
	IP      string `json:"ip,omitempty"`
	Gateway string `json:"gateway,omitempty"`

	Egress Egress   `json:"egress,omitempty"`
	Allow  []string `json:"allow,omitempty"` // names, addresses and ranges
	Deny   []string `json:"deny,omitempty"`  // addresses and ranges
}

// Egress says where a VM's packets may go.
type Egress string

// The egress modes, from what reaches the most to what reaches nothing.
const (
	EgressLAN      Egress = "lan"      // anywhere a machine on its bridge can
	EgressInternet Egress = "internet" // public addresses and its name servers
	EgressAllow    Egress = "allow"    // names, through a proxy of the engine, and public addresses
	EgressNone     Egress = "none"     // nowhere
)

// Egresses are all modes, in this order.
var Egresses = []Egress{EgressLAN, EgressInternet, EgressAllow, EgressNone}

// Reaches reports whether a VM of mode e may reach something that a VM of mode other may not.
func (e Egress) Reaches(other Egress) bool {
	rank := func(e Egress) int { return slices.Index(Egresses, orLAN(e)) }
	return rank(e) < rank(other)
}

func orLAN(e Egress) Egress { return cmp.Or(e, EgressLAN) }

// Mode returns the network's egress mode; EgressLAN if it is not set.
func (n Network) Mode() Egress { return orLAN(n.Egress) }

// Limited reports whether the VM may not go everywhere.
func (n Network) Limited() bool { return n.Mode() != EgressLAN }

// Range parses an address, as a range of one, or a CIDR block; false: it is neither.
func Range(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(text)
	return p, err == nil
}

// Ranges returns the addresses and ranges that the VM's rules name: those it reaches with
// EgressAllow, or does not reach with EgressInternet.
func (n Network) Ranges() []string {
	return slices.DeleteFunc(slices.Concat(n.Allow, n.Deny), func(entry string) bool {
		_, is := Range(entry)
		return !is
	})
}

// Proxied reports whether the VM reaches names through a proxy.
func (n Network) Proxied() bool {
	return n.Mode() == EgressAllow && (len(n.Allow) == 0 || len(n.Ranges()) < len(n.Allow))
}

// Reaching returns the network with its own connection and the egress of o.
func (n Network) Reaching(o Network) Network {
	n.Egress, n.Allow, n.Deny = o.Egress, o.Allow, o.Deny
	return n
}

// IsZero reports whether the network has only the server's settings.
func (n Network) IsZero() bool {
	return n.Bridge == "" && n.VLAN == 0 && n.IP == "" && n.Gateway == "" && n.Egress == "" && len(n.Allow)+len(n.Deny) == 0
}

// Equal reports whether two networks are the same.
func (n Network) Equal(o Network) bool {
	return n.Bridge == o.Bridge && n.VLAN == o.VLAN && n.IP == o.IP && n.Gateway == o.Gateway &&
		n.Mode() == o.Mode() && slices.Equal(n.Allow, o.Allow) && slices.Equal(n.Deny, o.Deny)
}

// Behind says what remains on the host when the VM is forgotten; empty on the LAN.
func (n Network) Behind() string {
	if !n.Limited() {
		return ""
	}
	return "its network rules (egress " + string(n.Mode()) + ") stay as long as its notes contain a word linus-egress=: remove that word to lift them"
}
