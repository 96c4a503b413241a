package executor_test

import (
	"cmp"
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

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// nodes is a hypervisor of several nodes: it places VMs where places says.
type nodes struct {
	job.Provider

	mu      sync.Mutex
	place   func(want job.Placement) (string, error)
	why     string // of what place returns
	wanted  []job.Placement
	created map[string]string // node, by job
	never   error             // of Fits
	fits    func(job.VMSpec) error
	seen    job.Seen // of Look, if its status is set
	listed  string   // the node of all VMs, as List has it; empty: where they were created
}

func (n *nodes) Place(_ context.Context, want job.Placement) (job.Placed, error) {
	n.mu.Lock()
	n.wanted = append(n.wanted, want)
	n.mu.Unlock()
	node, err := n.place(want) // without the lock: a bubble's clock stands still while anyone waits for one
	return job.Placed{Node: node, Why: n.why}, err
}

func (n *nodes) Fits(_ context.Context, spec job.VMSpec) error {
	if n.fits != nil {
		return n.fits(spec)
	}
	return n.never
}

func (n *nodes) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	n.mu.Lock()
	n.created[spec.Job] = spec.Node
	n.mu.Unlock()
	v, err := n.Provider.Create(ctx, spec, progress)
	v.Node = spec.Node
	return v, err
}

func (n *nodes) Look(ctx context.Context, v vm.VM) (job.Seen, error) {
	n.mu.Lock()
	seen := n.seen
	n.mu.Unlock()
	if seen.Status != "" {
		return seen, nil
	}
	return n.Provider.Look(ctx, v)
}

func (n *nodes) List(ctx context.Context) ([]vm.VM, error) {
	vms, err := n.Provider.List(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range vms {
		vms[i].Node = cmp.Or(n.listed, n.created[vms[i].Job])
	}
	return vms, err
}

func (n *nodes) Nodes(context.Context) (job.Inventory, error) {
	return job.Inventory{Asked: "pve1", Quorum: true, Spread: true, Nodes: []job.Node{
		{Name: "pve2", Online: true, HA: "maintenance", MemoryMB: 64 << 10},
		{Name: "pve1", Online: true, MemoryMB: 32 << 10, VMs: []job.NodeVM{{ID: 7, MemoryMB: 1 << 10}}, Templates: []job.NodeTemplate{{Name: "b"}, {Name: "a", Build: "0199f000-0000-7000-8000-000000000001"}, {Name: "a"}}},
		{Name: "pve3"},
	}}, nil
}

func onNodes(t *testing.T, maxJobs int, place func(job.Placement) (string, error)) (*rig, *nodes) {
	t.Parallel()
	return onNodesHere(t, maxJobs, place)
}

// onNodesHere is onNodes for a test in a bubble of testing/synctest.
func onNodesHere(t *testing.T, maxJobs int, place func(job.Placement) (string, error)) (*rig, *nodes) {
	r := newRigHere(t, maxJobs)
	n := &nodes{Provider: r.fake, place: place, created: map[string]string{}}
	r.stop()
	r.opts.Provider, r.vms.Placer = n, n
	r.restart()
	return r, n
}

func full(never bool) error {
	return &job.NoRoomError{Refusals: []job.Refusal{{Node: "pve1", Reason: job.RefusedMemory, Text: "3 GiB free of 16, needs 4", Never: never}}}
}

// The node is in the row before the VM can exist, and each choice counts the VMs for
// which one was made before.
func TestPlace_EachChoiceKnowsTheOthers(t *testing.T) {
	until := make(chan struct{})
	r, n := onNodes(t, 8, func(want job.Placement) (string, error) {
		return []string{"pve1", "pve2"}[len(want.VMs)%2], nil
	})
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Until: until} }}, false)
	var ids []string
	for range 6 {
		ids = append(ids, r.submit())
	}
	for _, id := range ids {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	close(until)
	n.mu.Lock()
	defer n.mu.Unlock()
	var counts []int
	for _, want := range n.wanted {
		counts = append(counts, len(want.VMs))
		if want.Spec.MemoryMB != 2048 || want.Spec.Template != providertest.FakeTemplate {
			t.Errorf("%+v", want.Spec)
		}
		for _, vm := range want.VMs {
			if vm.MemoryMB != 2048 || vm.Node == "" {
				t.Errorf("%+v", vm)
			}
		}
	}
	if !slices.Equal(counts, []int{0, 1, 2, 3, 4, 5}) {
		t.Errorf("VMs counted: %v", counts)
	}
	for _, id := range ids {
		if j, err := r.Job(t.Context(), id); err != nil || j.VM.Node == "" || j.VM.Node != n.created[id] {
			t.Errorf("%+v, %v; created on %q", j.VM, err, n.created[id])
		}
	}
}

