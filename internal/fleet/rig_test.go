package fleet_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/storetest"
	"linus/internal/vm"
)

// engine is an engine that has no jobs but those it says it has, and shares the store with none.
type engine struct {
	*store.Store

	mu       sync.Mutex
	follows  bool                     // another one leads
	starting *job.Job                 // is about to have a VM made
	holds    map[string]time.Duration // the timeouts of jobs that have a VM
	unread   error                    // of jobs
	gone     []string                 // VMs whose keys were dropped
	begun    []job.Job                // unfinished
	admits   int                      // VMs that it admits; 0: any number
	diskMB   int                      // that those have on disk which a client has asked for, with what it asks for; 0: any
	inside   []job.Job                // that are in progress
	held     map[string]string        // locks of another engine, and what it does meanwhile
	locks    func(call string) error  // why a lock cannot be taken, or looked at; may be nil
	told     int                      // how often others were to be told of unwanted VMs
}

// set changes what the engine says from now on.
func (e *engine) set(change func(e *engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(e)
}

func (e *engine) Engines(context.Context) ([]job.EngineInfo, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return []job.EngineInfo{{Self: true, Leads: !e.follows}}, nil
}

func (e *engine) Tell(context.Context, job.Notice) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told++
	return nil
}

func (e *engine) Lock(_ context.Context, name, _ string, _ bool) (bool, string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held[name] == "", e.held[name], e.unable("take " + name)
}
func (*engine) Unlock(context.Context, string) error { return nil }
func (e *engine) Locked(_ context.Context, name string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held[name], e.unable("look at " + name)
}

func (e *engine) unable(call string) error {
	if e.locks == nil {
		return nil
	}
	return e.locks(call)
}

// Job returns the job that is about to have a VM made, or one that has a pool's VM.
func (e *engine) Job(ctx context.Context, id string) (job.Job, error) {
	e.mu.Lock()
	starting, timeout, held, err := e.starting, e.holds[id], e.holds[id] > 0, e.unread
	e.mu.Unlock()
	if starting != nil && starting.ID == id || err != nil {
		return *cmp.Or(starting, &job.Job{}), err
	}
	members, err := e.Store.Members(ctx)
	at := slices.IndexFunc(members, func(v vm.VM) bool { return v.Member.Claimer == id })
	if err != nil || !held || at < 0 {
		return job.Job{}, job.ErrNotFound
	}
	return job.Job{ID: id, Status: job.Running, VM: &members[at], Manifest: job.Manifest{Timeout: int(timeout.Seconds())}}, nil
}

// makes has a job be about to have a VM made of so much memory, or begin to.
func (r *rig) makes(memory string, status job.Status) {
	r.engine.set(func(e *engine) {
		e.starting = &job.Job{ID: "job", Status: status, Manifest: job.Manifest{Resources: vm.Resources{Memory: memory}}}
	})
	r.Expect(job.Demand{Starting: []string{"job"}})
}

// keys tell the engine of those that are dropped.
type keys struct{ e *engine }

func (keys) Make(id string) (string, error) { return "key of " + id, nil }
func (keys) Keep(func(string) bool) error   { return nil }

func (k keys) Drop(id string) error {
	k.e.set(func(e *engine) { e.gone = append(e.gone, id) })
	return nil
}

func (e *engine) InProgress(context.Context) ([]job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Concat(e.begun, e.inside), nil
}

func (e *engine) admit(beside []job.Job, m job.Manifest) (err error) {
	e.mu.Lock()
	most, diskMB := e.admits, e.diskMB
	e.mu.Unlock()
	if most > 0 && len(beside) >= most {
		err = &job.FieldError{Field: "quota", Problem: fmt.Sprintf("no more than %d", most)}
	}
	var takes job.Disks
	for _, j := range beside {
		takes.Add(j)
	}
	has, asks := takes.Sum(), job.SizeMB(m.Resources.Disk)
	if err == nil && diskMB > 0 && has+asks > diskMB {
		err = &job.FieldError{Field: "manifest.resources.disk", Problem: fmt.Sprintf("LIMIT_DISK allows %d; %d are in use, this asks for %d", diskMB, has, asks), Remedy: "ask for less", Fault: job.FaultLimit}
	}
	return err
}

