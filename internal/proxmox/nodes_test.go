package proxmox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

var clusterLines = []string{
	"LINUS_VM_NODE:pve", "LINUS_QUORUM:yes",
	"LINUS_NODE_STORAGE:pve local-lvm active local", "LINUS_NODE_STORAGE:pve2 nfs inactive shared",
	"LINUS_NODE_TEMPLATE:pve 9000 agent-template " + jobID + " abc local base,claude", "LINUS_NODE_TEMPLATE:pve2 9001 other - def shared -",
	"LINUS_NODE_TEMPLATE:pve2 none other - def shared -",
	"LINUS_NODE_VMS:pve 100:512:stopped 101:4096:running", "LINUS_NODE_VMS:pve 102:1024:unknown",
	"LINUS_NODE:name=pve online=1 ip=10.0.0.1 memory=32768 used=4096 ha=online",
	"LINUS_NODE:name=pve2 online=0 ip=fd00::2 memory= used= ha=",
	"LINUS_NODE:name=pve3 online=1 ip=no-address memory=x used= ha=",
	"LINUS_NODE_KEY:pve2 " + hostKey, "LINUS_NODE_KEY:pve2 ssh-ed25519 AAAA", "LINUS_NODE_KEY:pve9 " + hostKey,
}

var pve = job.Node{
	Name: "pve", Address: "10.0.0.1", Online: true, HA: "online", MemoryMB: 32768, UsedMB: 4096,
	Storages:  []job.NodeStorage{{Name: "local-lvm", Active: true}},
	Templates: []job.NodeTemplate{{ID: 9000, Name: "agent-template", Build: jobID, Sum: "abc", Has: []string{"base", "claude"}}},
	VMs:       []job.NodeVM{{ID: 100, MemoryMB: 512, Stopped: true}, {ID: 101, MemoryMB: 4096}, {ID: 102, MemoryMB: 1024}},
}

func TestInventory_IsWhatAHostReportsOfItsCluster(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"list-nodes": succeeds(clusterLines...)})
	got, err := h.provider(nil).Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := job.Inventory{Asked: "pve", Cluster: true, Quorum: true, Nodes: []job.Node{
		pve,
		{
			Name: "pve2", Address: "fd00::2", HostKeys: []string{hostKey},
			Storages:  []job.NodeStorage{{Name: "nfs", Shared: true}},
			Templates: []job.NodeTemplate{{ID: 9001, Name: "other", Sum: "def", Shared: true}},
		},
		{Name: "pve3", Online: true},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(h.asked("list-nodes")); n != 1 {
		t.Errorf("the script was run %d times", n)
	}
	// Without a choice, VMs go to the host's own node.
	got, err = h.provider(nil).Nodes(t.Context())
	if diff := cmp.Diff(job.Inventory{Asked: "pve", Cluster: true, Quorum: true, Excluded: 2, Nodes: []job.Node{pve}}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestInventory_RefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"no quorum told":      {"LINUS_VM_NODE:pve", "LINUS_NODE:name=pve online=1"},
		"not among its nodes": {"LINUS_VM_NODE:pve", "LINUS_QUORUM:none", "LINUS_NODE:name=pve2 online=1"},
		"a node without name": {"LINUS_VM_NODE:pve", "LINUS_QUORUM:none", "LINUS_NODE:name=../pve online=1"},
		"a VM that is none":   {"LINUS_VM_NODE:pve", "LINUS_QUORUM:none", "LINUS_NODE:name=pve online=1", "LINUS_NODE_VMS:pve 101:much:running"},
	} {
		h := newScripted(t, map[string]func(*run) int{"list-nodes": succeeds(lines...)})
		if _, err := h.provider(nil).Inventory(t.Context()); !job.IsClass(err, job.HostVM) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A VM on another node is told of with that node, where the node has a Provider of its
// own; without one it is left alone, as ever.
func TestMember_TellsWhereAVMIs(t *testing.T) {
	t.Parallel()
	moved := []string{"LINUS_VM_STATUS:moved", "LINUS_VM_MOVED:pve2"}
	refuses := func(r *run) int {
		r.say("LINUS_VM_OUTCOME:refused", "LINUS_VM_MOVED:pve2")
		return r.fails(5, "refused to touch VM 105", "do it there")
	}
	for name, do := range map[string]func(context.Context, *proxmox.Provider) error{
		"status":  func(ctx context.Context, p *proxmox.Provider) error { _, err := p.Status(ctx, theVM); return err },
		"look":    func(ctx context.Context, p *proxmox.Provider) error { _, err := p.Look(ctx, theVM); return err },
		"destroy": func(ctx context.Context, p *proxmox.Provider) error { return p.Destroy(ctx, theVM) },
		"stop":    func(ctx context.Context, p *proxmox.Provider) error { return p.StopVM(ctx, theVM) },
	} {
		h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds(moved...), "destroy-vm": refuses, "power-vm": refuses})
		var at *job.MovedError
		err := do(t.Context(), h.provider(func(o *proxmox.Options) { o.Member = true }))
		if !errors.As(err, &at) || at.Node != "pve2" {
			t.Errorf("%s: %v", name, err)
		}
		if err := do(t.Context(), h.provider(nil)); errors.As(err, &at) {
			t.Errorf("%s of the only node: %v", name, err)
		}
	}
	h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds(moved...)})
	if status, err := h.provider(nil).Status(t.Context(), theVM); err != nil || status != vm.Unproven {
		t.Errorf("%v, %v", status, err)
	}
}

// A node with a Provider of its own lists its own VMs, and does not hold up the others'.
func TestMember_ListsItsOwn(t *testing.T) {
	t.Parallel()
	var env map[string]string
	h := newScripted(t, map[string]func(*run) int{"list-vms": func(r *run) int {
		env = r.env
		return succeeds(vmLine(105, "dev"))(r)
	}})
	for member, want := range map[bool]string{true: "own", false: ""} {
		vms, err := h.provider(func(o *proxmox.Options) { o.Member = member }).List(t.Context())
		if err != nil || len(vms) != 1 || env["LIST_NODES"] != want {
			t.Errorf("member %v: %v, %v; LIST_NODES=%q", member, vms, err, env["LIST_NODES"])
		}
	}
}

// A VM is created on the node it is meant for, or not at all.
func TestCreate_SaysOnWhichNode(t *testing.T) {
	t.Parallel()
	var env map[string]string
	h := newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int {
		env = r.env
		return r.fails(3, "node 'pve2' is not this host, which is 'pve'", "connect to it")
	}})
	_, err := h.provider(func(o *proxmox.Options) { o.Member = true }).Create(t.Context(), job.VMSpec{Name: "x", Job: jobID, Owner: owner, Node: "pve2"}, func(job.Progress) {})
	if !job.IsClass(err, job.HostConfig) || env["PROXMOX_NODE"] != "pve2" {
		t.Errorf("%v; PROXMOX_NODE=%q", err, env["PROXMOX_NODE"])
	}
}

func TestHasBridge_AsksTheHost(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, nil)
	for bridge, want := range map[string]bool{"vmbr0": true, "vmbr9": false} {
		if there, err := p.HasBridge(t.Context(), bridge); err != nil || there != want {
			t.Errorf("%s: %v, %v", bridge, there, err)
		}
	}
	inv, err := p.Inventory(t.Context())
	if err != nil || len(inv.Nodes) == 0 || !inv.Nodes[0].Online || inv.Nodes[0].MemoryMB == 0 || len(inv.Nodes[0].Templates) == 0 {
		t.Errorf("%+v, %v", inv, err)
	}
}
