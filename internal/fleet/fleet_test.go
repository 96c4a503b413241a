package fleet_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/vm"
)

// rows is a store of VMs, and what was recorded of them.
type rows struct {
	fleet.Store
	mu   sync.Mutex
	vms  map[string]vm.VM
	told []string
}

func (r *rows) VMs(context.Context) ([]vm.VM, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var there []vm.VM
	for _, id := range slices.Sorted(maps.Keys(r.vms)) {
		if v := r.vms[id]; v.State == vm.Intended || v.State == vm.Created || v.State == vm.LeftAlone {
			there = append(there, v)
		}
	}
	return there, nil
}

func (r *rows) VM(_ context.Context, id string) (vm.VM, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, known := r.vms[id]
	if !known {
		return v, job.ErrNotFound
	}
	return v, nil
}

func (r *rows) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	v, err := r.VM(ctx, id)
	if err != nil {
		return v, err
	}
	events, err := change(&v)
	if err != nil {
		return v, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		r.told = append(r.told, e.Text)
	}
	r.vms[id] = v
	return v, nil
}

func (r *rows) Cordons(context.Context) ([]string, error) { return nil, nil }

// nowhere is a cluster that has no room.
type nowhere struct{ fleet.Placer }

// host is a hypervisor: what it lists, what became of it, and what it refuses.
type host struct {
	job.Provider
	there     []vm.VM
	status    map[int]vm.Status // default: running
	refuses   error
	destroyed []int
	forgotten []int
}

func (h *host) List(context.Context) ([]vm.VM, error) { return h.there, nil }

func (h *host) Status(_ context.Context, v vm.VM) (vm.Status, error) {
	if s, ok := h.status[v.ID]; ok {
		return s, nil
	}
	return vm.Running, nil
}

func (h *host) Destroy(_ context.Context, v vm.VM) error {
	if h.refuses != nil {
		return h.refuses
	}
	h.destroyed = append(h.destroyed, v.ID)
	return nil
}

func (h *host) ForgetVM(_ context.Context, v vm.VM) error {
	h.forgotten = append(h.forgotten, v.ID)
	return nil
}

func newFleet(h *host, vms ...vm.VM) (*fleet.Fleet, *rows) {
	r := &rows{vms: map[string]vm.VM{}}
	for _, v := range vms {
		r.vms[v.Job] = v
	}
	return fleet.New(fleet.Options{Store: r, Provider: h, Placer: nowhere{}}), r
}

// What is on the host is destroyed only if it was destroyed before, has its name, and is
// there under another ID.
func TestSweep_DestroysWhatIsOursAndUnwanted(t *testing.T) {
	t.Parallel()
	was := vm.VM{Job: "a", ID: 100, Name: "one", Node: "pve1", State: vm.Destroyed}
	kept := was
	kept.State = vm.Created
	leftAlone := &job.HostError{Class: job.HostLeftAlone, Text: "its tag is missing"}
	tests := []struct {
		name      string
		row       vm.VM
		there     vm.VM
		refuses   error
		status    vm.Status
		leaked    int
		destroyed []int
		state     vm.State
		node      string
	}{
		{name: "found under another ID", row: was, there: vm.VM{Job: "a", ID: 101, Name: "one", Node: "pve2"}, leaked: 1, destroyed: []int{101}, state: vm.Destroyed, node: "pve1"},
		{name: "not proven", row: was, there: vm.VM{Job: "a", ID: 101, Name: "one", Node: "pve2"}, refuses: leftAlone, leaked: 1, state: vm.LeftAlone, node: "pve2"},
		{name: "cannot be destroyed now", row: was, there: vm.VM{Job: "a", ID: 101, Name: "one"}, refuses: errors.New("locked"), leaked: 1, state: vm.Destroyed, node: "pve1"},
		{name: "another name", row: was, there: vm.VM{Job: "a", ID: 101, Name: "two"}, leaked: 1, state: vm.Destroyed, node: "pve1"},
		{name: "restored", row: was, there: vm.VM{Job: "a", ID: 100, Name: "one"}, leaked: 1, state: vm.Destroyed, node: "pve1"},
		{name: "just gone", row: was, there: vm.VM{Job: "a", ID: 100, Name: "one"}, status: vm.Gone, state: vm.Destroyed, node: "pve1"},
		{name: "unknown", row: was, there: vm.VM{Job: "b", ID: 101, Name: "one"}, leaked: 1, state: vm.Destroyed, node: "pve1"},
		{name: "moved", row: kept, there: vm.VM{Job: "a", ID: 100, Name: "one", Node: "pve2"}, state: vm.Created, node: "pve2"},
		{name: "a copy that runs", row: kept, there: vm.VM{Job: "a", ID: 101, Name: "one", Node: "pve2"}, state: vm.Created, node: "pve1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := &host{there: []vm.VM{tt.there}, refuses: tt.refuses, status: map[int]vm.Status{}}
			if tt.status != "" {
				h.status[tt.there.ID] = tt.status
			}
			if tt.refuses != nil {
				h.status[tt.there.ID] = vm.Unproven
			}
			f, r := newFleet(h, tt.row)
			if leaked := f.Sweep(t.Context()); leaked != tt.leaked {
				t.Errorf("%d leaked, want %d", leaked, tt.leaked)
			}
			got := r.vms["a"]
			if !slices.Equal(h.destroyed, tt.destroyed) || got.State != tt.state || got.Node != tt.node {
				t.Errorf("destroyed %v, VM is %+v", h.destroyed, got)
			}
		})
	}
}

