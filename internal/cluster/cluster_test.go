package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// A world is a cluster as its nodes see it.
type world struct {
	t *testing.T

	mu     sync.Mutex
	nodes  []job.Node
	vms    map[int]string // node, by VM ID
	cut    map[string]bool
	lone   map[string]bool // nodes in a part without quorum
	silent map[string]bool // nodes that say nothing, as after a loss of power
	asked  []string        // what was asked for, "pve1 destroy 105"
}

func newWorld(t *testing.T, nodes ...job.Node) *world {
	for i := range nodes {
		nodes[i].Address = fmt.Sprint("10.0.0.", i+1)
	}
	return &world{t: t, nodes: nodes, vms: map[int]string{}, cut: map[string]bool{}, lone: map[string]bool{}, silent: map[string]bool{}}
}

// cluster returns a Provider with these entries, the names of nodes.
func (w *world) cluster(entries ...string) *Provider {
	o := Options{
		Storage: "local-lvm", Bridge: "vmbr0",
		Open: func(n job.Node) Node {
			w.note(n.Name, "open "+n.Address+" "+strings.Join(n.HostKeys, ","))
			return &fakeNode{world: w, name: n.Name}
		},
	}
	for _, name := range entries {
		o.Entries = append(o.Entries, Entry{Host: "entry-" + name, Node: &fakeNode{world: w, name: name}})
	}
	p := New(o)
	w.t.Cleanup(p.Close)
	return p
}

func (w *world) note(node, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, node+" "+what)
}

// told returns what was asked for that contains a text, and forgets everything.
func (w *world) told(text string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	found := slices.DeleteFunc(w.asked, func(s string) bool { return !strings.Contains(s, text) })
	w.asked = nil
	return found
}

// change changes the world, and has p read it anew.
func (w *world) change(p *Provider, change func()) {
	w.mu.Lock()
	change()
	w.mu.Unlock()
	p.stale()
}

// stale has the next call read the state of the cluster.
func (p *Provider) stale() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readAt, p.triedAt = p.readAt.Add(-freshFor), p.triedAt.Add(-failedFor)
}

type fakeNode struct {
	job.Provider
	world *world
	name  string
}

func (f *fakeNode) up(op string) error {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	if f.world.cut[f.name] {
		return &job.HostError{Op: op, Host: "root@" + f.name, Class: job.HostUnreachable, Text: "connection refused", Remedy: "start it"}
	}
	return nil
}

func (f *fakeNode) Inventory(ctx context.Context) (job.Inventory, error) {
	f.world.note(f.name, "inventory")
	if err := f.heard(ctx); err != nil {
		return job.Inventory{}, err
	}
	if err := f.up("read the nodes"); err != nil {
		return job.Inventory{}, err
	}
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	inv := job.Inventory{Asked: f.name, Cluster: true, Quorum: !f.world.lone[f.name], Nodes: slices.Clone(f.world.nodes)}
	for id, node := range f.world.vms {
		for i := range inv.Nodes {
			if inv.Nodes[i].Name == node {
				inv.Nodes[i].VMs = append(slices.Clone(inv.Nodes[i].VMs), job.NodeVM{ID: id, MemoryMB: 1024})
			}
		}
	}
	return inv, nil
}

func (f *fakeNode) HasBridge(_ context.Context, name string) (bool, error) {
	f.world.note(f.name, "bridge "+name)
	return name == "vmbr0", f.up("look for a bridge")
}

func (f *fakeNode) Close() {}

func (f *fakeNode) BuildTemplate(_ context.Context, spec job.TemplateSpec, _ func(job.Progress)) (vm.VM, error) {
	return vm.VM{Name: spec.Name, Node: f.name}, f.up("build a template")
}

func (f *fakeNode) Templates(context.Context) ([]vm.VM, error) {
	if err := f.up("list templates"); err != nil {
		return nil, err
	}
	return []vm.VM{{ID: 9000 + int(f.name[3]-'0'), Name: "debian", Node: f.name}}, nil
}

func (f *fakeNode) RenameTemplate(_ context.Context, nameOrID, name string) (vm.VM, error) {
	f.world.note(f.name, "rename "+nameOrID+" "+name)
	return vm.VM{Node: f.name}, f.up("rename a template")
}

func (f *fakeNode) RemoveTemplate(_ context.Context, nameOrID string) (vm.VM, error) {
	f.world.note(f.name, "remove "+nameOrID)
	return vm.VM{Node: f.name}, f.up("remove a template")
}

