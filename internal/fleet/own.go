package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// warmTime bounds how long a new VM of a pool is prepared for the job that will claim it.
const warmTime = 10 * time.Second

// making is the work on one VM of a pool that is being made here.
type making struct {
	vm.Making

	waits  string // why it has no node yet
	cancel context.CancelFunc
}

// reserve stores a VM for a pool, of which nothing can exist yet.
func (f *Fleet) reserve(ctx context.Context, p job.Pool, generation string) (vm.VM, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return vm.VM{}, fmt.Errorf("create a VM's ID: %w", err)
	}
	m := p.Maker().WithDefaults(f.o.Defaults)
	v := vm.VM{
		Name: vm.DefaultName(id.String()), Job: id.String(), Owner: f.o.Owner, State: vm.Reserved, Source: vm.Cold, Kept: true,
		Made:   vm.Made{Lifecycle: vm.Pooled, Template: m.VMTemplate, OS: m.OS, Resources: m.Resources, Network: m.Network, CreatedAt: now()},
		Member: &vm.Member{Pool: p.Name, Generation: generation, State: vm.MemberMaking, Since: now()},
	}
	return v, f.o.Store.InsertVM(ctx, v)
}

// begin begins to make a VM of a pool, or goes on with one that is not made here already.
func (f *Fleet) begin(ctx context.Context, v vm.VM) {
	ctx, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.makes[v.Job] != nil {
		cancel()
		return
	}
	f.makes[v.Job] = &making{Making: vm.Making{ID: v.Job, Pool: v.Member.Pool, MemoryMB: job.SizeMB(v.Resources.Memory)}, cancel: cancel}
	id := v.Job // v is read again, which may fail
	f.background.Go(func() {
		defer func() {
			cancel()
			f.mu.Lock()
			delete(f.makes, id)
			f.mu.Unlock()
			f.TendSoon()
		}()
		release, err := f.lockLife(ctx, v)
		if err != nil {
			return // another engine makes it
		}
		defer release()
		if v, err = f.o.Store.VM(ctx, v.Job); err == nil && v.Member.State == vm.MemberMaking && v.Member.ReadyAt.IsZero() && !v.Unwanted {
			f.work(ctx, v)
		}
	})
}

// lockLife keeps other engines from making or destroying a VM.
func (f *Fleet) lockLife(ctx context.Context, v vm.VM) (release func(), err error) {
	if f.o.Engines == nil {
		return func() {}, nil
	}
	return lock.Now(ctx, f.o.Engines, "life of "+v.Job, "made")
}

// work makes a VM of a pool. What a fault of the engine's own has held up, or its end, is gone on
// with later; a VM that cannot be made is not wanted any more.
func (f *Fleet) work(ctx context.Context, v vm.VM) {
	err := f.bring(ctx, v)
	if ctx.Err() != nil || job.Own(err) {
		if job.Own(err) {
			f.o.Log.Error("a fault of this engine's own holds a pool's VM up", "job_id", v.Job, "err", err)
		}
		return
	}
	_, noteErr := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		switch {
		case err != nil:
			v.Member.Failed, v.Unwanted = job.Bounded(err.Error()), true
			if v.State == vm.Reserved {
				v.State = vm.Destroyed
			}
			return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: err.Error()}}, nil
		case v.Member.State != vm.MemberMaking: // it was given up meanwhile
			return nil, nil
		}
		f.tookMemory(v.Job)
		v.Member.Become(vm.MemberWarm, now())
		v.Member.ReadyAt = now()
		if lease := f.MemberLease(); lease > 0 {
			v.Member.LeaseUntil = v.CreatedAt.Add(lease) // it was announced after that
		}
		return nil, nil
	})
	if noteErr != nil && ctx.Err() == nil {
		f.o.Log.Error("record what became of a pool's VM failed", "job_id", v.Job, "err", noteErr)
	}
	f.o.Log.Info("VM of a pool is made", "job_id", v.Job, "pool", v.Member.Pool, "err", err)
	f.DestroySoon()
}

