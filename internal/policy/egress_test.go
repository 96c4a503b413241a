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
	ranges := policy.Choices{DefaultEgress: vm.EgressNone, Egress: "allow", EgressNames: "github.com, 9.9.9.0/24"}
	some := policy.Choices{DefaultEgress: vm.EgressNone, Egress: "allow", DefaultNames: []string{"9.9.9.9"}}
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
		{"addresses, where the internet is allowed", internet, "mcp", names("9.9.9.9", "2620:fe::/48"), ""},
		{"addresses, on the LAN", policy.Choices{}, "mcp", names("9.9.9.9"), ""},
		{"addresses, where names are allowed", policy.Choices{DefaultEgress: vm.EgressAllow}, "mcp", names("a.example", "9.9.9.9"), `"9.9.9.9" is not allowed: it is an address, and "internet" is not allowed`},
		{"addresses, where names are listed as allowed, for the operator as well", some, "cli", names("1.1.1.1", "a.example"), `"1.1.1.1" is not allowed: it is an address, and "internet" is not allowed: ALLOWED_EGRESS allows allow`},
		{"an address that is configured", some, "cli", names("9.9.9.9"), ""},
		{"addresses, for the operator", policy.Choices{DefaultEgress: vm.EgressAllow}, "cli", names("9.9.9.9"), ""},
		{"addresses, where lan is listed and internet is not", policy.Choices{DefaultEgress: vm.EgressNone, Egress: "allow, lan"}, "cli", names("9.9.9.9"), ""},
		{"addresses that are listed", ranges, "mcp", names("9.9.9.9", "9.9.9.128/25", "9.9.9.0/24", "github.com"), ""},
		{"more than a range", ranges, "cli", names("9.9.8.0/23"), `"9.9.8.0/23" is not allowed: ALLOWED_EGRESS_NAMES allows`},
		{"an address beside names that are listed", lists, "cli", names("9.9.9.9"), `"9.9.9.9" is not allowed: ALLOWED_EGRESS_NAMES allows`},
		{"an address beside names that are configured, for MCP", byName, "mcp", names("9.9.9.9"), `"9.9.9.9" is not allowed: MCP clients get the names`},
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
