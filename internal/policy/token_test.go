package policy

import (
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestBounds_OfATokenNarrow(t *testing.T) {
	b, err := NewBounds(Choices{Bridges: "vmbr1,vmbr2", VLANs: "20-29", Secrets: "CI_*,DB", Credentials: "ci-*,github", Network: vm.Network{Bridge: "vmbr0"}, Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	run := func(change func(*job.Principal)) job.Principal {
		p := job.Principal{Name: "ci", Role: job.RoleRun}
		change(&p)
		return p
	}
	of := func(n vm.Network) job.Manifest { return job.Manifest{VMTemplate: "base", Network: n} }
	with := func(secrets ...string) job.Manifest { return job.Manifest{VMTemplate: "base", Secrets: secrets} }
	none := run(func(*job.Principal) {})
	narrow := run(func(p *job.Principal) {
		p.Secrets, p.Networks, p.Templates = []string{"CI_*"}, []string{"vmbr1", "20"}, []string{"ci-*"}
	})
	bridges := run(func(p *job.Principal) { p.Networks = []string{"vmbr*"} })
	tags := run(func(p *job.Principal) { p.Networks = []string{"20-21"} })
	ci := func(m job.Manifest) job.Manifest { m.VMTemplate = "ci-1"; return m }
	tests := []struct {
		name string
		p    job.Principal
		m    job.Manifest
		says string // "": allowed
	}{
		{"the operator has all", job.Operator(), with("DB"), ""},
		{"an admin has all", job.Principal{Name: "a", Role: job.RoleAdmin}, with("DB"), ""},
		{"an admin of some", job.Principal{Name: "a", Role: job.RoleAdmin, Secrets: []string{"CI_*"}}, with("DB"), "this token allows CI_*"},
		{"no secrets unless given", none, with("CI_1"), "this token allows none"},
		{"a secret", narrow, ci(job.Manifest{Secrets: []string{"CI_1"}, Network: vm.Network{Bridge: "vmbr1", VLAN: 20}}), ""},
		{"another secret", narrow, with("DB"), `"DB" is not allowed: this token allows CI_*`},
		{"no credentials unless given", none, job.Manifest{VMTemplate: "base", Credentials: []string{"github"}}, `manifest.credentials[0]: "github" is not allowed: this token allows none`},
		{"a credential", run(func(p *job.Principal) { p.Credentials = []string{"git*"} }), job.Manifest{VMTemplate: "base", Credentials: []string{"github"}}, ""},
		{"in a VM that is there", narrow, job.Manifest{VM: "dev", Credentials: []string{"github"}}, "this token allows none"},
		{"in a VM that is there, on whatever network", narrow, job.Manifest{VM: "dev"}, ""},
		{"made of what the host has", narrow, job.Manifest{Network: vm.Network{Bridge: "vmbr1", VLAN: 20}}, ""},
		{"a credential that the settings do not allow", job.Operator(), job.Manifest{VMTemplate: "base", Credentials: []string{"ci-1", "prod"}}, `manifest.credentials[1]: "prod" is not allowed: ALLOWED_CREDENTIALS allows ci-*, github`},
		{"the settings still hold", run(func(p *job.Principal) { p.Secrets = []string{"*"} }), with("SSH"), "ALLOWED_SECRETS"},
		{"no list of networks", none, of(vm.Network{}), ""},
		{"the configured bridge is not listed", narrow, ci(of(vm.Network{VLAN: 20})), `"vmbr0" is not allowed`},
		{"a bridge that is not listed", narrow, ci(of(vm.Network{Bridge: "vmbr2", VLAN: 20})), `"vmbr2" is not allowed`},
		{"a tag that is not listed", narrow, ci(of(vm.Network{Bridge: "vmbr1", VLAN: 21})), "21 is not allowed"},
		{"no tag where some are listed", narrow, ci(of(vm.Network{Bridge: "vmbr1"})), "0 is not allowed"},
		{"bridges only: no tag", bridges, of(vm.Network{VLAN: 20}), "20 is not allowed"},
		{"bridges only", bridges, of(vm.Network{Bridge: "vmbr2"}), ""},
		{"tags only", tags, of(vm.Network{VLAN: 21}), ""},
		{"tags only: no other bridge", tags, of(vm.Network{Bridge: "vmbr1", VLAN: 21}), `"vmbr1" is not allowed`},
		{"a template that is not listed", narrow, of(vm.Network{Bridge: "vmbr1", VLAN: 20}), `"base" is not allowed: this token allows ci-*`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := b.Check(job.Submission{Client: "api", Principal: tt.p, Manifest: tt.m})
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v; want %q", err, tt.says)
			}
		})
	}
}

// Whatever a token's holder calls itself, it chooses no more than an MCP client.
func TestBounds_OthersThanTheOperatorAreNotTheCommandLine(t *testing.T) {
	b, err := NewBounds(Choices{Network: vm.Network{Bridge: "vmbr0"}})
	if err != nil {
		t.Fatal(err)
	}
	s := job.Submission{Client: "cli", Principal: job.Principal{Name: "ci", Role: job.RoleRun}, Manifest: job.Manifest{Network: vm.Network{Bridge: "vmbr9"}}}
	if err := b.Check(s); err == nil {
		t.Error("another network than the configured one")
	}
	s.Principal = job.Operator()
	if err := b.Check(s); err != nil {
		t.Errorf("the operator: %v", err)
	}
}
