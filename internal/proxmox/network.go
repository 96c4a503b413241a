package proxmox

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// NetworkRules returns what the node does with a VM's packets, and for each address and port
// the rule that decides about a new TCP connection to it; empty if that is not known.
func (p *Provider) NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (job.NetworkRules, []string, error) {
	op := fmt.Sprintf("read the network rules of VM %d (%s)", v.ID, v.Name)
	env := proof(v)
	env["SHOW_EGRESS"] = "true"
	res, err := p.run(ctx, call{op: op, script: "show-vm", env: env})
	if err == nil {
		err = p.shown(op, res)
	}
	if err != nil {
		return job.NetworkRules{}, nil, err
	}
	mode, seen := res.Lookup("LINUS_EGRESS")
	if !seen {
		return job.NetworkRules{}, nil, &job.HostError{
			Op: op, Host: p.o.Host.Login(), Class: job.HostLeftAlone, Text: "its status is " + res.Get("LINUS_VM_STATUS") + ": whose rules these are is not known",
		}
	}
	n := job.NetworkRules{Mode: vm.Egress(mode), Rules: res.All("LINUS_RULE"), Problem: res.Get("LINUS_NO_RULES")}
	if !slices.Contains(vm.Egresses, n.Mode) {
		n.Mode = vm.EgressNone // as the host has it
	}
	r := rules(n.Rules)
	if n.Mode != vm.EgressLAN && n.Problem == "" {
		n.Problem = r.problem(v.ID)
	}
	decided := make([]string, len(to))
	for i, a := range to {
		decided[i] = r.decides(v.ID, a)
	}
	return n, decided, nil
}

// rules are lines of lib/egress.sh: `map from: "tap100i0" : goto from_100`,
// `chain from_100: ip daddr @closed4 drop`, `set closed4: 10.0.0.0/8, ...` or `set node6: empty`.
type rules []string

// of returns the lines of a map, chain or set.
func (r rules) of(what string) []string {
	var found []string
	for _, line := range r {
		if rest, ok := strings.CutPrefix(line, what+": "); ok {
			found = append(found, rest)
		}
	}
	return found
}

// problem returns why a VM's packets do not pass its chains; empty if they do.
func (r rules) problem(id int) string {
	for _, way := range []struct{ name, hook, match string }{
		{"from", "prerouting", "iifname vmap @from"}, {"from", "input", "iifname vmap @from"}, {"to", "postrouting", "oifname vmap @to"},
	} {
		chain := r.of("chain " + way.hook)
		hooked := slices.ContainsFunc(chain, func(line string) bool { return strings.HasPrefix(line, "type filter hook "+way.hook+" ") })
		switch {
		case !hooked || !slices.Contains(chain, way.match):
			return fmt.Sprintf("chain %s does not have the rule: %s", way.hook, way.match)
		case !slices.Contains(r.of("map "+way.name), fmt.Sprintf(`"tap%di0" : goto %s_%d`, id, way.name, id)):
			return fmt.Sprintf("map %s does not have the VM's card", way.name)
		case len(r.of(fmt.Sprintf("chain %s_%d", way.name, id))) == 0:
			return fmt.Sprintf("chain %s_%d is not there", way.name, id)
		}
	}
	return ""
}

// decides returns the rule that decides about the first packet of a TCP connection from
// the VM's own address to another; empty if there are no rules, or one that comes before
// is none of those that are known here.
func (r rules) decides(id int, to netip.AddrPort) string {
	if r.problem(id) != "" || to.Addr().IsLoopback() { // that stays in the VM
		return ""
	}
	for _, line := range r.of(fmt.Sprintf("chain from_%d", id)) {
		matches, known := r.matches(strings.Fields(strings.NewReplacer("{ ", "{", " }", "}", ", ", ",").Replace(line)), to)
		switch {
		case !known:
			return ""
		case matches != "":
			return line + strings.TrimPrefix(matches, "yes")
		}
	}
	return ""
}

// matches returns "yes" if a rule matches a connection's first packet, with the element
// of a set that did, and whether the rule is known.
func (r rules) matches(words []string, to netip.AddrPort) (match string, known bool) {
	family, other := "ip", "ip6"
	if to.Addr().Is6() {
		family, other = other, family
	}
	text := strings.Join(words, " ")
	is := func(form string) bool { return strings.HasPrefix(text+" ", form+" ") }
	isND := is("ip6 length") && strings.Contains(text, " ip6 nexthdr ipv6-icmp ")
	switch {
	case text == "drop" || text == "accept":
		return "yes", true
	case is("ether type != " + family), is("ether saddr !="), is(family + " saddr !="): // what the VM sends properly
		return "", true
	case is("ether type != " + other):
		return "yes", true
	case is("ether type arp"), is("arp"), is("ip hdrlength !="), is("ip frag-off"), is("ip6 nexthdr"), is("icmpv6"), isND, is("ip saddr"), is("ip6 saddr"), is(other + " daddr"):
		return "", true // ARP, other protocols, extension headers and DHCP
	case !is(family+" daddr") || len(words) < 4:
		return "", false
	}
	rest := strings.Join(words[3:], " ")
	element, known := r.within(words[2], to.Addr())
	switch {
	case !known:
		return "", false
	case element == "" || strings.HasPrefix(rest, "udp ") || strings.HasPrefix(rest, "tcp sport "):
		return "", true
	case rest == "drop" || rest == "accept" || rest == fmt.Sprintf("tcp dport %d accept", to.Port()):
		if strings.HasPrefix(words[2], "@") {
			return "yes (" + element + ")", true
		}
		return "yes", true
	case strings.HasPrefix(rest, "tcp dport "):
		return "", true
	}
	return "", false
}

// within returns the element of `@set`, `{a,b}` or a single one in which an address is;
// empty if there is none.
func (r rules) within(operand string, a netip.Addr) (element string, known bool) {
	list := strings.Split(strings.Trim(operand, "{}"), ",")
	if name, ok := strings.CutPrefix(operand, "@"); ok {
		elements := r.of("set " + name)
		if len(elements) != 1 {
			return "", false
		}
		list = strings.Split(elements[0], ", ")
	}
	for _, element := range list {
		if element == "empty" {
			continue
		}
		first, last, isRange := strings.Cut(element, "-")
		if prefix, err := netip.ParsePrefix(element); err == nil {
			if prefix.Contains(a) {
				return element, true
			}
			continue
		}
		if !isRange {
			last = first
		}
		from, err := netip.ParseAddr(first)
		to, toErr := netip.ParseAddr(last)
		if err != nil || toErr != nil {
			return "", false
		}
		if a.BitLen() == from.BitLen() && from.Compare(a) <= 0 && a.Compare(to) <= 0 {
			return element, true
		}
	}
	return "", true
}