func (f *fakeNode) Uninstall(context.Context, job.UninstallSpec) (job.Uninstalled, error) {
	return job.Uninstalled{Node: f.name}, f.up("uninstall")
}

func (f *fakeNode) Fence(ctx context.Context, engine string) error {
	f.world.note(f.name, "fence "+engine)
	if err := f.heard(ctx); err != nil {
		return err
	}
	return f.up("fence an engine")
}

// heard waits, as long as its caller does, if the node says nothing.
func (f *fakeNode) heard(ctx context.Context) error {
	f.world.mu.Lock()
	silent := f.world.silent[f.name]
	f.world.mu.Unlock()
	if silent {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (f *fakeNode) Generation(o job.Origin, template string) string { return o.Template + template }

// there reports whether the VM is on this node.
func (f *fakeNode) there(op string, v vm.VM) (bool, error) {
	f.world.note(f.name, fmt.Sprint(op, " ", v.ID, " ", v.Node))
	if err := f.up(op); err != nil {
		return false, err
	}
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	switch at := f.world.vms[v.ID]; at {
	case f.name:
		return true, nil
	case "":
		return false, nil
	default:
		return false, &job.MovedError{Node: at, Err: &job.HostError{Op: op, Host: f.name, Class: job.HostLeftAlone, Text: "it is on node '" + at + "'"}}
	}
}

func (f *fakeNode) Destroy(_ context.Context, v vm.VM) error {
	there, err := f.there("destroy", v)
	if there {
		f.world.mu.Lock()
		delete(f.world.vms, v.ID)
		f.world.mu.Unlock()
	}
	return err
}

func (f *fakeNode) AttachVolume(_ context.Context, _ vm.Volume, to vm.VM, _ vm.VolumeUse) error {
	_, err := f.there("attach", to)
	return err
}

func (f *fakeNode) DetachVolume(_ context.Context, _ vm.Volume, from vm.VM) error {
	_, err := f.there("detach", from)
	return err
}

func (f *fakeNode) RemoveVolume(_ context.Context, v vm.Volume) error {
	_, err := f.there("remove volume", v.Holder())
	return err
}

func (f *fakeNode) Status(_ context.Context, v vm.VM) (vm.Status, error) {
	there, err := f.there("status", v)
	if there {
		return vm.Running, err
	}
	return vm.Gone, err
}

func (f *fakeNode) Look(ctx context.Context, v vm.VM) (job.Seen, error) {
	status, err := f.Status(ctx, v)
	return job.Seen{Status: status}, err
}

func (f *fakeNode) StartVM(_ context.Context, v vm.VM, _ func(job.Progress)) (vm.VM, error) {
	_, err := f.there("start", v)
	v.Node = f.name
	return v, err
}

func (f *fakeNode) Create(_ context.Context, spec job.VMSpec, _ func(job.Progress)) (vm.VM, error) {
	f.world.note(f.name, "create "+spec.Name)
	return vm.VM{ID: 105, Name: spec.Name}, f.up("create")
}

func (f *fakeNode) Plan(_ context.Context, spec job.VMSpec) ([]string, error) {
	return []string{f.name + " " + spec.Node}, nil
}

func (f *fakeNode) List(context.Context) ([]vm.VM, error) {
	if err := f.up("list"); err != nil {
		return nil, err
	}
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	var vms []vm.VM
	for id, node := range f.world.vms {
		if node == f.name {
			vms = append(vms, vm.VM{ID: id, Node: node})
		}
	}
	return vms, nil
}

func (f *fakeNode) Check(context.Context) (job.HostReport, error) {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	at := slices.IndexFunc(f.world.nodes, func(n job.Node) bool { return n.Name == f.name })
	if len(f.world.nodes[at].Templates) == 0 {
		return job.HostReport{Checks: []job.Check{{Name: "template", Level: "fail", Text: "not there", Remedy: "build it"}}}, nil
	}
	return job.HostReport{OK: true, Checks: []job.Check{{Name: "template", Level: "ok", Text: "there"}}}, nil
}

func (f *fakeNode) CallbackHost(context.Context) (string, error) {
	return "192.0.2.1", f.up("find the address for callbacks")
}

func (f *fakeNode) Room(_ context.Context, _ []job.Origin, vms []job.Watched) (job.HostRoom, error) {
	if err := f.up("read the room"); err != nil {
		return job.HostRoom{}, err
	}
	room := job.HostRoom{TotalMB: 64 << 10, FreeMB: len(f.name) << 10, Leases: map[string]job.LeaseState{}, Doubts: map[string]string{}}
	for _, w := range vms {
		room.Leases[w.VM.Job] = job.LeaseRenewed
		room.Doubts[w.VM.Job] = "not ours on " + f.name
	}
	return room, nil
}

func three(t *testing.T) *world {
	return newWorld(t, aNode("pve1", 16), aNode("pve2", 16), aNode("pve3", 16))
}

var vm105 = vm.VM{ID: 105, Name: "linus-job-1", Node: "pve2", Job: "j"}

// A VM's verbs go to the node it is on, whose address and host key an entry has
// reported; the entry's own node is reached as the operator says.
func TestVerbs_GoToTheNodeOfTheVM(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105] = "pve2"
	p := w.cluster("pve1")
	for range 2 {
		if status, err := p.Status(t.Context(), vm105); err != nil || status != vm.Running {
			t.Fatalf("%v, %v", status, err)
		}
	}
	want := []string{"pve1 inventory", "pve2 open 10.0.0.2 ssh-rsa AAAA", "pve2 status 105 pve2", "pve2 status 105 pve2"}
	if diff := cmp.Diff(want, w.told("")); diff != "" {
		t.Error(diff)
	}
	if _, err := p.StartVM(t.Context(), vm.VM{ID: 106, Node: "pve1"}, nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pve1 start 106 pve1"}, w.told("")); diff != "" {
		t.Error(diff)
	}
	v, err := p.Create(t.Context(), job.VMSpec{Name: "x", Node: "pve3"}, nil)
	if err != nil || v.Node != "pve3" || len(w.told("pve3 create x")) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// Volumes are attached, and taken off, on the VM's node, wherever it is by now; one is removed
// where its holder is.
func TestVolumes_GoToTheNodeOfTheVM(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105], w.vms[300] = "pve3", "pve1"
	p := w.cluster("pve1")
	v := vm.Volume{ID: "019aa000-0000-7000-8000-000000000001", VMID: 300, Node: "pve2"}
	if err := errors.Join(p.AttachVolume(t.Context(), v, vm105, vm.VolumeUse{}), p.DetachVolume(t.Context(), v, vm105), p.RemoveVolume(t.Context(), v)); err != nil {
		t.Fatal(err)
	}
	want := []string{"pve2 attach 105 pve2", "pve3 attach 105 pve3", "pve2 detach 105 pve2", "pve3 detach 105 pve3", "pve2 remove volume 300 pve2", "pve1 remove volume 300 pve1"}
	var got []string
	for _, line := range w.told("") {
		if strings.Contains(line, "tach ") || strings.Contains(line, "remove volume") {
			got = append(got, line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A VM that was created before there was a choice of nodes has none.
// Entries that are away for a moment are waited for, though another refuses us.
func TestNoEntry_IsOutOfReachIfAnyIs(t *testing.T) {
	t.Parallel()
	p := three(t).cluster("pve1", "pve2")
	refused := &job.HostError{Host: "pve1", Class: job.HostAuth, Text: "its host key is not known"}
	away := &job.HostError{Host: "pve2", Class: job.HostUnreachable, Text: "connection refused"}
	for _, tried := range [][]error{{refused, away}, {away, refused}} {
		if err := p.noEntry(tried); !job.IsClass(err, job.HostUnreachable) || !strings.Contains(err.Error(), "not known") {
			t.Errorf("%v", err)
		}
	}
	if err := p.noEntry([]error{refused, refused}); !job.IsClass(err, job.HostAuth) {
		t.Errorf("%v", err)
	}
}

// A create by an engine that has just started waits for entries that do not answer, but
// not for ever; what people wait for fails at once.
func TestCreate_WaitsForTheFirstReportOfTheCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		p := w.cluster("pve1")
		w.cut["pve1"] = true
		if _, err := p.BuildTemplate(t.Context(), job.TemplateSpec{}, nil); !job.IsClass(err, job.HostUnreachable) || len(w.told("inventory")) != 1 {
			t.Errorf("a template's build: %v", err)
		}
		create := func() error {
			_, err := p.Create(t.Context(), job.VMSpec{Name: "a", Job: "j", Node: "pve1"}, func(job.Progress) {})
			return err
		}
		if err := create(); !job.IsClass(err, job.HostUnreachable) || len(w.told("inventory")) < 10 {
			t.Errorf("a create while no entry answers: %v", err)
		}
		created := make(chan error, 1)
		go func() { created <- create() }()
		synctest.Wait() // until it has asked, and waits
		w.change(p, func() { w.cut["pve1"] = false })
		if err := <-created; err != nil {
			t.Error(err)
		}
	})
}

func TestVerbs_WithoutANodeGoToTheEntry(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105] = "pve1"
	p := w.cluster("pve1")
	if err := p.Destroy(t.Context(), vm.VM{ID: 105}); err != nil || w.vms[105] != "" {
		t.Errorf("%v, %v", err, w.vms)
	}
}

// A VM that was moved by hand is destroyed where it is, after what its first node has of
// it was ended: and then that node's lease of it is gone, too.
func TestDestroy_FollowsAVMThatMoved(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105] = "pve3"
	p := w.cluster("pve1")
	seen, err := p.Look(t.Context(), vm105)
	if err != nil || seen.Status != vm.Running || seen.Node != "pve3" {
		t.Errorf("%+v, %v", seen, err)
	}
	w.told("")
	if err := p.Destroy(t.Context(), vm105); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pve2 destroy 105 pve2", "pve3 destroy 105 pve3", "pve2 destroy 105 pve2"}, w.told("destroy")); diff != "" {
		t.Error(diff)
	}
	if p.known().Locate(105) != "" {
		t.Error("its memory still counts")
	}
}