// bring makes a VM of a pool and prepares it for the job that will claim it.
func (f *Fleet) bring(ctx context.Context, v vm.VM) error {
	spec, err := job.SpecOf(job.Manifest{VMTemplate: v.Template, OS: v.OS, Resources: v.Resources, Network: v.Network})
	if err != nil {
		return err
	}
	spec.Name, spec.Job, spec.Owner, spec.Lease = v.Name, v.Job, v.Owner, f.MemberLease()
	if spec.PublicKey, err = f.o.Engine.LoginKey(v.Job); err != nil {
		return err
	}
	made, _, err := f.Make(ctx, job.VMOrder{Planned: v, Spec: spec, Adopted: v.State != vm.Reserved, Book: ownBook{f, v.Job}})
	if err != nil || made.HostKey == "" { // nobody logs in to that before a job does
		return err
	}
	timed, end := context.WithTimeout(ctx, warmTime)
	defer end()
	if err := f.o.Guest.Warm(timed, maker(made)); err != nil {
		f.o.Log.Debug("the VM is not prepared in advance", "job_id", v.Job, "err", err)
	}
	return nil
}

// stopMaking stops the making of a VM here, if it is under way.
func (f *Fleet) stopMaking(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.makes[id]; m != nil {
		m.cancel()
	}
}

// isMaking reports whether a VM is being made here.
func (f *Fleet) isMaking(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.makes[id] != nil
}

// tookMemory notes that the host counts the memory of a VM that is made here.
func (f *Fleet) tookMemory(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.makes[id]; m != nil {
		m.MemoryMB = 0
	}
}

// beingMade returns the VMs that are being made here.
func (f *Fleet) beingMade() (all []vm.Making) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range slices.Collect(maps.Values(f.makes)) {
		all = append(all, m.Making)
	}
	return all
}

// ownBook writes down in a VM's row what becomes of it.
type ownBook struct {
	f  *Fleet
	id string
}

// Change is job.VMBook's.
func (b ownBook) Change(ctx context.Context, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return b.f.update(ctx, b.id, func(v *vm.VM) ([]job.Event, error) {
		b.f.mu.Lock()
		defer b.f.mu.Unlock()
		unwanted := v.Unwanted
		events, err := change(v)
		v.Kept, v.Unwanted = true, unwanted || v.Member.State == vm.MemberDoomed
		if m := b.f.makes[b.id]; m != nil {
			m.Begun = true
		}
		return events, err
	})
}

// Tell records a step at once.
func (b ownBook) Tell(ctx context.Context, p job.Progress) {
	_, err := b.f.update(ctx, b.id, func(*vm.VM) ([]job.Event, error) { return []job.Event{p.Event()}, nil })
	if err != nil && ctx.Err() == nil {
		b.f.o.Log.Error("record progress failed", "job_id", b.id, "err", err)
	}
}

// Wait says in the VM's row what it waits for.
func (b ownBook) Wait(ctx context.Context, full *job.NoRoomError) error {
	text := ""
	if full != nil {
		text = "waiting: " + full.Error()
	}
	b.f.mu.Lock()
	m := b.f.makes[b.id]
	before := m.waits
	m.Waits, m.waits = text != "", text
	b.f.mu.Unlock()
	if text == "" || text == before {
		return nil
	}
	_, err := b.f.update(ctx, b.id, func(v *vm.VM) ([]job.Event, error) {
		v.Member.Waits = text
		return nil, nil
	})
	return err
}

// Told returns what was recorded of the VM.
func (b ownBook) Told(ctx context.Context) (map[job.Event]bool, error) {
	events, err := b.f.o.Store.VMEvents(ctx, b.id)
	told := map[job.Event]bool{}
	for _, e := range events {
		told[job.Event{Kind: e.Kind, Phase: e.Phase, Text: e.Text}] = true
	}
	return told, err
}