// A look at the host says which VMs run that stay: usage counts those. What the host lists may be
// older than what it says of the VM itself.
func TestSweep_NotesWhatWasTurnedOffOrOn(t *testing.T) {
	t.Parallel()
	runs := vm.VM{Job: "a", ID: 100, Name: "one", State: vm.Created, Kept: true, Made: vm.Made{Lifecycle: vm.Persistent}}
	stopped, napping, jobs, pools := runs, runs, runs, runs
	stopped.Off, napping.SuspendedAt, jobs.Kept, pools.Lifecycle, pools.Own, pools.Member = vm.Stopped, time.Now(), false, vm.Pooled, &vm.Own{}, &vm.Member{}
	for name, tt := range map[string]struct {
		row        vm.VM
		list, asks vm.Status // empty: not listed
		counts     bool
		off        vm.Status
	}{
		"turned off":               {runs, vm.Stopped, vm.Stopped, false, vm.Stopped},
		"suspended":                {runs, vm.Suspended, vm.Suspended, false, vm.Suspended},
		"gone":                     {runs, "", vm.Gone, false, vm.Gone},
		"without its marker":       {runs, "", vm.Unproven, true, ""},
		"turned on meanwhile":      {runs, vm.Stopped, vm.Running, true, ""},
		"runs":                     {runs, vm.Running, vm.Stopped, true, ""}, // the next look sees it
		"unknown":                  {runs, vm.Unknown, vm.Stopped, true, ""},
		"turned on":                {stopped, vm.Running, vm.Running, true, ""},
		"turned off meanwhile":     {stopped, vm.Running, vm.Stopped, false, vm.Stopped},
		"stays off":                {stopped, vm.Stopped, vm.Running, false, vm.Stopped},
		"is being suspended":       {napping, vm.Running, vm.Running, false, ""},
		"suspended as it was idle": {napping, vm.Suspended, vm.Suspended, false, ""},
		"its job counts it":        {jobs, vm.Stopped, vm.Stopped, false, ""},
		"a pool's":                 {pools, vm.Stopped, vm.Stopped, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &host{status: map[int]vm.Status{100: tt.asks}}
			if tt.list != "" {
				h.there = []vm.VM{{Job: "a", ID: 100, Name: "one", Status: tt.list}}
			}
			f, r := newFleet(h, tt.row)
			f.Sweep(t.Context())
			if v := r.vms["a"]; v.Counts() != tt.counts || v.Off != tt.off {
				t.Errorf("%+v counts %v", v, v.Counts())
			}
		})
	}
}