// What moves without end is left alone, and never taken for gone.
func TestVerbs_GiveUpOnAVMThatMovesOn(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	calls := 0
	_, err := p.on(t.Context(), vm105, func(_ context.Context, _ Node, v vm.VM) error {
		calls++
		next := map[string]string{"pve1": "pve2", "pve2": "pve3", "pve3": "pve1"}[v.Node]
		return &job.MovedError{Node: next, Err: &job.HostError{Class: job.HostLeftAlone}}
	})
	if !job.IsClass(err, job.HostLeftAlone) || calls != mostMoves+1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

// A node that is down is not waited for. Nothing on it counts as destroyed.
func TestVerbs_OfANodeThatIsDown(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105], w.vms[106] = "pve2", "pve3"
	p := w.cluster("pve1")
	w.nodes[1].Online = false
	err := p.Destroy(t.Context(), vm105)
	if !job.IsClass(err, job.HostOffline) || !strings.Contains(err.Error(), "node 'pve2' is offline, as node 'pve1' sees it") {
		t.Errorf("%v", err)
	}
	if status, err := p.Status(t.Context(), vm105); err == nil || status != vm.Unknown {
		t.Errorf("%v, %v", status, err)
	}
	vms, err := p.List(t.Context())
	if !job.IsClass(err, job.HostOffline) || len(vms) != 1 || vms[0].ID != 106 || !strings.Contains(err.Error(), "node 'pve2' did not list its own") {
		t.Errorf("%v, %v", vms, err)
	}
	if told := w.told("pve2"); len(told) != 0 {
		t.Errorf("it was asked: %v", told)
	}
	// The HA manager has it elsewhere: it is proven and destroyed there.
	w.change(p, func() { w.vms[105] = "pve3" })
	if err := p.Destroy(t.Context(), vm105); err != nil || w.vms[105] != "" {
		t.Errorf("%v, %v", err, w.vms)
	}
	// It comes back.
	w.change(p, func() { w.nodes[1].Online, w.vms[105] = true, "pve2" })
	if err := p.Destroy(t.Context(), vm105); err != nil || w.vms[105] != "" {
		t.Errorf("%v, %v", err, w.vms)
	}
}

