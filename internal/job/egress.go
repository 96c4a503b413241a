package job

import (
	"net/netip"
	"slices"
	"strings"

	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// networkDefaults fills in the mode and its names. An allow list alone implies EgressAllow, a deny
// list alone EgressInternet.
func networkDefaults(n vm.Network, d Defaults) vm.Network {
	if n.Egress == "" && len(n.Allow) > 0 {
		n.Egress = vm.EgressAllow
	}
	if n.Egress == "" && len(n.Deny) > 0 {
		n.Egress = vm.EgressInternet
	}
	orDefault(&n.Egress, d.Egress)
	if n.Egress == vm.EgressAllow && len(n.Allow) == 0 {
		n.Allow = d.EgressNames
	}
	n.Allow, n.Deny = inOrder(n.Allow), inOrder(n.Deny)
	return n
}

// inOrder returns the entries sorted, without duplicates and in lower case; nil for an empty list.
func inOrder(list []string) (all []string) {
	for _, entry := range list {
		all = append(all, strings.ToLower(entry))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// MaxEgressNames bounds each list of a VM: the host keeps the addresses in the VM's description.
const MaxEgressNames = 100

var (
	egressLabels = lazyregexp.New(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]$`)
	allDigits    = lazyregexp.New(`^[0-9.]+$`)
)

// EgressProblem returns what is wrong with an entry of network.allow, or "". A valid entry is a
// name, or a public address or range.
func EgressProblem(entry string) string {
	at, is := vm.Range(entry)
	if !is {
		return EgressNameProblem(entry)
	}
	problem := rangeProblem(at)
	if problem == "" && !IsPublicRange(at) {
		problem = "is not public, or only partly public: only public addresses can be allowed"
	}
	return problem
}

// EgressDenyProblem is the same for network.deny, which takes addresses and ranges.
func EgressDenyProblem(entry string) string {
	at, is := vm.Range(entry)
	switch {
	case !is:
		return "is neither an address nor a range: names cannot be denied"
	case at.Bits() == 0:
		return "covers all addresses: use egress none"
	}
	return rangeProblem(at)
}

func rangeProblem(at netip.Prefix) string {
	switch {
	case at.Addr().Is4In6():
		return "is IPv4 in IPv6: give " + at.Addr().Unmap().String() + ", or a range of IPv4"
	case at != at.Masked():
		return "has bits set beyond its prefix length: the range is " + at.Masked().String()
	}
	return ""
}

// EgressNameProblem returns what is wrong with a name of network.allow, or "". A valid name is a
// lower-case host name of two labels or more, or "*." and a host name, which stands for all names
// below that host name but not for itself.
func EgressNameProblem(name string) string {
	bare := strings.TrimPrefix(name, "*.")
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return r > 126 }):
		return "is not ASCII: give its punycode form, as in xn--bcher-kva.example"
	case strings.Contains(name, "://") || strings.Contains(name, "/"):
		return "is not a name: leave out scheme and path"
	case strings.Contains(bare, "*"):
		return "may have a * only at the front, as in *.example.com"
	case allDigits.MatchString(bare) || strings.Contains(bare, ":") && !strings.Contains(bare, "."):
		return "is an address with a port, or not an address"
	case strings.Contains(bare, ":"):
		return "has a port: only 443 and 80 can be reached, whatever the name"
	case len(bare) > 253 || !egressLabels.MatchString(bare) || slices.ContainsFunc(strings.Split(bare, "."), func(l string) bool { return len(l) > 63 }):
		return "is not a host name of two labels or more, as in example.com"
	}
	return ""
}

// EgressAllows reports whether names include a host, given in lower case.
func EgressAllows(names []string, host string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		suffix, below := strings.CutPrefix(name, "*")
		return name == host || below && strings.HasSuffix(host, suffix) && host != suffix[1:]
	})
}

func validateEgress(n vm.Network) []*FieldError {
	var bad []*FieldError
	for _, l := range []struct {
		at, remedy, fewer string
		mode              vm.Egress
		entries           []string
		problem           func(string) string
	}{
		{"allow", "give names such as github.com or *.npmjs.org, or public addresses such as 9.9.9.9 or 9.9.9.0/24", "names such as *.example.com, or larger ranges", vm.EgressAllow, n.Allow, EgressProblem},
		{"deny", "give addresses such as 9.9.9.9 or 9.9.9.0/24", "larger ranges", vm.EgressInternet, n.Deny, EgressDenyProblem},
	} {
		at := "manifest.network." + l.at
		switch {
		case n.Egress != "" && n.Egress != l.mode: // its row refuses this
		case len(l.entries) > MaxEgressNames:
			bad = append(bad, field(at, "use "+l.fewer, "are %d entries, the limit is %d", len(l.entries), MaxEgressNames))
		default:
			for _, entry := range l.entries {
				if problem := l.problem(strings.ToLower(entry)); problem != "" {
					bad = append(bad, field(at, l.remedy, "%.80q %s", entry, problem))
				}
			}
		}
	}
	if n.Egress == "" && len(n.Allow) > 0 && len(n.Deny) > 0 {
		bad = append(bad, field("manifest.network.deny", "give one of the two: what is not allowed is not reached", "is given together with manifest.network.allow"))
	}
	return bad
}

// Connection is one attempt to reach a name by a VM with EgressAllow.
type Connection struct {
	Name, Port string // as asked for; not checked if not allowed
	Allowed    bool
	Why        string // why it is not allowed or cannot be reached

	Ended   bool  // an allowed connection has ended
	Out, In int64 // bytes, once it has ended
}

// Target returns name and port in a line of bounded length: both come from the guest.
func (c Connection) Target() string { return cut(c.Name, 100) + ":" + cut(c.Port, 10) }