// A job says where its VM is created, and why there, before it is.
func TestPlace_IsToldWithItsReason(t *testing.T) {
	r, n := onNodes(t, 1, func(job.Placement) (string, error) { return "pve1", nil })
	n.why = "the only one that can take it"
	r.behave(providertest.Behaviour{}, true)
	id := r.submit()
	r.wait(id)
	events, err := r.store.Events(t.Context(), id, 0)
	told := slices.IndexFunc(events, func(e job.Event) bool {
		return e.Kind == job.EventProgress && e.Phase == job.PhaseProvision && e.Text == "on node pve1: the only one that can take it"
	})
	created := slices.IndexFunc(events, func(e job.Event) bool { return e.Kind == job.EventProgress && strings.Contains(e.Text, "start") })
	if told < 0 || created >= 0 && created < told {
		t.Errorf("%+v, %v", events, err)
	}
}

// A job that fits nowhere waits, and says why; it goes on when a VM is gone. Meanwhile it
// can be cancelled, and another engine takes it up.
func TestPlace_AJobWaitsForRoom(t *testing.T) {
	until := make(chan struct{})
	r, _ := onNodes(t, 8, func(want job.Placement) (string, error) {
		if len(want.VMs) > 0 {
			return "", full(false)
		}
		return "pve1", nil
	})
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Until: until} }}, true)
	first := r.submit()
	r.until(first, func(j job.Job) bool { return j.Status == job.Running })
	second, third := r.submit(), r.submit()
	waits := func(j job.Job) bool {
		return j.Status == job.Pending && j.VM == nil && j.Progress == "waiting: no node can take it: pve1: 3 GiB free of 16, needs 4"
	}
	r.until(second, waits)
	r.until(third, waits)
	if err := r.Cancel(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(third); j.Outcome.Reason != job.ReasonCancelled {
		t.Errorf("%+v", j.Outcome)
	}
	r.stop()
	r.restart()
	r.until(second, waits)
	close(until)
	for _, id := range []string{first, second} {
		if j := r.wait(id); j.Status != job.Success {
			t.Errorf("%+v", j.Outcome)
		}
	}
}

// What never fits is refused at once where that is known, and fails where it turns out.
func TestPlace_WhatNeverFitsFails(t *testing.T) {
	r, n := onNodes(t, 8, func(job.Placement) (string, error) { return "", full(true) })
	if j := r.wait(r.submit()); j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "pve1: 3 GiB free of 16, needs 4") || j.VM != nil {
		t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
	}
	m := job.Manifest{Task: "x", AgentType: job.AgentScript}
	refused := func(err error) {
		t.Helper()
		var wrong *job.FieldError
		if !errors.As(err, &wrong) || wrong.Field != "manifest.resources.memory" || !strings.Contains(wrong.Problem, "pve1: 3 GiB free of 16, needs 4") || wrong.Remedy == "" {
			t.Errorf("%#v", err)
		}
	}
	_, err := r.Plan(t.Context(), job.Submission{Manifest: m})
	refused(err)
	n.never = full(true)
	_, err = r.Submit(t.Context(), job.Submission{Manifest: m})
	refused(err)
}