// takes is what the VMs that a client has asked for take of disk.
func takes(vms []vm.VM, owner, client string) (d job.Disks) {
	for _, v := range vms {
		if v.AskedFor() && v.Principal == owner && (owner != "" || v.Own.Client == client) {
			d.Add(job.StandInJob(v))
		}
	}
	return d
}

// hypervisor is a Fake that can be seen at work, and fails on demand.
type hypervisor struct {
	*providertest.Fake

	mu        sync.Mutex
	fails     []error                       // what the next creates return, without an effect
	before    func(job.VMSpec)              // called when a create begins
	unsure    bool                          // its statuses are unknown
	away      bool                          // a node is, that no VM is on
	saves     error                         // of checkpoints
	saving    func(tell func(job.Progress)) // called when a VM is to be saved as a template
	templates func() error                  // called when a VM was saved as a template, but before that is answered
	forks     error                         // of making ready for copies
	forkHold  chan struct{}                 // until which that takes, when it has been done
	ends      error                         // of ending that
	failName  string                        // of the VMs whose creates, with a name that begins so, return failWith
	failWith  error                         // nil: they wait for hold
	hold      chan struct{}                 // or for the end of their context
	suspends  time.Duration                 // how long it takes to suspend a VM
	inUse     func()                        // called when it is looked who is logged in
	noSuspend []error                       // what the next suspensions return, without an effect
	suspended error                         // what suspensions return that have come to their end
	partial   bool                          // its snapshots are not whole
	room      func(r *job.HostRoom)         // changes what Room returns
	roomTakes time.Duration                 // how long that takes
	looked    func(context.Context)         // called when it is asked for its nodes; it fails when that has ended
	pinged    []string
	warmed    []string          // whose VMs have the job runner
	specs     []job.VMSpec      // of creates
	nodes     map[string]string // that VMs were created on, by what is in their marker
	destroyed []int             // proven, or gone
	callers   []job.Caller      // of Destroy
}

// set changes what the hypervisor does from now on.
func (h *hypervisor) set(change func(h *hypervisor)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// seen returns the creates and the IDs that were destroyed so far.
func (h *hypervisor) seen() (specs []job.VMSpec, destroyed []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.specs), slices.Clone(h.destroyed)
}

func (h *hypervisor) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	h.mu.Lock()
	h.specs = append(h.specs, spec)
	if h.nodes == nil {
		h.nodes = map[string]string{}
	}
	h.nodes[spec.Job] = spec.Node
	var err error
	if len(h.fails) > 0 {
		err, h.fails = h.fails[0], h.fails[1:]
	}
	before := h.before
	var hold chan struct{}
	if h.failName != "" && strings.HasPrefix(spec.Name, h.failName) {
		err, hold = cmp.Or(err, h.failWith), h.hold
	}
	h.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return vm.VM{}, context.Cause(ctx)
		}
	}
	if before != nil {
		before(spec)
	}
	if err != nil {
		return vm.VM{}, err
	}
	v, err := h.Fake.Create(ctx, spec, progress)
	if spec.Node != "" {
		v.Node = spec.Node
	}
	return v, err
}

// List says of each VM the node that it was created on: a sweep may look before its create has
// returned.
func (h *hypervisor) List(ctx context.Context) ([]vm.VM, error) {
	vms, err := h.Fake.List(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		err = hostError(job.HostOffline, "node 'other' did not list its own")
	}
	for i, v := range vms {
		vms[i].Node = cmp.Or(h.nodes[v.Job], v.Node)
	}
	return vms, err
}

