package proxmox

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// What a node's nft lists is read without harm, and what decides is a rule of the VM's own
// chain, with all that a chain needs to be in force.
func FuzzRules(f *testing.F) {
	for _, to := range []string{"9.9.9.9:443", "169.254.169.254:80", "[2620:fe::9]:443", "[fd99::50]:22", "127.0.0.1:1"} {
		f.Add(kernelRules, 200, to)
		f.Add(kernelRules, 201, to)
	}
	f.Add(strings.ReplaceAll(kernelRules, "10.0.0.0/8", "9.9.9.9-9.9.9.8, x/3, ::-::ffff, "), 200, "9.9.9.9:443")
	f.Add(strings.ReplaceAll(kernelRules, "{ ", "{"), 200, "10.99.0.53:53")
	f.Fuzz(func(t *testing.T, text string, id int, to string) {
		at, err := netip.ParseAddrPort(to)
		if err != nil {
			return
		}
		r := rules(strings.Split(text, "\n"))
		got := r.decides(id, at)
		if got == "" {
			return
		}
		mine := r.of(fmt.Sprintf("chain from_%d", id))
		if r.problem(id) != "" || at.Addr().IsLoopback() || !slices.ContainsFunc(mine, func(line string) bool { return strings.HasPrefix(got, line) }) {
			t.Errorf("VM %d to %s: %q of %q", id, at, got, mine)
		}
	})
}