// A node goes down while a VM is created on it, for which its Provider would wait long:
// what goes on there is left to itself.
func TestCreate_LeavesANodeThatGoesDown(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	p.watchEvery = time.Millisecond
	err := p.whileOnline(t.Context(), "pve2", func(ctx context.Context) error {
		w.change(p, func() { w.nodes[1].Online = false })
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !job.IsClass(err, job.HostOffline) || errors.Is(err, job.ErrDetach) {
		t.Errorf("%v", err)
	}
	// What was done all the same is done.
	err = p.whileOnline(t.Context(), "pve2", func(ctx context.Context) error {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), job.ErrDetach) {
			t.Errorf("%v", context.Cause(ctx))
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v", err)
	}
	// An engine that stops is not a node that goes down.
	stopping, stop := context.WithCancelCause(t.Context())
	err = p.whileOnline(stopping, "pve1", func(ctx context.Context) error {
		stop(job.ErrDetach)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, job.ErrDetach) {
		t.Errorf("%v", err)
	}
}

// The state of the cluster is read at most every ten seconds, however many ask.
func TestInventory_IsReadOnceForAll(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() { _, _ = p.Status(t.Context(), vm105) })
	}
	asking.Wait()
	if told := w.told("inventory"); len(told) != 1 {
		t.Errorf("%v", told)
	}
	p.stale()
	_, _ = p.Status(t.Context(), vm105)
	if told := w.told("inventory"); len(told) != 1 {
		t.Errorf("%v", told)
	}
}

// What is known of the cluster is as old as the question.
func TestInventory_IsAsOldAsItsBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		p := w.cluster("pve1", "pve2")
		w.silent["pve1"] = true
		for range 2 {
			if _, err := p.Nodes(t.Context()); err != nil || len(w.told("pve2 inventory")) != 1 {
				t.Fatalf("not read: %v", err)
			}
			time.Sleep(freshFor - time.Second) // the first took as long as an entry is waited for
		}
		synctest.Wait()
	})
}

