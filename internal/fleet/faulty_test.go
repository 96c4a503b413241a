package fleet_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"linus/internal/job"
	"linus/internal/store"
	"linus/internal/vm"
)

// steps are the calls that a fleet makes of its store, its host and the other engines, at any of
// which a test may have something happen.
type steps struct {
	mu      sync.Mutex
	hooks   []*hook
	crashed bool
}

// hook is what happens at the nth call of a name from when it was set, which counts down; 0: at
// each.
type hook struct {
	call   string
	n      int
	after  bool
	happen func() error
}

var errCrashed = errors.New("the engine was killed")

// before has something happen before the nth call of a name from now. An error is what the call
// returns then, without an effect.
func (s *steps) before(call string, n int, happen func() error) { s.set(hook{call, n, false, happen}) }

// after is before for what happens when the call has had its effect.
func (s *steps) after(call string, n int, happen func() error) { s.set(hook{call, n, true, happen}) }

func (s *steps) set(h hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, &h)
}

// crash is what happens where the engine is killed: nothing has an effect from then on, until the
// next engine starts.
func (s *steps) crash() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashed = true
	return errCrashed
}

// reached has happen what is to, and returns the error that the call is to return.
func (s *steps) reached(call string, after bool) error {
	s.mu.Lock()
	if s.crashed {
		s.mu.Unlock()
		return errCrashed
	}
	var due []func() error
	for _, h := range s.hooks {
		if h.call != call || h.after != after {
			continue
		}
		if h.n != 1 && h.n != 0 {
			h.n = max(h.n-1, -1) // at -1 it has happened
			continue
		}
		if h.n == 1 {
			h.n = -1
		}
		due = append(due, h.happen)
	}
	s.mu.Unlock()
	var errs []error
	for _, happen := range due {
		errs = append(errs, happen())
	}
	return errors.Join(errs...)
}

// step makes a call, at which may happen what a test has set.
func step[T any](s *steps, call string, made func() (T, error)) (T, error) {
	var none T
	if err := s.reached(call, false); err != nil {
		return none, err
	}
	got, err := made()
	if at := s.reached(call, true); at != nil {
		return none, errors.Join(err, at)
	}
	return got, err
}

func effect(s *steps, call string, made func() error) error {
	_, err := step(s, call, func() (struct{}, error) { return struct{}{}, made() })
	return err
}

// faultyStore is a store at whose calls something happens.
type faultyStore struct {
	*store.Store
	s *steps
}

func (f faultyStore) VM(ctx context.Context, id string) (vm.VM, error) {
	return step(f.s, "VM", func() (vm.VM, error) { return f.Store.VM(ctx, id) })
}

func (f faultyStore) VMs(ctx context.Context) ([]vm.VM, error) {
	return step(f.s, "VMs", func() ([]vm.VM, error) { return f.Store.VMs(ctx) })
}

func (f faultyStore) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return step(f.s, "UpdateVM", func() (vm.VM, error) { return f.Store.UpdateVM(ctx, id, change) })
}

func (f faultyStore) GrowVM(ctx context.Context, of vm.VM, what string, mb int, within job.Limits, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return step(f.s, "GrowVM", func() (vm.VM, error) { return f.Store.GrowVM(ctx, of, what, mb, within, change) })
}

func (f faultyStore) GiveVM(ctx context.Context, v vm.VM, key string, within job.Limits, pools []string, choose func(string, []vm.VM) (int, []job.Event)) (stored vm.VM, created bool, missed []string, err error) {
	err = effect(f.s, "InsertVM", func() (err error) {
		stored, created, missed, err = f.Store.GiveVM(ctx, v, key, within, pools, choose)
		return err
	})
	return stored, created, missed, err
}

func (f faultyStore) InsertVM(ctx context.Context, v vm.VM, key string, within job.Limits) (stored vm.VM, created bool, err error) {
	err = effect(f.s, "InsertVM", func() (err error) {
		stored, created, err = f.Store.InsertVM(ctx, v, key, within)
		return err
	})
	return stored, created, err
}

func (f faultyStore) InsertVolume(ctx context.Context, v vm.Volume, within job.Limits) (bool, error) {
	return step(f.s, "InsertVolume", func() (bool, error) { return f.Store.InsertVolume(ctx, v, within) })
}

func (f faultyStore) InsertSaved(ctx context.Context, t vm.SavedTemplate, within job.Limits) error {
	return effect(f.s, "InsertSaved", func() error { return f.Store.InsertSaved(ctx, t, within) })
}

func (f faultyStore) UpdateVolume(ctx context.Context, id string, change func(*vm.Volume) error) (vm.Volume, error) {
	return step(f.s, "UpdateVolume", func() (vm.Volume, error) { return f.Store.UpdateVolume(ctx, id, change) })
}