func (h *hypervisor) Destroy(ctx context.Context, v vm.VM) error {
	err := h.Fake.Destroy(ctx, v)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.callers = append(h.callers, job.CallerFrom(ctx))
	if err == nil && v.ID != 0 {
		h.destroyed = append(h.destroyed, v.ID)
	}
	return err
}

func (h *hypervisor) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	h.mu.Lock()
	unsure := h.unsure
	h.mu.Unlock()
	if unsure {
		return vm.Unknown, &job.HostError{Op: "check", Class: job.HostUnreachable, Text: "no route to host"}
	}
	return h.Fake.Status(ctx, v)
}

func (h *hypervisor) SaveCheckpoint(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.Checkpoint, error) {
	h.mu.Lock()
	err := h.saves
	if err == nil && !slices.Contains(h.warmed, v.Job) {
		err = errors.New("the VM has no job runner yet")
	}
	h.mu.Unlock()
	if err != nil {
		return vm.Checkpoint{}, err
	}
	return h.Fake.SaveCheckpoint(ctx, v, progress)
}

func (h *hypervisor) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (job.SavedTemplate, error) {
	h.mu.Lock()
	saving, templates := h.saving, h.templates
	h.mu.Unlock()
	if saving != nil {
		saving(progress)
	}
	t, err := h.Fake.SaveVM(ctx, v, spec, progress)
	if err == nil && templates != nil {
		err = templates()
	}
	return t, err
}

func (h *hypervisor) ForkVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (job.ForkPoint, error) {
	h.mu.Lock()
	err, hold := h.forks, h.forkHold
	h.mu.Unlock()
	if hold != nil {
		if _, err := h.Fake.ForkVM(ctx, v, progress); err != nil {
			return job.ForkPoint{}, err
		}
		select {
		case <-hold:
		case <-ctx.Done():
			return job.ForkPoint{}, context.Cause(ctx)
		}
	}
	if err != nil {
		return job.ForkPoint{}, err
	}
	return h.Fake.ForkVM(ctx, v, progress)
}

func (h *hypervisor) EndFork(ctx context.Context, v vm.VM) error {
	h.mu.Lock()
	err := h.ends
	h.mu.Unlock()
	if err != nil {
		return err
	}
	return h.Fake.EndFork(ctx, v)
}

func (h *hypervisor) InUse(ctx context.Context, v vm.VM) (bool, error) {
	h.mu.Lock()
	called := h.inUse
	h.mu.Unlock()
	if called != nil {
		called()
	}
	return h.Fake.InUse(ctx, v)
}

func (h *hypervisor) SuspendVM(ctx context.Context, v vm.VM) error {
	h.mu.Lock()
	takes, late := h.suspends, h.suspended
	var err error
	if len(h.noSuspend) > 0 {
		err, h.noSuspend = h.noSuspend[0], h.noSuspend[1:]
	}
	h.mu.Unlock()
	time.Sleep(takes) // in a bubble
	if err != nil {
		return err
	}
	if err := h.Fake.SuspendVM(ctx, v); err != nil {
		return err
	}
	return late
}

func (h *hypervisor) Snapshots(ctx context.Context, v vm.VM) ([]job.Snapshot, error) {
	all, err := h.Fake.Snapshots(ctx, v)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range all {
		all[i].Incomplete = h.partial
	}
	return all, err
}

func (h *hypervisor) Room(ctx context.Context, origins []job.Origin, watched []job.Watched) (job.HostRoom, error) {
	h.mu.Lock()
	takes := h.roomTakes
	h.mu.Unlock()
	time.Sleep(takes) // in a bubble
	r, err := h.Fake.Room(ctx, origins, watched)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.room != nil {
		h.room(&r)
	}
	return r, err
}

func (h *hypervisor) Warm(_ context.Context, j job.Job) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.warmed = append(h.warmed, j.ID)
	return nil
}

