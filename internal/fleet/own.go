package fleet

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// warmTime bounds how long a VM is prepared for a future job.
const warmTime = 10 * time.Second

// making is the state of making one VM that no job makes.
type making struct {
	vm.Making

	waits  string // why it has no node yet
	cancel context.CancelFunc
}

// discardOwn has a requested VM destroyed, whether it is made yet or not. The decision survives
// this process.
func (f *Fleet) discardOwn(ctx context.Context, id, why string) error {
	by := job.CallerFrom(ctx)
	_, err := f.update(ctx, id, func(v *vm.VM) ([]job.Event, error) {
		if v.Unwanted || v.State.Settled() {
			return nil, nil
		}
		v.Unwanted = true
		v.Own.EndedBy, v.Own.EndedFor, v.Own.EndedToken = by.Client, by.Principal, by.Token
		what := strconv.Itoa(v.ID)
		if v.ID == 0 {
			what = v.Name
		}
		events := []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: "VM " + what + " is " + why}}
		if v.Own.ReadyAt.IsZero() {
			v.Own.FailedAt = now()
			events = append(events, job.Event{Kind: job.EventStatus, Text: string(job.Failed)})
		}
		if v.State == vm.Reserved { // nothing can exist yet
			v.State = vm.Destroyed
		}
		return events, nil
	})
	if err != nil {
		return err
	}
	f.stopMaking(id)
	return f.tellUnwanted(ctx)
}

// reserve stores a new VM for a pool, of which nothing can exist yet.
func (f *Fleet) reserve(ctx context.Context, p job.Pool, generation string) (vm.VM, error) {
	id, err := newID()
	if err != nil {
		return vm.VM{}, err
	}
	m := p.Maker().WithDefaults(f.o.Defaults)
	v := vm.VM{
		Name: vm.DefaultName(id), Job: id, Owner: f.o.Owner, State: vm.Reserved, Source: vm.Cold, Kept: true,
		Made:   vm.Made{Lifecycle: vm.Pooled, Template: m.VMTemplate, OS: m.OS, Resources: m.Resources, Network: m.Network, CreatedAt: now(), Labels: m.Labels},
		Member: &vm.Member{Pool: p.Name, Generation: generation, State: vm.MemberMaking, Since: now()}, Own: &vm.Own{},
	}
	_, _, err = f.o.Store.InsertVM(ctx, v, "", job.Limits{})
	return v, err
}

