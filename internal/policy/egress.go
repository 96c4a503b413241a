package policy

import (
	"fmt"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

func (b *Bounds) readEgress() error {
	modes, err := entries("ALLOWED_EGRESS", b.own.Egress)
	if err != nil {
		return err
	}
	for _, mode := range modes {
		if !slices.Contains(vm.Egresses, vm.Egress(mode)) {
			return setting("ALLOWED_EGRESS", "%q is not a mode", mode, "use lan, internet, allow and none, separated by commas")
		}
		b.egress = append(b.egress, vm.Egress(mode))
	}
	names, err := entries("ALLOWED_EGRESS_NAMES", b.own.EgressNames)
	if err != nil {
		return err
	}
	for _, name := range names {
		name = strings.ToLower(name)
		if problem := job.EgressProblem(name); problem != "" {
			return setting("ALLOWED_EGRESS_NAMES", "%q "+problem, name, "write names such as github.com or *.npmjs.org, or public addresses, separated by commas")
		}
		b.names = append(b.names, name)
	}
	return nil
}

// mode checks where a new VM may connect to. Anybody may choose a mode that reaches less than the
// configured one, unless a list says otherwise. Addresses are part of what mode internet reaches,
// not of what names reach: they are reached by any protocol, and no proxy sees that.
func (b *Bounds) mode(found *findings, n vm.Network, mcp bool) {
	own := vm.Network{Egress: b.own.DefaultEgress}.Mode()
	refused := func(mode vm.Egress) (why, remedy string) {
		switch {
		case mode == own || slices.Contains(b.egress, mode):
		case len(b.egress) > 0:
			return fmt.Sprintf("%q is not allowed: ALLOWED_EGRESS allows %s, and %s is configured", mode, b.own.Egress, own), "use one of these, or leave it out"
		case mcp && mode.Reaches(own):
			return fmt.Sprintf("%q is not allowed: MCP clients get %s, which is configured, or less, and ALLOWED_EGRESS is not set", mode, own), "leave it out"
		}
		return "", ""
	}
	if why, remedy := refused(n.Mode()); why != "" {
		found.add("manifest.network.egress", why, remedy)
	}
	allows := "ALLOWED_EGRESS_NAMES allows " + strings.Join(b.names, ", ")
	switch {
	case len(b.names) > 0:
	case mcp && own == vm.EgressAllow && len(b.own.DefaultNames) > 0: // other names would reach more than the configured ones
		allows = "MCP clients get the names of DEFAULT_EGRESS_NAMES, and ALLOWED_EGRESS_NAMES is not set"
	default:
		why, _ := refused(vm.EgressInternet)
		lan, _ := refused(vm.EgressLAN)
		for _, entry := range n.Allow {
			if _, is := vm.Range(entry); is && why != "" && lan != "" && !covers(b.own.DefaultNames, entry) {
				found.add("manifest.network.allow", fmt.Sprintf("%q is not allowed: it is an address, and %s", entry, why), "list names; ALLOWED_EGRESS_NAMES may list addresses")
			}
		}
		return
	}
	for _, name := range n.Allow {
		if !covers(b.names, name) && !covers(b.own.DefaultNames, name) {
			found.add("manifest.network.allow", fmt.Sprintf("%q is not allowed: %s", name, allows), "leave it out")
		}
	}
}

// covers reports whether names cover everything that a name or range stands for.
func covers(names []string, name string) bool {
	if at, is := vm.Range(name); is {
		return slices.ContainsFunc(names, func(n string) bool {
			p, is := vm.Range(n)
			return is && p.Bits() <= at.Bits() && p.Contains(at.Addr())
		})
	}
	bare, below := strings.CutPrefix(name, "*.")
	if !below {
		return job.EgressAllows(names, name)
	}
	wide := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !strings.HasPrefix(n, "*.") })
	return slices.Contains(wide, name) || job.EgressAllows(wide, bare)
}