func (h *hypervisor) Ping(ctx context.Context, j job.Job) error {
	h.mu.Lock()
	h.pinged = append(h.pinged, j.ID)
	h.mu.Unlock()
	return h.Fake.Ping(ctx, j)
}

// placer places VMs where place says.
type placer struct {
	mu     sync.Mutex
	place  func(job.Placement) (string, error)
	never  error // of Fits
	wanted []job.Placement
}

func (p *placer) Place(_ context.Context, want job.Placement) (job.Placed, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = append(p.wanted, want)
	node, err := p.place(want)
	return job.Placed{Node: node, Why: "it is told so"}, err
}

func (p *placer) Fits(context.Context, job.VMSpec) error { return p.never }

func (h *hypervisor) Nodes(ctx context.Context) (job.Inventory, error) {
	if h.looked != nil {
		h.looked(ctx)
	}
	inv, err := h.Fake.Nodes(ctx)
	return inv, cmp.Or(ctx.Err(), err)
}

// rig is a fleet on a store of its own and a hypervisor in memory.
type rig struct {
	*fleet.Fleet
	t      *testing.T
	store  *store.Store
	host   *hypervisor
	engine *engine
	opts   fleet.Options
	before func() // called before it starts; may be nil
	stop   func()
}

// bubble runs a test in a bubble, in which waiting takes no time. The fleet is not started.
func bubble(t *testing.T, test func(r *rig)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := storetest.Open(context.Background(), store.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		h := &hypervisor{Fake: providertest.NewFake()}
		e := &engine{Store: s, holds: map[string]time.Duration{}}
		r := &rig{t: t, store: s, host: h, engine: e, stop: func() {}, opts: fleet.Options{
			Store: s, Jobs: e, Engines: e, Provider: h, Guest: h, Admit: e.admit, Keys: keys{e}, Owner: "5a17c0de-0000-4000-8000-000000000001", Log: slog.New(slog.DiscardHandler),
			SweepInterval: 1000 * time.Hour,
			Defaults:      job.Defaults{VMTemplate: providertest.FakeTemplate, CPU: 2, Memory: "2G", Disk: "10G"},
		}}
		defer func() {
			r.stop()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(r)
	})
}