// begin begins or continues to make a VM that is not being made here already.
func (f *Fleet) begin(ctx context.Context, v vm.VM) {
	ctx, cancel := context.WithCancel(ctx)
	of := vm.Making{ID: v.Job, MemoryMB: job.SizeMB(v.Resources.Memory)}
	if v.Given() && v.Source == vm.FromPool { // it has its memory already
		of.MemoryMB = 0
	}
	if v.Member != nil {
		of.Pool = v.Member.Pool
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.makes[v.Job] != nil {
		cancel()
		return
	}
	f.makes[v.Job] = &making{Making: of, cancel: cancel}
	id := v.Job // v is read again, which may fail
	f.background.Go(func() {
		ours := false
		defer func() {
			cancel()
			f.mu.Lock()
			delete(f.makes, id)
			f.mu.Unlock()
			if ours {
				if of.Pool != "" {
					f.TendSoon()
				}
				signal(f.reaper.wake)
			}
		}()
		release, err := f.lockLife(ctx, v)
		if err != nil {
			return // another engine makes it; the next tick looks again
		}
		defer release()
		ours = true
		v, err = f.o.Store.VM(ctx, v.Job)
		if err == nil && v.BeingMade() && (v.Member == nil || v.Member.State == vm.MemberMaking) {
			f.work(ctx, v)
		}
	})
}

// lockLife keeps other engines from making or destroying a VM.
func (f *Fleet) lockLife(ctx context.Context, v vm.VM) (release func(), err error) {
	if f.o.Engines == nil {
		return func() {}, nil
	}
	return lock.TryLock(ctx, f.o.Engines, "life of "+v.Job, "made")
}

// work makes a VM. If a fault of the engine or its end interrupts that, it is continued later; a VM
// that cannot be made becomes unwanted.
func (f *Fleet) work(ctx context.Context, v vm.VM) {
	began := time.Now()
	err := f.makeVM(ctx, v)
	if ctx.Err() != nil || job.IsEngineFault(err) {
		if job.IsEngineFault(err) {
			f.o.Log.Error("an internal fault of this engine holds up a VM", "job_id", v.Job, "err", err)
		}
		return
	}
	row, noteErr := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		switch {
		case v.Unwanted || v.Own.Failed != "":
			return nil, nil // the VM was given up meanwhile
		case err != nil:
			v.Own.Failed, v.Own.FailedAt, v.Unwanted = job.Bounded(err.Error()), now(), true
			v.Own.Unable = job.IsClass(err, job.HostConfig)
			if v.State == vm.Reserved { // nothing exists
				v.State = vm.Destroyed
			}
			return []job.Event{{Kind: job.EventPhaseEnded, Phase: job.PhaseProvision, Text: err.Error()}, {Kind: job.EventStatus, Text: string(job.Failed)}}, nil
		}
		f.tookMemory(v.Job)
		v.Own.ReadyAt, v.Own.Progress = now(), ""
		if v.Member != nil {
			v.Member.Become(vm.MemberWarm, now())
			if lease := f.MemberLease(); lease > 0 {
				v.Member.LeaseUntil = v.CreatedAt.Add(lease) // the lease was announced to the host after that
			}
		}
		return []job.Event{{Kind: job.EventPhaseEnded, Phase: job.PhaseProvision}, {Kind: job.EventStatus, Text: string(job.Success)}}, nil
	})
	if noteErr != nil && ctx.Err() == nil {
		f.o.Log.Error("record what became of a VM failed", "job_id", v.Job, "err", noteErr)
	}
	if noteErr == nil && row.AskedFor() {
		result := job.PhaseOK
		if err != nil {
			result = job.PhaseFailed
		}
		f.o.Changes.Add(job.PhaseEnd{Job: job.StandInJob(row), Phase: job.PhaseProvision, Began: began, Result: result, Err: err})
	}
	f.o.Log.Info("VM is made", "job_id", v.Job, "err", err)
	if row.State == vm.Destroyed {
		f.dropKey(ctx, v.Job)
		if refused(err) { // what the script left may be removed, on a host that may not respond
			f.removeScraps(ctx, row)
		}
	}
	f.DestroySoon()
}

// makeVM makes a VM. A pool's VM, or a checkpoint's, is prepared for its future jobs.
func (f *Fleet) makeVM(ctx context.Context, v vm.VM) error {
	begun := v.State != vm.Reserved
	events := []job.Event{{Kind: job.EventPhaseStarted, Phase: job.PhaseProvision}}
	if !begun || v.Given() {
		events = append([]job.Event{{Kind: job.EventStatus, Text: string(job.Provisioning)}}, events...)
	}
	if _, err := f.update(ctx, v.Job, func(*vm.VM) ([]job.Event, error) { return events, nil }); err != nil {
		return err
	}
	spec, err := f.specOf(v)
	if err != nil {
		return err
	}
	if spec.PublicKey, err = f.loginKey(v.Job); err != nil {
		return err
	}
	recorder := vmRecorder{f, v.Job}
	telling := job.WithListener(ctx, func(p job.Progress) { recorder.Tell(ctx, p) })
	made, err := f.make(telling, makeRequest{planned: v, spec: spec, begun: begun, ttl: seconds(v.Own.TTL), recorder: recorder})
	if err != nil {
		return err
	}
	if made.HostKey != "" && (v.Member != nil || v.Checkpoint != nil) { // else nobody logs in there before a job does
		f.warm(ctx, made)
	}
	if v.Checkpoint != nil {
		err = f.save(ctx, made)
	}
	return err
}

