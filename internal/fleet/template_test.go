package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// An agent's job is refused where its template is known to lack the agent, and nowhere else.
func TestFits_RefusesATemplateWithoutTheAgent(t *testing.T) {
	claude := job.Manifest{Task: "mend it", AgentType: job.AgentClaude, VMTemplate: providertest.FakeTemplate, Resources: vm.Resources{CPU: 1, Memory: "1G", Disk: "10G"}}
	with := func(change func(m *job.Manifest)) job.Manifest {
		m := claude
		change(&m)
		return m
	}
	lacks := []string{"base", "node", "codex"}
	for _, tt := range []struct {
		name    string
		has     []string
		m       job.Manifest
		refused string // with this in it
	}{
		{"it has it", []string{"base", "node", "claude"}, claude, ""},
		{"it does not say what it has", nil, claude, ""},
		{"it lacks it", lacks, claude, `manifest.agentType: template agent-template has no claude; installed in it: base, node, codex; build one that has it ({template build} {template build name} another-name {template build bootstrap} "base node codex claude") and name it`},
		{"it has nothing", []string{"none"}, claude, `installed in it: none; build one that has it ({template build} {template build name} another-name {template build bootstrap} "claude") and name it`},
		{"another agent", lacks, with(func(m *job.Manifest) { m.AgentType = "codex" }), ""},
		{"no agent", lacks, with(func(m *job.Manifest) { m.AgentType = job.AgentScript }), ""},
		{"another template", lacks, with(func(m *job.Manifest) { m.VMTemplate = "elsewhere" }), ""},
		{"an image", lacks, with(func(m *job.Manifest) { m.VMTemplate, m.OS = "", "debian-12" }), ""},
		{"a command that starts it", lacks, with(func(m *job.Manifest) { m.Agent.Command = `/opt/claude "$@"` }), ""},
		{"a file that is it", lacks, with(func(m *job.Manifest) { m.Files = []job.File{{Path: "/usr/local/bin/claude"}} }), ""},
		{"another PATH", lacks, with(func(m *job.Manifest) { m.Env = map[string]string{"PATH": "/opt/bin:/bin"} }), ""},
		{"a VM that is there", lacks, with(func(m *job.Manifest) { m.VMTemplate, m.VM = "", "dev" }), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.host.Set(providertest.Behaviour{Has: tt.has})
				r.start()
				err := r.Fits(r.t.Context(), tt.m)
				if (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// The host is looked at for agents' jobs alone, once for many, and again before one is refused:
// the template may just have been built. One that is silent is not waited for, and refuses none.
func TestFits_LooksAtTemplatesSeldom(t *testing.T) {
	bubble(t, func(r *rig) {
		looks := 0
		r.host.looked = func(context.Context) { looks++ }
		lacks, has := providertest.Behaviour{Has: []string{"base"}}, providertest.Behaviour{Has: []string{"base", "claude"}}
		r.host.Set(lacks)
		r.start()
		m := job.Manifest{Task: "x", AgentType: job.AgentScript, VMTemplate: providertest.FakeTemplate, Resources: vm.Resources{CPU: 1, Memory: "1G", Disk: "10G"}}
		fits := func(want int) error {
			t.Helper()
			err := r.Fits(r.t.Context(), m)
			if looks != want {
				t.Errorf("%d looks, not %d", looks, want)
			}
			return err
		}
		if err := fits(0); err != nil {
			t.Error(err)
		}
		m.AgentType = job.AgentClaude
		if fits(2) == nil {
			t.Error("not refused")
		}
		r.host.Set(has)
		for range 3 {
			if err := fits(3); err != nil {
				t.Error(err)
			}
		}
		r.pass(2 * time.Minute)
		r.host.looked = func(ctx context.Context) {
			looks++
			<-ctx.Done()
		}
		began := time.Now()
		for range 3 {
			if err := fits(4); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("a silent host was waited for %v", took)
		}
	})
}
