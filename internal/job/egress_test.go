package job_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestNetwork_EgressNamesAreHostNamesAndNothingElse(t *testing.T) {
	for name, want := range map[string]string{
		"github.com": "", "*.npmjs.org": "", "GitHub.com": "", "a.b.c.example": "", "xn--bcher-kva.example": "", "1.example.com": "",
		"*.com": "host name", "com": "host name", "localhost": "host name", "": "host name", "a..b": "host name", "-a.example": "host name",
		"a.example.": "host name", "a_b.example": "host name", "a b.example": "host name", strings.Repeat("a", 64) + ".example": "host name",
		"a.*.example": "a *", "*a.example": "a *", "*": "a *",
		"1.2": "not an address", "*.1.2": "not an address", "1.1.1.0x1": "host name", "9.9.9.9:443": "has a port", "9.9.9.0/33": "scheme", "fe80::1%eth0": "not an address",
		"9.9.9.9": "", "9.9.9.0/24": "", "2620:FE::9": "", "2620:fe::/48": "", "10.0.0.1": "is not public", "::1": "is not public", "169.254.169.254/32": "is not public",
		"0.0.0.0/0": "is not public", "8.0.0.0/5": "is not public", "::/0": "is not public", "2000::/3": "is not public",
		"9.9.9.9/24": "the range is 9.9.9.0/24", "2620:fe::9/48": "the range is 2620:fe::/48", "::ffff:9.9.9.9": "give 9.9.9.9", "::ffff:10.0.0.1/128": "give 10.0.0.1", "9.9.9.0/-1": "scheme",
		"a.example:8080": "has a port", "https://a.example": "scheme", "a.example/x": "scheme", "bücher.example": "punycode",
	} {
		m := job.Manifest{Task: "x", AgentType: job.AgentScript, Network: vm.Network{Egress: vm.EgressAllow, Allow: []string{name}}}
		err := m.Validate()
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", name, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

func TestNetwork_EgressOfAJob(t *testing.T) {
	d := job.Defaults{Egress: vm.EgressInternet, EgressNames: []string{"a.example"}}
	tests := []struct {
		name string
		n    vm.Network
		d    job.Defaults
		want vm.Network
		bad  string
	}{
		{"nothing", vm.Network{}, job.Defaults{}, vm.Network{}, ""},
		{"the default", vm.Network{}, d, vm.Network{Egress: vm.EgressInternet}, ""},
		{"another than the default", vm.Network{Egress: vm.EgressLAN}, d, vm.Network{Egress: vm.EgressLAN}, ""},
		{"names alone", vm.Network{Allow: []string{"B.example", "*.a.example", "b.example"}}, d, vm.Network{Egress: vm.EgressAllow, Allow: []string{"*.a.example", "b.example"}}, ""},
		{"the default names", vm.Network{Egress: vm.EgressAllow}, d, vm.Network{Egress: vm.EgressAllow, Allow: []string{"a.example"}}, ""},
		{"a mode that is none", vm.Network{Egress: "wan"}, d, vm.Network{}, "manifest.network.egress"},
		{"names of another mode", vm.Network{Egress: vm.EgressNone, Allow: []string{"a.example"}}, d, vm.Network{}, "has no meaning with egress none"},
		{"addresses", vm.Network{Allow: []string{"9.9.9.9", "2620:FE::/48", "9.9.9.9", "a.example"}}, d, vm.Network{Egress: vm.EgressAllow, Allow: []string{"2620:fe::/48", "9.9.9.9", "a.example"}}, ""},
		{"addresses that are denied", vm.Network{Deny: []string{"9.9.9.0/24", "10.0.0.0/8", "9.9.9.0/24"}}, job.Defaults{}, vm.Network{Egress: vm.EgressInternet, Deny: []string{"10.0.0.0/8", "9.9.9.0/24"}}, ""},
		{"denied on the LAN", vm.Network{Egress: vm.EgressLAN, Deny: []string{"9.9.9.9"}}, d, vm.Network{}, "has no meaning with egress lan"},
		{"denied and allowed", vm.Network{Deny: []string{"9.9.9.9"}, Allow: []string{"9.9.8.0/24"}}, d, vm.Network{}, "is given together with manifest.network.allow"},
		{"a name that is denied", vm.Network{Deny: []string{"a.example"}}, d, vm.Network{}, "names cannot be denied"},
		{"everything that is denied", vm.Network{Deny: []string{"0.0.0.0/0"}}, d, vm.Network{}, "use egress none"},
		{"bits behind a length that are denied", vm.Network{Deny: []string{"9.9.9.9/24"}}, d, vm.Network{}, "the range is 9.9.9.0/24"},
		{"IPv4 in IPv6 that is denied", vm.Network{Deny: []string{"::ffff:9.9.9.9"}}, d, vm.Network{}, "is IPv4 in IPv6"},
		{"too many that are denied", vm.Network{Deny: make([]string, job.MaxEgressNames+1)}, d, vm.Network{}, "manifest.network.deny: are 101 entries"},
		{"too many names", vm.Network{Allow: make([]string, job.MaxEgressNames+1)}, d, vm.Network{}, "101 entries"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := job.Manifest{Task: "x", AgentType: job.AgentScript, Network: tt.n}
			err := m.Validate()
			if tt.bad != "" {
				if err == nil || !strings.Contains(err.Error(), tt.bad) {
					t.Errorf("Validate() = %v, want %q", err, tt.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, m.WithDefaults(tt.d).Network); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPool_OffersVMsOfItsOwnEgressOnly(t *testing.T) {
	p := job.Pool{Name: "p", Resources: vm.Resources{CPU: 1, Memory: "1G", Disk: "5G"}}
	m := job.Manifest{Task: "x", AgentType: job.AgentScript, Resources: p.Resources, Lifecycle: vm.Ephemeral}
	m.Network.Egress = vm.EgressLAN
	if !p.Offers(m) {
		t.Error("lan is what a pool without a mode has")
	}
	for _, n := range []vm.Network{{Egress: vm.EgressNone}, {Egress: vm.EgressAllow, Allow: []string{"a.example"}}, {Egress: vm.EgressInternet, Deny: []string{"9.9.9.9"}}} {
		if m.Network = n; p.Offers(m) {
			t.Errorf("a VM on the LAN is offered to a job with %+v", n)
		}
		p := p
		if p.Network = n; !p.Offers(m) {
			t.Errorf("a VM of the same network is not offered to a job with %+v", n)
		}
	}
	p.Network.Egress, m.Network = vm.EgressInternet, vm.Network{Egress: vm.EgressInternet, Deny: []string{"9.9.9.9"}}
	if p.Offers(m) {
		t.Error("a VM that reaches everything public is offered to a job that denies some")
	}
	p.Network = vm.Network{}
	if made := p.Maker().WithDefaults(job.Defaults{Egress: vm.EgressNone}); made.Network.Limited() {
		t.Errorf("a pool on the LAN has members with %+v", made.Network)
	}
}

func TestEgressAllows(t *testing.T) {
	names := []string{"github.com", "*.npmjs.org"}
	for host, want := range map[string]bool{
		"github.com": true, "api.github.com": false, "xgithub.com": false, "npmjs.org": false,
		"registry.npmjs.org": true, "a.b.npmjs.org": true, "evilnpmjs.org": false, "npmjs.org.evil.example": false, "": false, ".npmjs.org": true,
	} {
		if got := job.EgressAllows(names, host); got != want {
			t.Errorf("%q: %t, want %t", host, got, want)
		}
	}
}

// A pool whose name is a page's could not be reached.
func TestPool_IsNotCalledLikeAPage(t *testing.T) {
	for name, want := range map[string]bool{"new": true, "live": true, "news": false, "build": false} {
		err := job.Pool{Name: name, OS: "debian12", PoolSize: job.PoolSize{Warm: 1}}.Validate()
		if refused := err != nil && strings.Contains(err.Error(), "pool.name"); refused != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNetwork_BehindAForgottenVM(t *testing.T) {
	if got := (vm.Network{}).Behind() + (vm.Network{Egress: vm.EgressLAN}).Behind(); got != "" {
		t.Errorf("on the LAN: %q", got)
	}
	if got := (vm.Network{Egress: vm.EgressNone}).Behind(); !strings.Contains(got, "network rules (egress none) stay") {
		t.Errorf("limited: %q", got)
	}
}