// A VM without an ID is found by its marker, and only that one is destroyed.
func TestRemove_SearchesByTheMarker(t *testing.T) {
	t.Parallel()
	v := vm.VM{Job: "a", Name: "one", State: vm.Intended}
	h := &host{there: []vm.VM{{Job: "b", ID: 7}, {Job: "a", ID: 8, Node: "pve1"}}}
	f, r := newFleet(h, v)
	removed, err := f.Remove(t.Context(), v)
	if err != nil || !removed || !slices.Equal(h.destroyed, []int{0, 8}) || r.vms["a"].ID != 8 {
		t.Errorf("%v, %v, destroyed %v, %+v", removed, err, h.destroyed, r.vms["a"])
	}
	h.there, h.destroyed = nil, nil
	if removed, err := f.Remove(t.Context(), v); err != nil || removed {
		t.Errorf("nothing is there: %v, %v", removed, err)
	}
}

// Another VM's host key is never accepted, and its address only when it is off: it loses
// that then.
func TestAccept_RefusesWhatIsAnothers(t *testing.T) {
	t.Parallel()
	other := vm.VM{Job: "b", ID: 2, IP: "192.0.2.2", HostKey: "ssh-ed25519 B", State: vm.Created}
	tests := []struct {
		name   string
		v      vm.VM
		status vm.Status
		want   string // in the error
		ip     string // the other's afterwards
	}{
		{"its own", vm.VM{IP: "192.0.2.1", HostKey: "ssh-ed25519 A"}, vm.Running, "", "192.0.2.2"},
		{"another's key", vm.VM{IP: "192.0.2.1", HostKey: "ssh-ed25519 B"}, vm.Stopped, "SSH host key of VM 2", "192.0.2.2"},
		{"another's address", vm.VM{IP: "::ffff:192.0.2.2"}, vm.Running, "address ::ffff:192.0.2.2 of VM 2", "192.0.2.2"},
		{"of one that may run", vm.VM{IP: "192.0.2.2"}, vm.Unknown, "address 192.0.2.2 of VM 2", "192.0.2.2"},
		{"of one that is off", vm.VM{IP: "192.0.2.2"}, vm.Stopped, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, r := newFleet(&host{status: map[int]vm.Status{2: tt.status}}, vm.VM{Job: "a", ID: 1, State: vm.Intended}, other)
			recorded := false
			err := f.Accept(t.Context(), "a", tt.v, func(context.Context) error { recorded = true; return nil })
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || recorded != (err == nil) {
				t.Errorf("recorded %v, %v", recorded, err)
			}
			if got := r.vms["b"].IP; got != tt.ip {
				t.Errorf("the other has %q", got)
			}
		})
	}
}

// A VM that is left alone is so with a reason, which is told once; it is destroyed when its
// proof is whole again, and nothing is done to one that an operator has taken.
func TestSettle_LeavesAlone(t *testing.T) {
	t.Parallel()
	h := &host{refuses: &job.HostError{Class: job.HostLeftAlone, Text: "its tag is missing", Remedy: "put it back"}}
	f, r := newFleet(h, vm.VM{Job: "a", ID: 1, Name: "one", State: vm.Created})
	room := f.Room()
	if err := f.Forget(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "not left alone") {
		t.Errorf("forget what is not left alone: %v", err)
	}
	for range 2 {
		if err := f.Settle(t.Context(), "a", h.refuses); !job.IsClass(err, job.HostLeftAlone) || !strings.Contains(err.Error(), string(job.ForgetVM)+" one") {
			t.Errorf("settle: %v", err)
		}
	}
	if v := r.vms["a"]; v.State != vm.LeftAlone || v.Reason == "" || len(r.told) != 1 {
		t.Errorf("%+v, told %q", v, r.told)
	}
	if err := f.DestroyLeftAlone(t.Context(), "a"); !job.IsClass(err, job.HostLeftAlone) || r.vms["a"].State != vm.LeftAlone {
		t.Errorf("while the host refuses: %v, %+v", err, r.vms["a"])
	}
	select {
	case <-room:
		t.Error("there is no more room")
	default:
	}
	h.refuses = nil
	if f.Sweep(t.Context()); r.vms["a"].State != vm.Destroyed || !slices.Equal(h.destroyed, []int{1}) {
		t.Errorf("with its proof back: %+v, destroyed %v", r.vms["a"], h.destroyed)
	}
	<-room

	r.vms["a"] = vm.VM{Job: "a", ID: 1, Name: "one", State: vm.LeftAlone}
	if err := f.Forget(t.Context(), "a"); err != nil || r.vms["a"].State != vm.Forgotten || !slices.Equal(h.forgotten, []int{1}) {
		t.Errorf("forget: %v, %+v", err, r.vms["a"])
	}
	if err := f.DestroyLeftAlone(t.Context(), "a"); err != nil || len(h.destroyed) != 1 {
		t.Errorf("it is the operator's now: %v, destroyed %v", err, h.destroyed)
	}
}