// What fails because its caller leaves says nothing about the cluster: the next one asks.
func TestInventory_OfACallerThatLeavesIsNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		p := w.cluster("pve1")
		w.silent["pve1"] = true
		leaving, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		if _, err := p.Nodes(leaving); !errors.Is(err, context.Canceled) {
			t.Errorf("who leaves: %v", err)
		}
		w.mu.Lock()
		w.silent["pve1"] = false
		w.mu.Unlock()
		if inv, err := p.Nodes(t.Context()); err != nil || inv.Asked != "pve1" {
			t.Errorf("the next one: %+v, %v", inv, err)
		}
		synctest.Wait()
	})
}

// An entry that is down is passed over, then and from then on; one in a part of the
// cluster without quorum only as long as another has it.
func TestInventory_ComesFromTheNextEntry(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1", "pve2", "pve3")
	w.cut["pve1"] = true
	if inv, err := p.Nodes(t.Context()); err != nil || inv.Asked != "pve2" {
		t.Fatalf("%v, %v", inv.Asked, err)
	}
	w.told("")
	p.stale()
	_, _ = p.Nodes(t.Context())
	if diff := cmp.Diff([]string{"pve2 inventory"}, w.told("inventory")); diff != "" {
		t.Error(diff)
	}
	w.change(p, func() { w.lone["pve2"] = true })
	if inv, err := p.Nodes(t.Context()); err != nil || inv.Asked != "pve3" || !inv.Quorum {
		t.Errorf("%v, %v", inv.Asked, err)
	}
	w.change(p, func() { w.lone["pve3"] = true })
	inv, err := p.Nodes(t.Context())
	if err != nil || inv.Quorum {
		t.Errorf("%v, %v", inv.Asked, err)
	}
	_, err = p.Place(t.Context(), job.Placement{Spec: spec(1)})
	var full *job.NoRoomError
	if !errors.As(err, &full) || full.Never() || !strings.Contains(err.Error(), "no quorum") || !strings.Contains(err.Error(), "bring the other nodes back") {
		t.Errorf("%v", err)
	}
	w.change(p, func() { w.cut["pve2"], w.cut["pve3"] = true, true })
	_, err = p.Nodes(t.Context())
	if !job.IsClass(err, job.HostUnreachable) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"pve1", "pve2", "pve3"} {
		if !strings.Contains(err.Error(), "root@"+name+": connection refused") {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	// What is known of the nodes is enough to reach the VMs on them.
	w.change(p, func() { w.cut["pve3"] = false; w.lone["pve3"] = false; w.vms[105] = "pve3" })
	if status, err := p.Status(t.Context(), vm.VM{ID: 105, Node: "pve3"}); err != nil || status != vm.Running {
		t.Errorf("%v, %v", status, err)
	}
}

// Nobody but the cluster, through a pinned entry, vouches for the host key of a node.
func TestOpen_RefusesANodeWithoutAHostKey(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.nodes[1].HostKeys = nil
	p := w.cluster("pve1")
	_, err := p.Status(t.Context(), vm105)
	if !job.IsClass(err, job.HostKeyChanged) || !strings.Contains(err.Error(), "pvecm updatecerts") {
		t.Errorf("%v", err)
	}
	w.change(p, func() { w.nodes[1].HostKeys, w.nodes[1].Address = []string{"ssh-rsa BBBB"}, "" })
	if _, err := p.Status(t.Context(), vm105); !job.IsClass(err, job.HostConfig) || !strings.Contains(err.Error(), "address") {
		t.Errorf("%v", err)
	}
	// A node that gets another address or key is opened anew.
	for _, address := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.3"} {
		w.change(p, func() { w.nodes[1].Address = address })
		if _, err := p.Status(t.Context(), vm105); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"pve2 open 10.0.0.2 ssh-rsa BBBB", "pve2 open 10.0.0.3 ssh-rsa BBBB"}, w.told("open")); diff != "" {
		t.Error(diff)
	}
}