// No entry of the cluster answers for a while.
func TestPlace_OutlastsAnEntryThatIsDown(t *testing.T) {
	calls := 0
	r, _ := onNodes(t, 8, func(job.Placement) (string, error) {
		if calls++; calls < 3 {
			return "", &job.HostError{Op: "read the nodes", Host: "pve", Class: job.HostUnreachable, Text: "refused"}
		}
		return "pve1", nil
	})
	r.behave(providertest.Behaviour{}, true)
	if j := r.wait(r.submit()); j.Status != job.Success {
		t.Errorf("%+v", j.Outcome)
	}
}

// Hosts that are not reached for the heartbeats' threshold are given up.
func TestPlace_GivesUpHostsThatAreNotReached(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r, _ := onNodesHere(t, 8, func(job.Placement) (string, error) {
			return "", &job.HostError{Op: "read the nodes", Host: "pve", Class: job.HostUnreachable, Text: "refused"}
		})
		r.stop()
		r.opts.HeartbeatThreshold = 10 * time.Second
		r.restart()
		began := time.Now()
		j := r.wait(r.submit())
		if took := time.Since(began); j.Outcome.Reason != job.ReasonProvisionFailed || took < r.opts.HeartbeatThreshold || took > 2*r.opts.HeartbeatThreshold {
			t.Errorf("after %s: %+v", took, j.Outcome)
		}
	})
}

// However long another job's choice takes, those behind it do not fail for that.
func TestPlace_WaitsForTheChoicesBefore(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		choosing, goOn := make(chan struct{}), make(chan struct{})
		first := true
		r, _ := onNodesHere(t, 8, func(job.Placement) (string, error) {
			if first {
				first = false
				close(choosing)
				<-goOn
			}
			return "pve1", nil
		})
		r.stop()
		r.opts.HeartbeatThreshold = 50 * time.Millisecond
		r.restart()
		r.behave(providertest.Behaviour{}, true)
		ids := []string{r.submit()}
		<-choosing
		ids = append(ids, r.submit())
		r.until(ids[1], func(j job.Job) bool { return j.Phase == job.PhaseProvision })
		time.AfterFunc(10*r.opts.HeartbeatThreshold, func() { close(goOn) })
		for _, id := range ids {
			if j := r.wait(id); j.Status != job.Success {
				t.Errorf("%+v", j.Outcome)
			}
		}
	})
}

// The host finds the VM on another node: so does the next engine.
func TestRelocate_RecordsWhereAVMIs(t *testing.T) {
	until := make(chan struct{})
	r, n := onNodes(t, 8, func(job.Placement) (string, error) { return "pve1", nil })
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Until: until} }}, true)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	n.mu.Lock()
	n.seen = job.Seen{Status: vm.Running, IP: j.VM.IP, Node: "pve2"}
	n.mu.Unlock()
	r.stop() // before: it would take the one fault
	r.behave(providertest.Behaviour{
		Probes: slices.Repeat([]error{errors.New("no route")}, 5), // whichever look meets one
		Task:   func(job.Payload) providertest.Task { return providertest.Task{Until: until} },
	}, true)
	r.restart()
	r.until(id, func(j job.Job) bool { return j.VM.Node == "pve2" })
	close(until)
	r.wait(id)
	events, err := r.store.Events(t.Context(), id, 0)
	if err != nil || !slices.ContainsFunc(events, func(e job.Event) bool {
		return strings.Contains(e.Text, "is on node pve2 now, and not on pve1 any more")
	}) {
		t.Errorf("%v, %v", events, err)
	}
}

// A job that runs in another's VM shows where that is, and both jobs tell of it.
func TestRelocate_TellsAJobThatSharesTheVM(t *testing.T) {
	until := make(chan struct{})
	r, n := onNodes(t, 8, func(job.Placement) (string, error) { return "pve1", nil })
	r.behave(providertest.Behaviour{}, true)
	maker := r.wait(r.submit(func(m *job.Manifest) { m.Lifecycle, m.VMName = vm.Persistent, "dev" }))
	waits := func(job.Payload) providertest.Task { return providertest.Task{Until: until} }
	r.behave(providertest.Behaviour{Task: waits}, true)
	id := r.submit(func(m *job.Manifest) { m.VM = "dev" })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	n.mu.Lock()
	n.seen = job.Seen{Status: vm.Running, IP: maker.VM.IP, Node: "pve2"}
	n.mu.Unlock()
	r.stop()
	r.behave(providertest.Behaviour{Probes: slices.Repeat([]error{errors.New("no route")}, 5), Task: waits}, true)
	r.restart()
	tells := func(e job.Event) bool { return strings.Contains(e.Text, "is on node pve2 now, and not on pve1") }
	r.until(id, func(j job.Job) bool {
		events, err := r.store.Events(t.Context(), id, 0)
		return err == nil && j.VM.Node == "pve2" && slices.ContainsFunc(events, tells)
	})
	if events, err := r.store.Events(t.Context(), maker.ID, 0); err != nil || !slices.ContainsFunc(events, tells) {
		t.Errorf("of the VM's maker: %v, %v", events, err)
	}
	close(until)
	r.wait(id)
}

