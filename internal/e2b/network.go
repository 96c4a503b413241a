package e2b

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

// network is how clients say where a sandbox may connect to. VMs have egress modes for that, and
// what matches no mode is refused.
type network struct {
	Allow  []string       `json:"allowOut"`
	Deny   []string       `json:"denyOut"`
	Rules  map[string]any `json:"rules"`
	Proxy  map[string]any `json:"egressProxy"`
	Public *bool          `json:"allowPublicTraffic"` // also for clients without a token
	Mask   string         `json:"maskRequestHost"`

	Internet *bool `json:"allow_internet_access"` // only in requests to change the network
}

const (
	everything  = "0.0.0.0/0"
	everything6 = "::/0"

	portMark  = "${PORT}" // placeholder in a mask for the port's number
	maxHost   = 255
	hostChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]"
)

// egress returns the VM's network for what a client asks for. internet false means that everything
// is denied. What is allowed takes precedence over what is denied.
func (n *network) egress(internet *bool) (out vm.Network, err error) {
	if n == nil {
		n = &network{}
	}
	switch {
	case len(n.Rules) > 0:
		return out, invalid("network.rules", "requests of sandboxes are not changed on their way", "leave it out; a job's credentials are what linus has for that: linus help credentials")
	case n.Proxy != nil:
		return out, invalid("network.egressProxy", "sandboxes do not connect through a proxy", "leave it out, and set a proxy in the sandbox's environment")
	case len(n.Mask) > maxHost || strings.Trim(strings.ReplaceAll(n.Mask, portMark, ""), hostChars) != "":
		return out, invalid("network.maskRequestHost", fmt.Sprintf("%.100q is not a host", n.Mask), "give one such as app.example:${PORT}")
	}
	denied := internet != nil && !*internet || slices.Contains(n.Deny, everything)
	names := false
	for _, l := range []struct {
		field, remedy string
		list          []string
		problem       func(string) string
	}{
		{"network.allowOut", "list names, such as example.com or *.example.com, which are reached by HTTP and HTTPS, and public addresses or CIDR blocks such as 9.9.9.0/24: linus help network", n.Allow, job.EgressProblem},
		{"network.denyOut", "give addresses or CIDR blocks such as 10.0.0.0/8; 0.0.0.0/0 is everything", n.Deny, job.EgressDenyProblem},
	} {
		if len(l.list) > job.MaxEgressNames {
			return out, invalid(l.field, fmt.Sprintf("has %d entries, the limit is %d", len(l.list), job.MaxEgressNames), "use names such as *.example.com, or larger ranges")
		}
		for _, entry := range l.list {
			if problem := l.problem(strings.ToLower(entry)); problem != "" && entry != everything && (entry != everything6 || !denied) {
				return out, invalid(l.field, fmt.Sprintf("%.80q %s", entry, problem), l.remedy)
			}
			_, is := vm.Range(entry)
			names = names || !is
		}
	}
	switch {
	case slices.Contains(n.Allow, everything), len(n.Allow)+len(n.Deny) == 0 && !denied:
	case denied && len(n.Allow) == 0:
		out.Egress = vm.EgressNone
	case denied:
		out.Egress, out.Allow = vm.EgressAllow, n.Allow
	case len(n.Deny) == 0 || names:
		return out, invalid("network.allowOut", "is set, but not everything is denied", "deny 0.0.0.0/0, too, for sandboxes that connect to these only, or leave it out")
	default:
		out.Egress = vm.EgressInternet
		out.Deny, err = n.closed()
	}
	return out, err
}

// closed returns what is denied and not allowed, without ranges that have no public address.
func (n *network) closed() (list []string, err error) {
	var all []netip.Prefix
	for _, entry := range n.Deny {
		if at, _ := vm.Range(entry); job.HasPublic(at) {
			all = append(all, at)
		}
	}
	for _, entry := range n.Allow {
		at, _ := vm.Range(entry)
		var left []netip.Prefix
		for _, p := range all {
			left = append(left, without(p, at)...)
		}
		if all = left; len(all) > job.MaxEgressNames {
			return nil, invalid("network.denyOut", fmt.Sprintf("is more than %d ranges without what is allowed", job.MaxEgressNames), "allow larger ranges, or fewer")
		}
	}
	for _, p := range all {
		list = append(list, p.String())
	}
	return list, nil
}

// without returns the parts of a range that are not in another range.
func without(p, other netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(other):
		return []netip.Prefix{p}
	case other.Bits() <= p.Bits():
		return nil
	}
	upper := p.Addr().AsSlice()
	upper[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	half, _ := netip.AddrFromSlice(upper)
	return append(without(netip.PrefixFrom(p.Addr(), p.Bits()+1), other), without(netip.PrefixFrom(half, p.Bits()+1), other)...)
}

// setNetwork changes where a sandbox may connect to. Programs started after that find the proxy, if
// the sandbox needs one now.
func (s *server) setNetwork(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var n network
	if err := decode(r, &n); err != nil {
		return err
	}
	to, err := n.egress(n.Internet)
	if err == nil && n.Mask != "" {
		err = invalid("network.maskRequestHost", "is for good", "create the sandbox with it")
	}
	if err != nil {
		return err
	}
	if stateOf(v) != running {
		return &refusal{http.StatusConflict, "the sandbox is paused: connect to it first"}
	}
	ctx, cancel := onTheWay(r.Context())
	defer cancel()
	was := v
	if v, err = s.change(ctx, v, job.VMChange{Network: &to}); err != nil {
		return err
	}
	if was.Network.Proxied() || v.Network.Proxied() {
		env, err := s.proxied(ctx, v, nil)
		if err != nil {
			return err
		}
		if !v.Network.Proxied() {
			env = job.ProxyEnv(v.ProxyOf(), v.Network)
			for name := range env {
				env[name] = "" // unset it
			}
		}
		if err := s.initialize(ctx, v, envd.Init{Change: env}); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// public reports whether ports need no token; standard applies if the client does not say.
func (n *network) public(standard bool) bool {
	if n == nil || n.Public == nil {
		return standard
	}
	return *n.Public
}
