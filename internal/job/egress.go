package job

import (
	"slices"
	"strings"

	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// networkDefaults fills in the mode and its names. Names alone mean EgressAllow.
func networkDefaults(n vm.Network, d Defaults) vm.Network {
	if n.Egress == "" && len(n.Allow) > 0 {
		n.Egress = vm.EgressAllow
	}
	orDefault(&n.Egress, d.Egress)
	if n.Egress == vm.EgressAllow && len(n.Allow) == 0 {
		n.Allow = d.EgressNames
	}
	names := make([]string, 0, len(n.Allow))
	for _, name := range n.Allow {
		names = append(names, strings.ToLower(name))
	}
	slices.Sort(names)
	n.Allow = nil
	if len(names) > 0 {
		n.Allow = slices.Compact(names)
	}
	return n
}

// MaxEgressNames bounds the names of one VM.
const MaxEgressNames = 100

var (
	egressLabels = lazyregexp.New(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]$`)
	allDigits    = lazyregexp.New(`^[0-9.]+$`)
)

// EgressNameProblem returns what is wrong with a name of network.allow, empty if
// nothing is: it is a host name of two labels or more in lower case, or "*." and
// one, which stands for all names below it and not for that itself.
func EgressNameProblem(name string) string {
	bare := strings.TrimPrefix(name, "*.")
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return r > 126 }):
		return "is not ASCII: give its punycode form, as in xn--bcher-kva.example"
	case strings.Contains(name, "://") || strings.Contains(name, "/"):
		return "is not a name: leave out scheme and path"
	case strings.Contains(bare, "*"):
		return "has a * elsewhere than in front, as in *.example.com"
	case allDigits.MatchString(bare) || strings.Contains(bare, ":") && !strings.Contains(bare, "."):
		return "is an address: only names can be allowed"
	case strings.Contains(bare, ":"):
		return "has a port: only 443 and 80 can be reached, whatever the name"
	case len(bare) > 253 || !egressLabels.MatchString(bare) || slices.ContainsFunc(strings.Split(bare, "."), func(l string) bool { return len(l) > 63 }):
		return "is not a host name of two labels or more, as in example.com"
	}
	return ""
}

// EgressAllows reports whether a host, in lower case, is one of names.
func EgressAllows(names []string, host string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		suffix, below := strings.CutPrefix(name, "*")
		return name == host || below && strings.HasSuffix(host, suffix) && host != suffix[1:]
	})
}

func validateEgress(n vm.Network) []*FieldError {
	var bad []*FieldError
	switch {
	case len(n.Allow) == 0 || n.Egress != "" && n.Egress != vm.EgressAllow: // which its row refuses
	case len(n.Allow) > MaxEgressNames:
		bad = append(bad, field("manifest.network.allow", "use names such as *.example.com", "are %d names, the limit is %d", len(n.Allow), MaxEgressNames))
	default:
		for _, name := range n.Allow {
			if problem := EgressNameProblem(strings.ToLower(name)); problem != "" {
				bad = append(bad, field("manifest.network.allow", "give names such as github.com or *.npmjs.org", "%q %s", name, problem))
			}
		}
	}
	return bad
}

// Connection is one attempt of a VM with EgressAllow to reach a name.
type Connection struct {
	Name, Port string // as asked for; not checked where it is not allowed
	Allowed    bool
	Why        string // it is not allowed, or cannot be reached

	Ended   bool  // an allowed one: it is over
	Out, In int64 // bytes, when it has ended
}

// Target returns name and port in a line of bounded length: both are the guest's words.
func (c Connection) Target() string { return cut(c.Name, 100) + ":" + cut(c.Port, 10) }
