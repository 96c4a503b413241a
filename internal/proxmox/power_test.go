package proxmox_test

import (
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

// revert shows that what a snapshot holds is back, and nothing else is.
func revert(t *testing.T, h *labHost, v vm.VM) vm.VM {
	p := h.provider(t, nil)
	newMachine(t, h, v).run(`echo kept >~/kept; echo old >~/changed; sync`)
	if err := p.SnapshotVM(t.Context(), v, "clean", false); err != nil {
		t.Fatal(err)
	}
	newMachine(t, h, v).run(`echo new >~/changed; echo more >~/added; sync`)
	if err := p.StopVM(t.Context(), v); err != nil {
		t.Error(err)
	}
	if status, err := p.Status(t.Context(), v); err != nil || status != vm.Stopped {
		t.Errorf("status = %q, %v", status, err)
	}
	v, err := p.RevertVM(t.Context(), v, "clean", func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	newMachine(t, h, v).want("what is there", `cd; cat kept changed; ! [ -e added ] || echo added`, "kept\nold")
	if operations := h.operationsLeft(t); len(operations) != 0 {
		t.Errorf("operations left on the host: %v", operations)
	}
	return v
}

// What a VM is to be arrives in the commands that make it; what is not said is
// the server's setting.
func TestPlan_SaysWhatTheVMIsToBe(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, func(o *proxmox.Options) { o.Gateway, o.VLANTag = "10.9.8.1", 7 })
	tests := []struct {
		name   string
		change func(*job.VMSpec)
		want   []string
		not    []string
	}{
		{"a template, the server's network", func(*job.VMSpec) {}, []string{"'clone' '9000'", "tag=7", "ip=dhcp", "bridge=" + h.Config.Bridge}, []string{"fetch "}},
		{"an operating system", func(s *job.VMSpec) { s.Template, s.OS = "", "rocky-9" }, []string{"fetch https://", "Rocky", "'--ciuser' 'rocky'"}, []string{"'clone'"}},
		{"a network of its own", func(s *job.VMSpec) {
			s.Network = vm.Network{VLAN: 42, IP: "10.1.2.3/24", Gateway: "10.1.2.1"}
		}, []string{"tag=42", "ip=10.1.2.3/24,gw=10.1.2.1"}, []string{"tag=7"}},
		{"an address, the server's gateway", func(s *job.VMSpec) { s.Network.IP = "10.9.8.7/24" }, []string{"ip=10.9.8.7/24,gw=10.9.8.1"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := h.spec()
			tt.change(&spec)
			commands, err := p.Plan(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(commands, "\n")
			for _, want := range tt.want {
				if !strings.Contains(plan, want) {
					t.Errorf("no %q in\n%s", want, plan)
				}
			}
			if i := slices.IndexFunc(tt.not, func(no string) bool { return strings.Contains(plan, no) }); i >= 0 {
				t.Errorf("%q in\n%s", tt.not[i], plan)
			}
		})
	}
	spec := h.spec()
	spec.Network.Bridge = "vmbr77"
	if _, err := p.Plan(t.Context(), spec); err == nil || !strings.Contains(err.Error(), "vmbr77") {
		t.Errorf("a bridge there is not: %v", err)
	}
}

// A raw file has no snapshots, so that is not what a VM's disk is where disks are
// files.
func TestSnapshot_OfAVMFromAnImageOnFiles(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, func(o *proxmox.Options) {
		h.fromImage(t)(o)
		o.Storage = "local"
	})
	ctx, spec := t.Context(), h.spec()
	spec.Template, spec.OS = "", "debian-12"
	vm, err := p.Create(ctx, spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SnapshotVM(ctx, vm, "clean", false); err != nil {
		t.Error(err)
	}
	if _, err := p.RevertVM(ctx, vm, "clean", func(job.Progress) {}); err != nil {
		t.Error(err)
	}
	if err := p.Destroy(ctx, vm); err != nil {
		t.Error(err)
	}
}
