package proxmox

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// NetworkRules returns the node's packet rules for a VM and, for each address and port, the rule that
// decides about a new TCP connection to it; empty if that is unknown.
func (p *Provider) NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (job.NetworkRules, []string, error) {
	op := fmt.Sprintf("read the network rules of VM %d (%s)", v.ID, v.Name)
	env := proof(v)
	env["SHOW_EGRESS"] = "true"
	res, err := p.show(ctx, op, env)
	if err != nil {
		return job.NetworkRules{}, nil, err
	}
	mode, seen := res.Lookup("LINUS_EGRESS")
	if !seen {
		return job.NetworkRules{}, nil, p.failure(op, job.HostLeftAlone, "its status is "+res.Get("LINUS_VM_STATUS")+": it is not known whose rules these are", "")
	}
	n := job.NetworkRules{Mode: vm.Egress(mode), Rules: res.All("LINUS_RULE"), Problem: res.Get("LINUS_NO_RULES")}
	if !slices.Contains(vm.Egresses, n.Mode) {
		n.Mode = vm.EgressNone // the host treats it as that
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

// rules are lines of lib/egress.sh: `map from: "tap100i0" : goto from_100`, `chain from_100: ip daddr
// @closed4 drop`, `set closed4: 10.0.0.0/8, ...` or `set node6: empty`.
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

// problem returns why a VM's packets do not pass through its chains; empty if they do.
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

// toAddresses matches a rule on destination addresses without its beginning: the addresses, then either a
// match that excludes first packets of TCP connections, or an optional TCP port and a verdict.
var toAddresses = lazyregexp.New(`^(@\w+|{ [^}]*}|[^ {]+) (?:(?:udp|tcp sport) .*|(?:tcp dport (\d+) )?(drop|accept))$`)

// decides returns the rule that decides about the first packet of a TCP connection from the VM's own
// address to another one, with the set element that matches. It returns "" if there are no rules, or if
// an unknown rule comes before the deciding one.
func (r rules) decides(id int, to netip.AddrPort) string {
	if r.problem(id) != "" || to.Addr().IsLoopback() { // never leaves the VM
		return ""
	}
	family, other := "ip", "ip6"
	if to.Addr().Is6() {
		family, other = other, family
	}
	// Such a packet passes these rules, which are about spoofed addresses, ARP, other protocols,
	// extension headers and DHCP.
	passed := []string{
		"ether type != " + family, "ether type arp", "ether saddr !=", "arp", "ip hdrlength !=", "ip frag-off",
		"ip6 nexthdr", "icmpv6", "ip saddr", "ip6 saddr", other + " daddr",
	}
	for _, line := range r.of(fmt.Sprintf("chain from_%d", id)) {
		is := func(form string) bool { return strings.HasPrefix(line, form+" ") }
		switch {
		case line == "drop", line == "accept", is("ether type != " + other):
			return line
		case slices.ContainsFunc(passed, is), is("ip6 length") && strings.Contains(line, " ip6 nexthdr ipv6-icmp "):
			continue
		case !is(family + " daddr"):
			return ""
		}
		rule := toAddresses.FindStringSubmatch(strings.TrimPrefix(line, family+" daddr "))
		if rule == nil {
			return ""
		}
		addresses, port, verdict := rule[1], rule[2], rule[3]
		element, known := r.within(addresses, to.Addr())
		switch {
		case !known:
			return ""
		case element == "" || verdict == "" || port != "" && port != strconv.Itoa(int(to.Port())):
		case strings.HasPrefix(addresses, "@"):
			return line + " (" + element + ")"
		default:
			return line
		}
	}
	return ""
}

// within returns the element of `@set`, `{ a, b }` or a single element that contains an address; empty if
// none does. known is false if the elements cannot be read.
func (r rules) within(addresses string, a netip.Addr) (element string, known bool) {
	elements := strings.Trim(addresses, "{ }")
	if name, ok := strings.CutPrefix(addresses, "@"); ok {
		set := r.of("set " + name)
		if len(set) != 1 {
			return "", false
		}
		elements = strings.TrimSuffix(set[0], "empty")
	}
	for element := range strings.FieldsFuncSeq(elements, func(c rune) bool { return c == ' ' || c == ',' }) {
		if prefix, err := netip.ParsePrefix(element); err == nil {
			if prefix.Contains(a) {
				return element, true
			}
			continue
		}
		first, last, isRange := strings.Cut(element, "-")
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