// idleEngine leads, or does not, and has nothing to do.
type idleEngine struct {
	engine
	leads bool
	gone  chan string
}

func (e *idleEngine) Engines(context.Context) ([]job.EngineInfo, error) {
	return []job.EngineInfo{{Self: true, Leads: e.leads}}, nil
}

func (*idleEngine) Job(context.Context, string) (job.Job, error) { return job.Job{}, job.ErrNotFound }

// goneKeys tell which VM's key is dropped.
type goneKeys struct {
	fleet.Keys
	gone chan string
}

func (k goneKeys) Drop(id string) error                      { k.gone <- id; return nil }
func (goneKeys) Keep(func(string) bool) error                { return nil }
func (r *rows) Pools(context.Context) ([]job.Pool, error)    { return nil, nil }
func (r *rows) Members(context.Context) ([]vm.VM, error)     { return nil, nil }
func (r *rows) AnyVM(context.Context) (bool, error)          { return false, nil }
func (r *rows) Volumes(context.Context) ([]vm.Volume, error) { return nil, nil }

func (r *rows) SavedTemplates(context.Context) ([]vm.SavedTemplate, error) { return nil, nil }

type idleGuest struct{ fleet.Guest }

func (idleGuest) Forget(job.Job) {}

// Nobody but the job that made a VM destroys it before that has ended, and of engines one does.
func TestTend_DestroysWhatNobodyWants(t *testing.T) {
	t.Parallel()
	made := func(id int, unwanted, kept bool) vm.VM {
		return vm.VM{Job: string(rune('a' + id)), ID: id, State: vm.Created, Unwanted: unwanted, Kept: kept}
	}
	for _, leads := range []bool{true, false} {
		h := &host{}
		r := &rows{vms: map[string]vm.VM{}}
		for _, v := range []vm.VM{made(1, true, true), made(2, false, true), made(3, true, false)} {
			r.vms[v.Job] = v
		}
		e := &idleEngine{leads: leads, gone: make(chan string, 3)}
		f := fleet.New(fleet.Options{Store: r, Provider: h, Jobs: e, Engines: e, Guest: idleGuest{}, Keys: goneKeys{gone: e.gone}})
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		f.DestroySoon()
		if !f.Busy() {
			t.Error("there is something to destroy")
		}
		over := make(chan struct{})
		go func() {
			defer close(over)
			f.Begin(ctx)
			f.Tend(ctx)
		}()
		if leads {
			if id := <-e.gone; id != "b" {
				t.Errorf("%s is gone", id)
			}
		}
		for f.Busy() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		end()
		<-over
		if want := map[bool][]int{true: {1}}[leads]; !slices.Equal(h.destroyed, want) {
			t.Errorf("leads %v: destroyed %v, want %v", leads, h.destroyed, want)
		}
		if leads && (r.vms["b"].State != vm.Destroyed || !slices.Equal(r.told, []string{"VM 1 is destroyed"})) {
			t.Errorf("%+v, told %v", r.vms["b"], r.told)
		}
	}
}