// A persistent VM that nothing happens to is found elsewhere, too: its node is shown.
func TestRelocate_FindsAVMByTheSearchForLeftovers(t *testing.T) {
	r, n := onNodes(t, 8, func(job.Placement) (string, error) { return "pve1", nil })
	r.behave(providertest.Behaviour{}, true)
	j := r.wait(r.submit(func(m *job.Manifest) { m.Lifecycle = vm.Persistent }))
	if j.VM.Node != "pve1" {
		t.Fatalf("on %s", j.VM.Node)
	}
	r.stop()
	n.mu.Lock()
	n.listed = "pve3"
	n.mu.Unlock()
	r.restart()
	deadline := time.After(time.Minute)
	for j.VM.Node != "pve3" {
		select {
		case <-deadline:
			t.Fatalf("on %s", j.VM.Node)
		case <-time.After(20 * time.Millisecond):
		}
		var err error
		if j, err = r.Job(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNodes_AreShownAndCordoned(t *testing.T) {
	r, n := onNodes(t, 8, func(want job.Placement) (string, error) {
		if slices.Contains(want.Cordoned, "pve1") {
			return "", full(false)
		}
		return "pve1", nil
	})
	r.behave(providertest.Behaviour{}, true)
	seen := &witness{}
	r.stop()
	r.opts.Observer = seen.observe
	r.restart()
	byHand := job.WithClient(t.Context(), "cli")
	if _, err := r.CordonNode(t.Context(), "pve9"); err == nil || !strings.Contains(err.Error(), "use one of: pve1, pve2, pve3") {
		t.Errorf("%v", err)
	}
	if info, err := r.CordonNode(byHand, "pve1"); err != nil || !info.Cordoned {
		t.Fatalf("%+v, %v", info, err)
	}
	id := r.submit()
	r.until(id, func(j job.Job) bool { return strings.HasPrefix(j.Progress, "waiting: ") })
	r.stop() // it is stored
	r.restart()
	infos, err := r.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []job.NodeInfo{
		{Name: "pve1", Status: job.NodeOnline, Spread: true, Cordoned: true, MemoryMB: 32 << 10, CommittedMB: 1 << 10, FreeMB: 32<<10 - 3276 - 1<<10, Templates: []string{"a", "a", "b"}, Unused: map[string]string{"a": "is the name of several templates there"}},
		{Name: "pve2", Status: job.NodeMaintenance, Spread: true, MemoryMB: 64 << 10, FreeMB: 64<<10 - 6553},
		{Name: "pve3", Status: job.NodeOffline, Spread: true},
	}
	for i := range want {
		if got := infos[i]; got.Name != want[i].Name || got.Status != want[i].Status || got.Cordoned != want[i].Cordoned ||
			got.CommittedMB != want[i].CommittedMB || got.FreeMB != want[i].FreeMB || !slices.Equal(got.Templates, want[i].Templates) || !maps.Equal(got.Unused, want[i].Unused) {
			t.Errorf("%+v, want %+v", got, want[i])
		}
	}
	began := time.Now()
	if _, err := r.UncordonNode(byHand, "pve1"); err != nil {
		t.Fatal(err)
	}
	if want := []string{"pve1 true cli", "pve1 false cli"}; !slices.Equal(seen.nodes, want) {
		t.Errorf("observed %q, want %q", seen.nodes, want)
	}
	if j := r.wait(id); j.Status != job.Success {
		t.Errorf("%+v after %s", j.Outcome, time.Since(began))
	}
	if cordons, err := r.store.Cordons(t.Context()); err != nil || len(cordons) != 0 {
		t.Errorf("%v, %v", cordons, err)
	}
	_ = n
}

// One node alone is not cordoned: its VMs would go nowhere.
func TestNodes_OneAloneIsNotCordoned(t *testing.T) {
	r := newRig(t, 1)
	if _, err := r.CordonNode(t.Context(), "pve"); err == nil || !strings.Contains(err.Error(), "PROXMOX_NODES") {
		t.Errorf("%v", err)
	}
	if infos, err := r.Nodes(t.Context()); err != nil || len(infos) != 1 || infos[0].Spread {
		t.Errorf("%+v, %v", infos, err)
	}
}

// A node that went down with the VM that was being created on it: the job is lost, and
// its VM is not said to be gone.
func TestPlace_AJobIsLostWithItsNode(t *testing.T) {
	down := &job.HostError{Op: "reach node pve1", Host: "pve", Class: job.HostOffline, Text: "node 'pve1' is offline"}
	stopped := &job.HostError{Op: "attach volume cache to VM 100", Host: "pve", Class: job.HostVM, Text: "VM 100 does not run"}
	for name, failed := range map[string]error{"down": down, "its VMs stop first": errors.Join(stopped, down)} {
		t.Run(name, func(t *testing.T) {
			r, _ := onNodes(t, 8, func(job.Placement) (string, error) { return "pve1", nil })
			r.behave(providertest.Behaviour{FailStep: "start_vm", Fail: failed, Destroys: slices.Repeat([]error{down}, 5)}, false)
			id := r.submit()
			j := r.until(id, func(j job.Job) bool { return j.Status == job.Failed })
			if j.Outcome.Reason != job.ReasonLost || j.VM.State == vm.Destroyed {
				t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
			}
			if j = r.wait(id); j.VM.State != vm.Destroyed { // it came back
				t.Errorf("VM %+v", j.VM)
			}
		})
	}
}

// sinking is a node that goes down, which the others notice after a while. back: it comes up
// again then.
type sinking struct {
	job.Provider
	noticed time.Time
	back    bool
}

func (s sinking) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	switch {
	case time.Now().Before(s.noticed):
		return vm.Unknown, &job.HostError{Op: "check VM 100", Host: "pve", Class: job.HostUnreachable, Text: "connection lost"}
	case s.back:
		return vm.Stopped, nil
	}
	return vm.Unknown, &job.HostError{Op: "reach node pve1", Host: "pve", Class: job.HostOffline, Text: "node 'pve1' is offline"}
}

// A node that goes down before the task has started, and stays down for too long, or is back
// when it is asked for the VM.
func TestPlace_AJobIsLostWithItsNodeBeforeItsTaskStarts(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	for _, tt := range []struct {
		name  string
		after time.Duration
		back  bool
	}{{"noticed at once", 0, false}, {"noticed later", 20 * time.Second, false}, {"back", 20 * time.Second, true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := onNodesHere(t, 8, func(job.Placement) (string, error) { return "pve1", nil })
				r.stop()
				r.opts.HeartbeatThreshold = 10 * time.Second
				r.opts.Provider = sinking{r.opts.Provider, time.Now().Add(tt.after), tt.back}
				r.restart()
				away := &job.HostError{Op: "put the job into VM 100", Host: "pve", Class: job.HostUnreachable, Text: "connection refused"}
				r.behave(providertest.Behaviour{Pushes: slices.Repeat([]error{away}, 50)}, false)
				id := r.submit()
				j := r.until(id, func(j job.Job) bool { return j.Outcome != nil })
				// A VM that is back is seen to be stopped by the one or by the other that looks.
				if j.Outcome.Reason != job.ReasonLost || !strings.Contains(j.Outcome.Error, "connection") && !(tt.back && strings.Contains(j.Outcome.Error, "is stopped on the host")) {
					t.Errorf("%+v", j.Outcome)
				}
			})
		})
	}
}