// An entry named as a node, or by its address, is that node before it was ever asked.
func TestOpen_TakesTheEntryThatIsTheNode(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"10.0.0.2", "PVE2.example.org", "pve2"} {
		w := three(t)
		p := w.cluster("pve1", "pve2")
		p.o.Entries[1].Host = host
		if _, err := p.Status(t.Context(), vm105); err != nil {
			t.Fatal(err)
		}
		if told := w.told("open"); len(told) != 0 {
			t.Errorf("%s: %v", host, told)
		}
	}
}

// A node whose SSH is down, or that lacks the bridge, gets no VM, and the others do; that
// is seen again later.
func TestPlace_LooksAtTheNodeFirst(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	var mu sync.Mutex
	refused := map[job.RefusalReason]int{}
	p.o.Refused = func(r job.Refusal) {
		mu.Lock()
		defer mu.Unlock()
		refused[r.Reason]++
	}
	w.cut["pve2"] = true
	for range 50 {
		at, err := p.Place(t.Context(), job.Placement{Spec: spec(1)})
		if err != nil || at.Node == "pve2" {
			t.Fatalf("%+v, %v", at, err)
		}
	}
	if told := w.told("pve2 bridge"); len(told) > 1 {
		t.Errorf("it was asked %d times", len(told))
	}
	if refused[job.RefusedUnreachable] == 0 {
		t.Errorf("%v", refused)
	}
	before := maps.Clone(refused)
	if _, err := p.Place(t.Context(), job.Placement{Spec: spec(1), Planned: true}); err != nil || !maps.Equal(refused, before) {
		t.Errorf("only planned: %v, before %v, %v", refused, before, err)
	}
	want := spec(1)
	want.Network.Bridge = "vmbr9"
	_, err := p.Place(t.Context(), job.Placement{Spec: want})
	var full *job.NoRoomError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "pve1: bridge vmbr9 not there") || !strings.Contains(err.Error(), "pve2: ") || full.Never() {
		t.Errorf("%v", err)
	}
}

// A look that its caller has cut off is of no node: it is not kept for others.
func TestPlace_ALookOfACallerThatLeavesIsNotKept(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	inv, err := p.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leaving, leave := context.WithCancel(t.Context())
	w.cut["pve2"] = true
	leave()
	if refused := p.look(leaving, inv.Nodes[1], "vmbr0"); refused.Reason != job.RefusedUnreachable {
		t.Errorf("who leaves: %+v", refused)
	}
	w.cut["pve2"] = false
	if refused := p.look(t.Context(), inv.Nodes[1], "vmbr0"); refused != (job.Refusal{}) {
		t.Errorf("the next one: %+v", refused)
	}
}

func TestPlan_IsOfTheNodeThatWouldBeTaken(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.nodes[0].Online, w.nodes[1].HA = false, "maintenance"
	p := w.cluster("pve2")
	lines, err := p.Plan(t.Context(), spec(1))
	if err != nil || len(lines) != 1 || lines[0] != "pve3 pve3" {
		t.Errorf("%v, %v", lines, err)
	}
}

func TestNodes_AreThoseOfTheSettings(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	p.o.Only = []string{"pve3", "pve2"}
	inv, err := p.Nodes(t.Context())
	if err != nil || len(inv.Nodes) != 2 || inv.Excluded != 1 || !inv.Spread {
		t.Errorf("%+v, %v", inv, err)
	}
	p.o.Only = []string{"pve2", "pve9"}
	if _, err := p.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), "no node 'pve9'; correct PROXMOX_NODES") {
		t.Errorf("%v", err)
	}
}

