package policy_test

import (
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/vm"
)

func TestBounds_ClientsGetTheEgressThatIsConfiguredAllowedOrLess(t *testing.T) {
	mode := func(e vm.Egress) vm.Network { return vm.Network{Egress: e} }
	names := func(n ...string) vm.Network { return vm.Network{Egress: vm.EgressAllow, Allow: n} }
	internet := policy.Choices{DefaultEgress: vm.EgressInternet}
	lists := policy.Choices{DefaultEgress: vm.EgressNone, Egress: "allow, lan", EgressNames: "github.com, *.npmjs.org", DefaultNames: []string{"pypi.org"}}
	byName := policy.Choices{DefaultEgress: vm.EgressAllow, DefaultNames: []string{"github.com", "*.npmjs.org"}}
	listed := byName
	listed.EgressNames = "pypi.org"
	tests := []struct {
		name    string
		choices policy.Choices
		client  string
		n       vm.Network
		bad     string
	}{
		{"the LAN is what nobody limits", policy.Choices{}, "mcp", mode(""), ""},
		{"less than the LAN", policy.Choices{}, "mcp", mode(vm.EgressNone), ""},
		{"what is configured", internet, "mcp:x", mode(vm.EgressInternet), ""},
		{"less", internet, "mcp:x", names("a.example"), ""},
		{"more, for MCP", internet, "mcp:x", mode(vm.EgressLAN), `"lan" is not allowed: MCP clients get internet`},
		{"more, by saying nothing", internet, "mcp:x", mode(""), `"lan" is not allowed`},
		{"more, for the operator", internet, "cli", mode(vm.EgressLAN), ""},
		{"listed", lists, "mcp", mode(vm.EgressLAN), ""},
		{"not listed, for the operator as well", lists, "cli", mode(vm.EgressInternet), `ALLOWED_EGRESS allows allow, lan, and none is configured`},
		{"names that are listed", lists, "mcp", names("github.com", "registry.npmjs.org", "*.npmjs.org", "*.x.npmjs.org", "pypi.org"), ""},
		{"more than a name", lists, "cli", names("*.github.com"), `"*.github.com" is not allowed: ALLOWED_EGRESS_NAMES allows`},
		{"the configured names", byName, "mcp", names("github.com", "registry.npmjs.org"), ""},
		{"a name that is not configured, for MCP", byName, "mcp:x", names("github.com", "evil.example"), `"evil.example" is not allowed: MCP clients get the names of DEFAULT_EGRESS_NAMES`},
		{"a name that is not configured, for the operator", byName, "cli", names("evil.example"), ""},
		{"names where none are configured", policy.Choices{DefaultEgress: vm.EgressAllow}, "mcp", names("evil.example"), ""},
		{"a name that is listed besides", listed, "mcp", names("pypi.org", "github.com"), ""},
		{"another name", lists, "cli", names("npmjs.org"), `"npmjs.org" is not allowed`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := policy.NewBounds(tt.choices)
			if err != nil {
				t.Fatal(err)
			}
			err = b.Check(job.Submission{Client: tt.client, Manifest: job.Manifest{Network: tt.n}})
			if (err != nil) != (tt.bad != "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("Check() = %v, want %q", err, tt.bad)
			}
		})
	}
	for _, c := range []policy.Choices{{Egress: "wan"}, {Egress: ","}, {EgressNames: "10.0.0.1"}, {EgressNames: "*"}} {
		if _, err := policy.NewBounds(c); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