// warm puts the job runner into a VM before it has a job. If that fails, the job tries again.
func (f *Fleet) warm(ctx context.Context, v vm.VM) {
	timed, end := context.WithTimeout(ctx, warmTime)
	defer end()
	if err := f.o.Guest.Warm(timed, asJob(v)); err != nil {
		f.o.Log.Debug("the VM is not prepared in advance", "job_id", v.Job, "err", err)
	}
}

// specOf returns the spec of a VM that no job makes, without its node and key.
func (f *Fleet) specOf(v vm.VM) (job.VMSpec, error) {
	spec, err := job.SpecOf(job.Manifest{VMTemplate: v.Template, OS: v.OS, Resources: v.Resources, Network: v.Network})
	spec.Name, spec.Job, spec.Owner = v.Name, v.Job, v.Owner
	switch {
	case v.Member != nil:
		spec.Lease = f.MemberLease()
	case f.o.Lease > 0 && v.Checkpoint != nil: // until it is saved
		spec.Lease = checkpointLease
	case f.o.Lease > 0 && v.Own.TTL > 0 && v.AtEnd != vm.EndSuspend:
		spec.Lease = seconds(v.Own.TTL) + f.o.Lease
	}
	return spec, err
}

// stopMaking stops the making of a VM here, if it is in progress.
func (f *Fleet) stopMaking(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.makes[id]; m != nil {
		m.cancel()
	}
}

func (f *Fleet) isMaking(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.makes[id] != nil
}

// tookMemory records that the host now counts the memory of a VM that is made here, which it did
// not when it was last read.
func (f *Fleet) tookMemory(id string) {
	f.pools.mu.Lock()
	f.pools.roomAt = time.Time{}
	f.pools.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.makes[id]; m != nil {
		m.MemoryMB = 0
	}
}

func (f *Fleet) beingMade() (all []vm.Making) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range slices.Collect(maps.Values(f.makes)) {
		all = append(all, m.Making)
	}
	return all
}

// vmRecorder records in a VM's row what happens to it.
type vmRecorder struct {
	f  *Fleet
	id string
}

// Change implements recorder.
func (b vmRecorder) Change(ctx context.Context, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	b.f.mu.Lock()
	if m := b.f.makes[b.id]; m != nil {
		m.Begun = true
	}
	b.f.mu.Unlock()
	return b.f.update(ctx, b.id, func(v *vm.VM) ([]job.Event, error) {
		unwanted := v.Unwanted
		events, err := change(v)
		v.Kept, v.Unwanted = true, unwanted || v.Member != nil && v.Member.State == vm.MemberDoomed
		if v.Unwanted && v.State == vm.Reserved { // nothing can exist yet
			v.State = vm.Destroyed
		}
		return events, err
	})
}

// Tell records a step at once.
func (b vmRecorder) Tell(ctx context.Context, p job.Progress) {
	_, err := b.f.update(ctx, b.id, func(v *vm.VM) ([]job.Event, error) {
		if p.Text != "" {
			v.Own.Progress = p.Line()
		}
		return []job.Event{p.Event()}, nil
	})
	if err != nil && ctx.Err() == nil {
		b.f.o.Log.Error("record progress failed", "job_id", b.id, "err", err)
	}
}

// Wait records in the VM's row what it waits for.
func (b vmRecorder) Wait(ctx context.Context, full *job.NoRoomError) error {
	text := ""
	if full != nil {
		text = full.Waiting()
	}
	b.f.mu.Lock()
	m := b.f.makes[b.id]
	before := m.waits
	m.Waits, m.waits = text != "", text
	b.f.mu.Unlock()
	if text == "" || text == before {
		return nil
	}
	return b.f.set(ctx, b.id, func(v *vm.VM) { v.Own.Waits = text })
}

// Told returns the recorded events of the VM.
func (b vmRecorder) Told(ctx context.Context) ([]job.Event, error) {
	return b.f.o.Store.VMEvents(ctx, b.id)
}