// Where one node is in order jobs can run, and what the others lack is a warning.
func TestCheck_IsOfEveryNode(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.nodes[1].Templates, w.nodes[2].Online = nil, false
	p := w.cluster("pve1")
	r, err := p.Check(t.Context())
	if err != nil || !r.OK {
		t.Fatalf("%+v, %v", r, err)
	}
	var got []string
	for _, c := range r.Checks {
		got = append(got, c.Node+" "+c.Name+" "+c.Level)
		if c.Level != "ok" && c.Remedy == "" {
			t.Errorf("no remedy: %+v", c)
		}
	}
	if diff := cmp.Diff([]string{" cluster ok", "pve1 template ok", "pve2 template warn", "pve3 node warn"}, got); diff != "" {
		t.Error(diff)
	}
	w.change(p, func() { w.nodes[0].Templates = nil })
	if r, err := p.Check(t.Context()); err != nil || r.OK || r.Checks[1].Level != "fail" {
		t.Errorf("%+v, %v", r, err)
	}
	w.change(p, func() { w.nodes[0].Templates, w.nodes[0].HA = w.nodes[2].Templates, "maintenance" })
	if r, err := p.Check(t.Context()); err != nil || r.OK {
		t.Errorf("%+v, %v", r, err)
	}
}

// Leases are renewed on the nodes that have them; those of a node that does not answer
// stay as they are. What templates are does not depend on which nodes answer.
func TestRoom_IsOfAllNodes(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	watched := func(job_, node string) job.Watched { return job.Watched{VM: vm.VM{Job: job_, Node: node}} }
	origin := job.Origin{Template: "debian"}
	first, err := p.Room(t.Context(), []job.Origin{origin}, []job.Watched{watched("a", "pve1"), watched("b", "pve3")})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]job.LeaseState{"a": job.LeaseRenewed, "b": job.LeaseRenewed}, first.Leases); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "not ours on pve1", "b": "not ours on pve3"}, first.Doubts); diff != "" {
		t.Error(diff)
	}
	w.change(p, func() { w.cut["pve3"], w.nodes[1].Online = true, false })
	second, err := p.Room(t.Context(), []job.Origin{origin}, []job.Watched{watched("a", "pve1"), watched("b", "pve3")})
	if err != nil || second.Leases["b"] != job.LeaseKept || len(second.Doubts) != 1 || second.Generations[origin] != first.Generations[origin] || first.Generations[origin] == "debian" {
		t.Errorf("%+v, %v; first %+v", second, err, first)
	}
	w.change(p, func() { w.nodes[1].Templates = []job.NodeTemplate{{ID: 9000, Name: "debian", Sum: "2"}} })
	if third, err := p.Room(t.Context(), []job.Origin{origin}, nil); err != nil || third.Generations[origin] == first.Generations[origin] {
		t.Errorf("%+v, %v", third, err)
	}
	w.change(p, func() { w.cut["pve1"] = true })
	if _, err := p.Room(t.Context(), nil, nil); err == nil {
		t.Error("no node has answered, and there is room")
	}
}

func TestCallbackHost_IsOfAnEntryThatAnswers(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1", "pve2")
	w.cut["pve1"] = true
	if ip, err := p.CallbackHost(t.Context()); err != nil || ip != "192.0.2.1" {
		t.Errorf("%q, %v", ip, err)
	}
	if err := p.Fence(t.Context(), "e1"); err != nil || len(w.told("pve2 fence e1")) != 1 {
		t.Errorf("%v", err)
	}
	w.cut["pve2"] = true
	if _, err := p.CallbackHost(t.Context()); !job.IsClass(err, job.HostUnreachable) {
		t.Errorf("%v", err)
	}
}

// An entry that has lost its power is not waited for until its connection ends: engines
// are taken over, and the cluster is seen, by the next one.
func TestEntry_ThatSaysNothingIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := three(t)
		p := w.cluster("pve1", "pve2", "pve3")
		w.silent["pve1"], w.cut["pve2"] = true, true
		for what, ask := range map[string]func() error{
			"fence":     func() error { return p.Fence(t.Context(), "e1") },
			"inventory": func() error { _, err := p.Nodes(t.Context()); return err },
		} {
			began := time.Now()
			if err := ask(); err != nil || time.Since(began) > 4*time.Second || len(w.told("pve3 "+what)) != 1 {
				t.Errorf("%s after %s: %v", what, time.Since(began), err)
			}
		}
		// Who gives up is told so, and not that no entry answers.
		w.silent["pve2"], w.silent["pve3"] = true, true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Fence(ctx, "e2"); !errors.Is(err, context.DeadlineExceeded) || len(w.told("fence e2")) != 3 {
			t.Errorf("%v", err)
		}
		synctest.Wait()
	})
}