// start has a new fleet tend what the store has, until stop.
func (r *rig) start() {
	if r.Fleet = fleet.New(r.opts); r.before != nil {
		r.before()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var over sync.WaitGroup
	r.Begin(ctx)
	over.Go(func() { r.Tend(ctx) })
	synctest.Wait() // it has looked at the host
	r.stop = sync.OnceFunc(func() {
		cancel()
		over.Wait()
	})
}

// pass lets time pass, and what that brings about be done. Until then a test may read and set
// what the host, the engine and the placer have: they come after it.
func (r *rig) pass(d time.Duration) {
	locks := []*sync.Mutex{&r.host.mu, &r.engine.mu}
	if p, ok := r.opts.Placer.(*placer); ok {
		locks = append(locks, &p.mu)
	}
	for _, l := range locks {
		l.Lock()
		l.Unlock() //nolint:staticcheck // it orders, for the race detector, too
	}
	time.Sleep(d)
	synctest.Wait()
}

// until lets time pass until something is so, for hours.
func (r *rig) until(so func() bool) {
	r.t.Helper()
	for range 5 * 60 {
		if so() {
			return
		}
		r.pass(time.Minute)
	}
	r.t.Fatal("it is not so after five hours")
}

// asked returns a VM that somebody may ask for.
func asked(name string) vm.VM {
	return vm.VM{
		Job: uuid.Must(uuid.NewV7()).String(), Name: name, Own: &vm.Own{Client: "cli"},
		Made: vm.Made{Lifecycle: vm.Persistent, Template: providertest.FakeTemplate, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, CreatedAt: time.Now().UTC()},
	}
}

// ask asks for a VM, and returns the ID in its marker.
func (r *rig) ask(name string, change ...func(*vm.VM)) string {
	r.t.Helper()
	v := asked(name)
	for _, c := range change {
		c(&v)
	}
	if _, created, err := r.Create(context.Background(), v, "", job.Limits{}); err != nil || !created {
		r.t.Fatalf("created: %v, %v", created, err)
	}
	return v.Job
}

// vm returns a VM's row.
func (r *rig) vm(id string) vm.VM {
	r.t.Helper()
	v, err := r.store.VM(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// row adds the row of a VM as another engine may have left it.
func (r *rig) row(v vm.VM) {
	r.t.Helper()
	v.Owner, v.Kept = r.opts.Owner, true
	if _, _, err := r.store.InsertVM(context.Background(), v, "", job.Limits{}); err != nil {
		r.t.Fatal(err)
	}
}

// change changes a VM's row, as another engine does.
func (r *rig) change(id string, change func(*vm.VM)) {
	r.t.Helper()
	_, err := r.store.UpdateVM(context.Background(), id, func(v *vm.VM) ([]job.Event, error) {
		change(v)
		return nil, nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// told returns the texts of a VM's events that contain some text.
func (r *rig) told(id, some string) (texts []string) {
	r.t.Helper()
	events, err := r.store.VMEvents(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range events {
		if strings.Contains(e.Text, some) {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// pool adds a pool with the name p.
func (r *rig) pool(size job.PoolSize, change ...func(*job.Pool)) {
	r.t.Helper()
	p := job.Pool{Name: "p", PoolSize: size}
	for _, c := range change {
		c(&p)
	}
	if _, err := r.CreatePool(context.Background(), p); err != nil {
		r.t.Fatal(err)
	}
}

// resize resizes the pool p.
func (r *rig) resize(size job.PoolSize) {
	r.t.Helper()
	if _, err := r.ResizePool(context.Background(), "p", size.Change()); err != nil {
		r.t.Fatal(err)
	}
}

// info returns the pool p as it is.
func (r *rig) info() job.PoolInfo {
	r.t.Helper()
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// filled returns the members of the pool p, oldest first, once there are so many that are idle.
func (r *rig) filled(warm, hibernated int) []vm.VM {
	r.t.Helper()
	r.pass(2 * time.Minute)
	p := r.info()
	if p.Count(vm.MemberWarm) != warm || p.Count(vm.MemberHibernated) != hibernated || len(p.Members) != warm+hibernated {
		r.t.Fatalf("%d warm and %d hibernated of %d members, %q; want %d and %d", p.Count(vm.MemberWarm), p.Count(vm.MemberHibernated), len(p.Members), p.State, warm, hibernated)
	}
	var members []vm.VM
	for _, m := range p.Members {
		members = append(members, r.vm(m.Maker))
	}
	return members
}

// kept checks that a member is as it was.
func (r *rig) kept(id string, state vm.MemberState) {
	r.t.Helper()
	if v := r.vm(id); v.Member.State != state || v.State != vm.Created {
		r.t.Errorf("the member is %s and its VM %s: %s; want %s", v.Member.State, v.State, v.Member.Why, state)
	}
}

// given checks that a member was given up for a reason, and its VM destroyed.
func (r *rig) given(id, why string) {
	r.t.Helper()
	v := r.vm(id)
	_, destroyed := r.host.seen()
	if v.Member.State != vm.MemberDoomed || v.State != vm.Destroyed || !strings.Contains(v.Member.Why, why) || v.ID != 0 && !slices.Contains(destroyed, v.ID) {
		r.t.Errorf("the member is %s and its VM %s: %q; want it given up: %q", v.Member.State, v.State, v.Member.Why, why)
	}
}

func hostError(class job.HostClass, text string) error {
	return &job.HostError{Op: "do it", Host: "pve", Class: class, Text: text}
}

func noRoom(never bool) error {
	return &job.NoRoomError{Refusals: []job.Refusal{{Node: "pve1", Reason: job.RefusedMemory, Text: "3 GiB free of 16, needs 4", Never: never}}}
}
