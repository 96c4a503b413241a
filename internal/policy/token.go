package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// token checks a submission against the restrictions of its principal's token, which never allow
// more than the settings do.
func (b *Bounds) token(found *findings, s job.Submission) {
	p, m := s.Principal, s.Manifest
	if p.Name == "" || p.Name == job.OperatorName {
		return
	}
	for i, name := range m.Secrets {
		if !p.MayName(name) {
			found.add(fmt.Sprintf("manifest.secrets[%d]", i), fmt.Sprintf("%q is not allowed: this token allows %s", name, orNone(p.Secrets)), "leave it out, or ask for a token that allows it")
		}
	}
	for at, name := range m.CredentialsNamed() {
		if !p.MayUse(name) {
			found.add(at, fmt.Sprintf("%q is not allowed: this token allows %s", name, orNone(p.Credentials)), "leave it out, or ask for a token that allows it")
		}
	}
	if m.VM != "" {
		return // the network of an existing VM is checked separately
	}
	if len(p.Networks) > 0 {
		b.tokenNetwork(found, m.Network, p.Networks)
	}
	field, from := madeFrom(m)
	if len(p.Templates) > 0 && from != "" && !job.Among(p.Templates, from) {
		found.add(field, fmt.Sprintf("%q is not allowed: this token allows %s", from, orNone(p.Templates)), "use one of these")
	}
}

// tokenNetwork checks a network against a token's list of bridges and VLAN tags. If the list has no
// bridges, or no tags, only the configured one is allowed.
func (b *Bounds) tokenNetwork(found *findings, n vm.Network, allowed []string) {
	bridge, vlan := cmp.Or(n.Bridge, b.own.Network.Bridge), cmp.Or(n.VLAN, b.own.Network.VLAN)
	isTags := func(entry string) bool {
		first, _, _ := job.VLANs(entry)
		return first != 0
	}
	bridges := slices.DeleteFunc(slices.Clone(allowed), isTags)
	if len(bridges) == 0 && bridge != b.own.Network.Bridge || len(bridges) > 0 && !job.Among(bridges, bridge) {
		found.add("manifest.network.bridge", fmt.Sprintf("%q is not allowed: this token allows the networks %s", bridge, orNone(allowed)), "use one of these")
	}
	inRange := func(entry string) bool {
		first, last, _ := job.VLANs(entry)
		return isTags(entry) && first <= vlan && vlan <= last
	}
	tagged := slices.ContainsFunc(allowed, isTags)
	if !tagged && vlan != b.own.Network.VLAN || tagged && !slices.ContainsFunc(allowed, inRange) {
		found.add("manifest.network.vlan", fmt.Sprintf("%d is not allowed: this token allows the networks %s", vlan, orNone(allowed)), "use one of these")
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}