func (f faultyStore) DeleteVolume(ctx context.Context, id string) error {
	return effect(f.s, "DeleteVolume", func() error { return f.Store.DeleteVolume(ctx, id) })
}

func (f faultyStore) UpdateSaved(ctx context.Context, t vm.SavedTemplate) error {
	return effect(f.s, "UpdateSaved", func() error { return f.Store.UpdateSaved(ctx, t) })
}

func (f faultyStore) DeleteSaved(ctx context.Context, id string) error {
	return effect(f.s, "DeleteSaved", func() error { return f.Store.DeleteSaved(ctx, id) })
}

// faultyHost is a host, with its guests, at whose calls something happens.
type faultyHost struct {
	*hypervisor
	s *steps
}

func (f faultyHost) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	return step(f.s, "Create", func() (vm.VM, error) { return f.hypervisor.Create(ctx, spec, progress) })
}

func (f faultyHost) Destroy(ctx context.Context, v vm.VM) error {
	return effect(f.s, "Destroy", func() error { return f.hypervisor.Destroy(ctx, v) })
}

func (f faultyHost) ForgetVM(ctx context.Context, v vm.VM) error {
	return effect(f.s, "ForgetVM", func() error { return f.hypervisor.ForgetVM(ctx, v) })
}

func (f faultyHost) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return step(f.s, "StartVM", func() (vm.VM, error) { return f.hypervisor.StartVM(ctx, v, progress) })
}

func (f faultyHost) SuspendVM(ctx context.Context, v vm.VM) error {
	return effect(f.s, "SuspendVM", func() error { return f.hypervisor.SuspendVM(ctx, v) })
}

func (f faultyHost) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	return effect(f.s, "SnapshotVM", func() error { return f.hypervisor.SnapshotVM(ctx, v, name, memory) })
}

func (f faultyHost) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (job.SavedTemplate, error) {
	return step(f.s, "SaveVM", func() (job.SavedTemplate, error) { return f.hypervisor.SaveVM(ctx, v, spec, progress) })
}

func (f faultyHost) CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	return step(f.s, "CreateVolume", func() (vm.Volume, error) { return f.hypervisor.CreateVolume(ctx, v) })
}

func (f faultyHost) RemoveVolume(ctx context.Context, v vm.Volume) error {
	return effect(f.s, "RemoveVolume", func() error { return f.hypervisor.RemoveVolume(ctx, v) })
}

func (f faultyHost) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	return effect(f.s, "AttachVolume", func() error { return f.hypervisor.AttachVolume(ctx, v, to, use) })
}

func (f faultyHost) DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error {
	return effect(f.s, "DetachVolume", func() error { return f.hypervisor.DetachVolume(ctx, v, from) })
}

// peers are other engines that share the store, and what they and this one have locked.
type peers struct {
	*engine
	s *steps

	mu           sync.Mutex
	theirs, ours map[string]string // what each lock is for
}

func newPeers(r *rig, s *steps) *peers {
	return &peers{engine: r.engine, s: s, theirs: map[string]string{}, ours: map[string]string{}}
}

// take has another engine take a lock, or release it where what is empty.
func (p *peers) take(name, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.theirs, name); what != "" {
		p.theirs[name] = what
	}
}

// held reports whether this engine has a lock.
func (p *peers) held(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ours[name] != ""
}

func (p *peers) Lock(_ context.Context, name, what string, _ bool) (taken bool, holder string, err error) {
	err = effect(p.s, "Lock", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if holder = p.theirs[name]; holder == "" {
			taken, p.ours[name] = true, what
		}
		return nil
	})
	return taken, holder, err
}

func (p *peers) Unlock(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ours, name)
	return nil
}

func (p *peers) Locked(_ context.Context, name string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.theirs[name], nil
}

// faulty is bubble for a test at whose steps something happens. The fleet shares its store with
// other engines if it does so before it starts.
func faulty(t *testing.T, test func(r *rig, s *steps)) {
	t.Helper()
	bubble(t, func(r *rig) {
		s := &steps{}
		r.opts.Store, r.opts.Provider, r.opts.Guest = faultyStore{r.store, s}, faultyHost{r.host, s}, faultyHost{r.host, s}
		test(r, s)
	})
}

// restart has another engine go on where the last one was killed.
func (r *rig) restart(s *steps) {
	r.t.Helper()
	r.stop()
	s.mu.Lock()
	s.crashed, s.hooks = false, nil
	s.mu.Unlock()
	r.start()
}

// held is a job that has a VM, and is not in the store.
type held struct {
	s      *steps
	j      job.Job
	events []string
}

func (h *held) Update(_ context.Context, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	return step(h.s, "UpdateJob", func() (job.Job, error) {
		events, err := change(&h.j)
		for _, e := range events {
			h.events = append(h.events, e.Text)
		}
		return h.j, err
	})
}
