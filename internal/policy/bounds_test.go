package policy_test

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/vm"
)

func TestBounds_ClientsGetWhatIsConfiguredAndWhatIsAllowed(t *testing.T) {
	ours := vm.Network{Bridge: "vmbr0", VLAN: 7, IP: "10.0.0.50-10.0.0.99/24", Gateway: "10.0.0.1"}
	none := policy.Choices{}
	lists := policy.Choices{Bridges: "vmbr1, dmz*\nvmbr3", VLANs: "20, 30-39", Templates: "agent-*, 9000, debian-12", Secrets: "CI_*, KEY"}
	net := func(n vm.Network) job.Manifest { return job.Manifest{Network: n} }
	tests := []struct {
		name    string
		choices policy.Choices
		client  string
		m       job.Manifest
		field   string // empty: allowed
		wants   []string
	}{
		{"MCP, nothing chosen", none, "mcp:claude", job.Manifest{}, "", nil},
		{"MCP, the configured network by name", none, "mcp", net(ours), "", nil},
		{"MCP, another bridge", none, "mcp:claude", net(vm.Network{Bridge: "vmbr1"}), "manifest.network.bridge", []string{`"vmbr1"`, "MCP clients get only the configured network, bridge vmbr0", "ALLOWED_BRIDGES is not set"}},
		{"MCP, another VLAN", none, "mcp", net(vm.Network{VLAN: 8}), "manifest.network.vlan", []string{"8 is not allowed", "VLAN 7", "ALLOWED_VLANS is not set"}},
		{"MCP, another address", none, "mcp", net(vm.Network{IP: "10.0.0.7/24"}), "manifest.network.ip", []string{`"10.0.0.7/24"`, "VM_IP_CONFIG (10.0.0.50-10.0.0.99/24)"}},
		{"MCP, dhcp where there is a pool", none, "mcp", net(vm.Network{IP: "dhcp"}), "manifest.network.ip", nil},
		{"MCP, another gateway", none, "mcp", net(vm.Network{Gateway: "10.0.0.2"}), "manifest.network.gateway", []string{"VM_GATEWAY"}},
		{"the command line, anything", none, "cli", net(vm.Network{Bridge: "vmbr9", VLAN: 99, IP: "10.9.0.2/24", Gateway: "10.9.0.1"}), "", nil},
		{"a client named like one of MCP", none, "mcpx", net(vm.Network{Bridge: "vmbr9"}), "", nil},
		{"MCP, any template, secret and credential", none, "mcp", job.Manifest{VMTemplate: "other", Secrets: []string{"ANY"}, Credentials: []string{"any"}}, "", nil},
		{"the command line, an address", none, "cli", net(vm.Network{IP: "10.0.0.7/24", Gateway: "10.0.0.2"}), "", nil},
		{"MCP, an allowed bridge", lists, "mcp", net(vm.Network{Bridge: "vmbr3"}), "", nil},
		{"MCP, by a pattern, with addresses of there", lists, "mcp", net(vm.Network{Bridge: "dmz1", IP: "10.9.0.2/24", Gateway: "10.9.0.1"}), "", nil},
		{"MCP, the configured one beside a list", lists, "mcp", net(vm.Network{Bridge: "vmbr0"}), "", nil},
		{"MCP, an address on the configured one beside a list", lists, "mcp", net(vm.Network{Bridge: "vmbr0", IP: "10.0.0.7/24"}), "manifest.network.ip", nil},
		{"MCP, a bridge that is not listed", lists, "mcp", net(vm.Network{Bridge: "vmbr2"}), "manifest.network.bridge", []string{`"vmbr2"`, "ALLOWED_BRIDGES allows vmbr1, dmz*, vmbr3", "vmbr0 is configured"}},
		{"so for the command line", lists, "cli", net(vm.Network{Bridge: "vmbr2"}), "manifest.network.bridge", nil},
		{"a VLAN", lists, "mcp", net(vm.Network{VLAN: 20}), "", nil},
		{"a VLAN of a range", lists, "mcp", net(vm.Network{VLAN: 39}), "", nil},
		{"the configured VLAN", lists, "mcp", net(vm.Network{VLAN: 7}), "", nil},
		{"a VLAN beyond", lists, "cli", net(vm.Network{VLAN: 40}), "manifest.network.vlan", []string{"40 is not allowed: ALLOWED_VLANS allows 20, 30-39, and 7 is configured"}},
		{"a VLAN below", lists, "cli", net(vm.Network{VLAN: 29}), "manifest.network.vlan", nil},
		{"a template", lists, "cli", job.Manifest{VMTemplate: "agent-small"}, "", nil},
		{"a template by its ID", lists, "cli", job.Manifest{VMTemplate: "9000"}, "", nil},
		{"the configured template", lists, "cli", job.Manifest{VMTemplate: "base"}, "", nil},
		{"another template", lists, "cli", job.Manifest{VMTemplate: "windows"}, "manifest.vmTemplate", []string{`"windows"`, "ALLOWED_TEMPLATES allows agent-*, 9000, debian-12", "base is configured"}},
		{"a system", lists, "mcp", job.Manifest{OS: "debian-12"}, "", nil},
		{"another system", lists, "mcp", job.Manifest{OS: "ubuntu"}, "manifest.os", []string{`"ubuntu"`}},
		{"a system called as the template is", lists, "cli", job.Manifest{OS: "base"}, "manifest.os", nil},
		{"a VM that exists, where new ones reach nothing", policy.Choices{DefaultEgress: vm.EgressNone}, "mcp", job.Manifest{VM: "dev"}, "", nil},
		{"a VM that exists", lists, "mcp", job.Manifest{VM: "dev"}, "", nil},
		{"secrets", lists, "mcp", job.Manifest{Secrets: []string{"CI_TOKEN", "KEY"}}, "", nil},
		{"another secret", lists, "cli", job.Manifest{VM: "dev", Secrets: []string{"KEY", "ROOT"}}, "manifest.secrets[1]", []string{`"ROOT" is not allowed: ALLOWED_SECRETS allows CI_*, KEY`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.choices.Network, tt.choices.Template = ours, "base"
			b, err := policy.NewBounds(tt.choices)
			if err != nil {
				t.Fatal(err)
			}
			err = b.Check(job.Submission{Client: tt.client, Manifest: tt.m})
			if tt.field == "" {
				if err != nil {
					t.Errorf("Check() = %v", err)
				}
				return
			}
			var refused *job.InvalidError
			if !errors.As(err, &refused) || len(refused.Fields) != 1 || refused.Fields[0].Field != tt.field || refused.Fields[0].Remedy == "" {
				t.Fatalf("Check() = %v, want %s refused", err, tt.field)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestCheckStorage(t *testing.T) {
	const mine = `: MCP clients and tokens get only the configured storage, local-lvm, and ALLOWED_STORAGES is not set; leave it out`
	const listed = `: ALLOWED_STORAGES allows nfs, ssd-*, and local-lvm is configured; use one of these, or leave it out`
	of := func(role job.Role, storages ...string) job.Principal {
		return job.Principal{Name: "ci", Role: role, Storages: storages}
	}
	for _, tt := range []struct {
		name, allowed, client string
		who                   job.Principal
		storage               string
		says                  string // "": allowed
	}{
		{"no list, the operator", "", "cli", job.Operator(), "other", ""},
		{"no list, an admin", "", "api", of(job.RoleAdmin), "other", ""},
		{"no list, an MCP client of the operator", "", "mcp:claude", job.Operator(), "other", mine},
		{"no list, a token that calls itself the command line", "", "cli", of(job.RoleRun), "other", mine},
		{"no list, the configured one by name", "", "mcp", of(job.RoleRun), "local-lvm", ""},
		{"no list, nothing named", "", "mcp", of(job.RoleRun), "", ""},
		{"no list, whatever the token lists", "", "api", of(job.RoleRun, "other"), "other", mine},
		{"an allowed one", "nfs, ssd-*", "mcp", of(job.RoleRun), "nfs", ""},
		{"an allowed one, by a pattern", "nfs, ssd-*", "mcp", of(job.RoleRun), "ssd-2", ""},
		{"the configured one beside a list", "nfs, ssd-*", "api", of(job.RoleRun), "local-lvm", ""},
		{"one that is not listed", "nfs, ssd-*", "api", of(job.RoleRun), "other", listed},
		{"so for the operator", "nfs, ssd-*", "cli", job.Operator(), "other", listed},
		{"so for a token that lists it", "nfs, ssd-*", "api", of(job.RoleRun, "*"), "other", listed},
		{"one of the token's", "nfs, ssd-*", "api", of(job.RoleRun, "ssd-?"), "ssd-2", ""},
		{"one that the token does not list", "nfs, ssd-*", "api", of(job.RoleRun, "ssd-?"), "nfs", `: this token allows ssd-?; use one of these`},
		{"so for an admin's token", "", "api", of(job.RoleAdmin, "ssd-?", "hdd"), "nfs", `: this token allows ssd-?, hdd; use one of these`},
		{"the configured one, which the token does not list", "nfs, ssd-*", "api", of(job.RoleRun, "nfs"), "", `"local-lvm" is not allowed: this token allows nfs; use one of these`},
		{"the configured one, which the token lists", "", "api", of(job.RoleRun, "local-*"), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := policy.NewBounds(policy.Choices{Storages: tt.allowed, Storage: "local-lvm"})
			if err != nil {
				t.Fatal(err)
			}
			err = b.CheckStorage(tt.client, tt.who, tt.storage)
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if tt.says[0] == ':' {
				tt.says = `"` + tt.storage + `" is not allowed` + tt.says
			}
			if err == nil || err.Error() != "storage: "+tt.says {
				t.Errorf("%v; want %s", err, tt.says)
			}
		})
	}
}

func TestBounds_SayEverythingAtOnce(t *testing.T) {
	b, err := policy.NewBounds(policy.Choices{Secrets: "A", Templates: "x", Network: vm.Network{Bridge: "vmbr0", IP: "dhcp"}, Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Check(job.Submission{Client: "mcp", Manifest: job.Manifest{VMTemplate: "y", Secrets: []string{"B"}, Network: vm.Network{Bridge: "a", VLAN: 2, IP: "auto6", Gateway: "::1"}}})
	var refused *job.InvalidError
	if !errors.As(err, &refused) || len(refused.Fields) != 6 {
		t.Errorf("Check() = %v, want six complaints", err)
	}
}

func TestNewBounds_RefusesWhatIsNoList(t *testing.T) {
	for name, c := range map[string]policy.Choices{
		"ALLOWED_BRIDGES": {Bridges: ", \n"}, "ALLOWED_STORAGES": {Storages: "a/b"}, "ALLOWED_TEMPLATES": {Templates: "a b"}, "ALLOWED_SECRETS": {Secrets: "[x"}, "ALLOWED_VLANS": {VLANs: "20,x"},
		"ALLOWED_EGRESS_NAMES": {EgressNames: ","},
	} {
		if _, err := policy.NewBounds(c); err == nil || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("NewBounds(%+v) = %v, want %s named", c, err, name)
		}
	}
	if _, err := policy.NewBounds(policy.Choices{VLANs: "20, 30 - 39"}); err != nil {
		t.Error(err)
	}
	for _, tags := range []string{",", "0", "4095", "9-3", "-5", "1-", "1-4095", "2 0"} {
		if _, err := policy.NewBounds(policy.Choices{VLANs: tags}); err == nil {
			t.Errorf("ALLOWED_VLANS %q is taken", tags)
		}
	}
}