// fill is a place that counts memory, and puts a VM on the first node that can take it.
func (n *nodes) fill(all ...job.Node) {
	n.place = func(want job.Placement) (string, error) {
		seen, err := n.Provider.Nodes(context.Background())
		inv := job.Inventory{Nodes: slices.Clone(all)}
		for _, vm := range seen.Nodes[0].VMs {
			if vm.Stopped { // the others are where they were put
				inv.Nodes[0].VMs = append(inv.Nodes[0].VMs, vm)
			}
		}
		none := &job.NoRoomError{}
		for _, n := range inv.Nodes {
			why := n.Unused(want.Spec.Template, "")
			if free := inv.FreeMB(n, want.VMs); why == "" && free < want.Spec.MemoryMB {
				why = fmt.Sprintf("%d MiB free, needs %d", free, want.Spec.MemoryMB)
			}
			if slices.Contains(want.Cordoned, n.Name) {
				why = "cordoned"
			}
			if why == "" {
				return n.Name, err
			}
			none.Refusals = append(none.Refusals, job.Refusal{Node: n.Name, Reason: job.RefusedMemory, Text: why})
		}
		return "", none
	}
}

// In a cluster the VMs that pools lack are counted onto its nodes one by one, beside the
// VMs that are there and those of the pools before: what no node can take is told, with
// what each has left.
func TestPlace_HostCheckCountsPoolsOntoTheNodes(t *testing.T) {
	r, n := onNodes(t, 1, nil)
	const a, full = providertest.FakeTemplate, "of its VMs beside the others: no node can take it: pve1: "
	node := func(name string, has ...job.NodeTemplate) job.Node {
		return job.Node{Name: name, MemoryMB: 6 << 10, Templates: has} // room for two VMs, beside the reserve
	}
	n.fill(node("pve1", job.NodeTemplate{Name: a}), node("pve2", job.NodeTemplate{Name: a}, job.NodeTemplate{Name: "b"}))
	r.behave(paused(providertest.Behaviour{}), false)
	check := func(what string, want ...string) {
		t.Helper()
		report, err := r.CheckHost(t.Context())
		checks := slices.DeleteFunc(report.Checks, func(c job.Check) bool { return c.Name != "pools" })
		if err != nil || len(checks) != len(want) {
			t.Fatalf("%s: %+v, %v", what, checks, err)
		}
		for i, c := range checks {
			fits := c.Level == "ok" && !strings.Contains(c.Text, "not fit")
			if want[i] == "" != fits || !strings.Contains(c.Text, want[i]) || !fits && !strings.Contains(c.Remedy, "or add a node") {
				t.Errorf("%s: %+v, want %q", what, c, want[i])
			}
		}
	}
	pool := func(name, template string, warm, hibernated int) job.Pool {
		return job.Pool{Name: name, VMTemplate: template, PoolSize: job.PoolSize{Warm: warm, Hibernated: hibernated}}
	}
	for _, tt := range []struct {
		name   string
		pools  []job.Pool
		cordon bool // pve2
		want   []string
	}{
		{"more than a node has room for", []job.Pool{pool("p", a, 4, 0)}, false, []string{""}},
		{"more than all have", []job.Pool{pool("p", a, 6, 0)}, false, []string{"2 " + full + "1024 MiB free, needs 2048; pve2: 1024 MiB free, needs 2048"}},
		{"two that fit alone", []job.Pool{pool("p", a, 3, 0), pool("q", a, 2, 0)}, false, []string{"", "1 " + full + "1024 MiB free"}},
		{"one node has the template", []job.Pool{pool("p", "b", 3, 0)}, false, []string{"1 " + full + "not there; pve2: 1024 MiB free"}},
		{"each on a node of its own", []job.Pool{pool("p", a, 2, 0), pool("q", "b", 2, 0)}, false, []string{"", ""}},
		{"a cordoned node", []job.Pool{pool("p", a, 3, 0)}, true, []string{"1 " + full + "1024 MiB free, needs 2048; pve2: cordoned"}},
		{"hibernated ones", []job.Pool{pool("p", a, 3, 50), pool("q", a, 1, 0)}, false, []string{"", ""}},
		{"hibernated ones that could not boot", []job.Pool{pool("p", a, 4, 1)}, false, []string{"1 " + full}},
	} {
		if err := r.store.SetCordon(t.Context(), "pve2", tt.cordon); err != nil {
			t.Fatal(err)
		}
		for _, p := range tt.pools {
			if _, err := r.CreatePool(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		check(tt.name, tt.want...)
		for _, p := range tt.pools {
			if _, err := r.RemovePool(t.Context(), p.Name); err != nil {
				t.Fatal(err)
			}
		}
	}

	resize := func(warm, hibernated int) {
		t.Helper()
		if _, err := r.ResizePool(t.Context(), "p", job.PoolSize{Warm: warm, Hibernated: hibernated}.Change()); err != nil {
			t.Fatal(err)
		}
	}
	r.behave(providertest.Behaviour{}, false)
	r.newPool(2)
	resize(0, 2)
	r.untilPool("hibernated members", func(p job.PoolInfo) bool { return p.Count(vm.MemberHibernated) == 2 })
	resize(2, 2)
	r.untilPool("warm members", func(p job.PoolInfo) bool { return p.State == "ready" })
	r.behave(paused(providertest.Behaviour{}), false)
	r.tended()
	still := func(p job.PoolInfo) bool { // the host's room may have been read before the pause
		return strings.HasPrefix(p.State, "paused") && p.Count(vm.MemberMaking) == 0
	}
	resize(4, 2)
	r.untilPool("pause", still)
	check("2 are warm", "")
	resize(5, 2)
	r.untilPool("pause", still)
	check("2 are warm, and 1 too many is wanted", "1 "+full)
	r.removePool()

	// A fault while nodes are asked hides nothing of what was found before.
	place := n.place
	n.place = func(want job.Placement) (string, error) {
		if want.Spec.Template == "b" {
			return "", errors.New("nobody answers")
		}
		return place(want)
	}
	for _, p := range []job.Pool{pool("p", a, 6, 0), pool("q", "b", 1, 0)} {
		if _, err := r.CreatePool(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	report, err := r.CheckHost(t.Context())
	checks := slices.DeleteFunc(report.Checks, func(c job.Check) bool { return c.Name != "pools" })
	if err != nil || len(checks) != 2 || !strings.Contains(checks[0].Text, full) || checks[1].Level != "warn" || !strings.Contains(checks[1].Text, "nobody answers") {
		t.Errorf("%+v, %v", checks, err)
	}
}

// A pool says that no node has room for its VMs, and what each lacks; and holds up no pool
// for whose VMs one has.
func TestPlace_APoolSaysThatNoNodeHasRoom(t *testing.T) {
	r, _ := onNodes(t, 1, func(want job.Placement) (string, error) {
		if want.Spec.CPU == 8 {
			return "", full(false)
		}
		return "pve1", nil
	})
	big := job.Pool{Name: "p", Resources: vm.Resources{CPU: 8}, PoolSize: job.PoolSize{Warm: 4}}
	if _, err := r.CreatePool(t.Context(), big); err != nil {
		t.Fatal(err)
	}
	said := func(p job.PoolInfo) bool {
		return p.State == "paused: its next VM is waiting: no node can take it: pve1: 3 GiB free of 16, needs 4"
	}
	r.untilPool("reason", said)
	if _, err := r.CreatePool(t.Context(), job.Pool{Name: "small", PoolSize: job.PoolSize{Warm: 3}}); err != nil {
		t.Fatal(err)
	}
	r.untilPool("room for the other", func(job.PoolInfo) bool {
		small, err := r.Pool(t.Context(), "small")
		return err == nil && small.State == "ready"
	})
	if p := r.untilPool("reason", said); p.Count(vm.MemberMaking) > 2 {
		t.Errorf("%d wait for a node", p.Count(vm.MemberMaking))
	}
	if _, err := r.RemovePool(t.Context(), "small"); err != nil {
		t.Fatal(err)
	}
	r.removePool()
}