// A VM is reached through its node, wherever that is.
func TestAt_IsTheNodeOfTheVM(t *testing.T) {
	t.Parallel()
	w := three(t)
	w.vms[105] = "pve2"
	p := w.cluster("pve1")
	at := func() string {
		t.Helper()
		n, err := p.At(t.Context(), vm105)
		if err != nil {
			t.Fatal(err)
		}
		return n.(*fakeNode).name
	}
	if got := at(); got != "pve2" {
		t.Errorf("through %s", got)
	}
	w.change(p, func() { w.vms[105], w.nodes[1].Online = "pve3", false })
	_, _ = p.Nodes(t.Context()) // somebody has looked
	if got := at(); got != "pve3" {
		t.Errorf("through %s", got)
	}
	w.change(p, func() { w.vms[105] = "pve2" })
	_, _ = p.Nodes(t.Context())
	if _, err := p.At(t.Context(), vm105); !job.IsClass(err, job.HostOffline) {
		t.Errorf("%v", err)
	}
}

// The same template is on every node: its name is not enough to remove one of them.
func TestRemoveTemplate_NeedsAnID(t *testing.T) {
	t.Parallel()
	w := three(t)
	p := w.cluster("pve1")
	_, err := p.RemoveTemplate(t.Context(), "debian")
	if !job.IsClass(err, job.HostInvalid) || !strings.Contains(err.Error(), "9001 on node pve1, 9002 on node pve2") {
		t.Errorf("%v", err)
	}
	if _, err := p.RemoveTemplate(t.Context(), "9002"); err != nil || len(w.told("pve2 remove 9002")) != 1 {
		t.Errorf("%v", err)
	}
	if _, err := p.RenameTemplate(t.Context(), "9002", "other"); err != nil || len(w.told("pve2 rename 9002 other")) != 1 {
		t.Errorf("%v", err)
	}
	w.change(p, func() { w.nodes[1].Online = false })
	if templates, err := p.Templates(t.Context()); len(templates) != 2 || !job.IsClass(err, job.HostOffline) {
		t.Errorf("%v, %v", templates, err)
	}
}

// withoutTemplate returns a cluster that has been read while no node had a template; build makes one
// on the second node.
func withoutTemplate(t *testing.T) (w *world, p *Provider, build func()) {
	t.Helper()
	w = three(t)
	templates := w.nodes[0].Templates
	for i := range w.nodes {
		w.nodes[i].Templates = nil
	}
	p = w.cluster("pve1")
	if _, err := p.Nodes(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, p, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.nodes[1].Templates = templates
	}
}

// What was made a moment ago is not refused for what was known before.
func TestFits_LooksOnceMoreBeforeItRefuses(t *testing.T) {
	t.Parallel()
	_, p, build := withoutTemplate(t)
	if err := p.Fits(t.Context(), spec(2)); err == nil {
		t.Fatal("it fits without a template")
	}
	build()
	if err := p.Fits(t.Context(), spec(2)); err != nil {
		t.Error(err)
	}
}

// So is a VM that is about to be made: another engine may have made its template.
func TestPlace_LooksOnceMoreBeforeItSaysNever(t *testing.T) {
	t.Parallel()
	w, p, build := withoutTemplate(t)
	want := job.Placement{Spec: spec(2)}
	if placed, err := p.Place(t.Context(), want); err == nil {
		t.Fatalf("it has a place without a template: %+v", placed)
	}
	build()
	want.Planned = true // what is only planned waits for the next look
	if placed, err := p.Place(t.Context(), want); err == nil {
		t.Errorf("it is read again for a plan: %+v", placed)
	}
	want.Planned = false
	w.told("")
	for range 3 {
		if placed, err := p.Place(t.Context(), want); err != nil || placed.Node != w.nodes[1].Name {
			t.Errorf("%+v, %v", placed, err)
		}
	}
	if reads := w.told("inventory"); len(reads) != 1 {
		t.Errorf("it was read %d times: %q", len(reads), reads)
	}
}
