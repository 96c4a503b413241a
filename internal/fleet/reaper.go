package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// reaper is what is known of the VMs that are made or destroyed without a job: requested VMs, kept
// VMs, and pools' VMs.
type reaper struct {
	wake chan struct{} // there may be more work

	mu   sync.Mutex
	left bool            // there are some, as of the last look or reported since
	told int             // calls of DestroySoon
	here map[string]bool // work in progress here, such as destroying or copying a VM
}

// begin records that work begins here, and reports false if it was already in progress.
func (r *reaper) begin(work string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := !r.here[work]
	r.here[work] = true
	return begun
}

func (r *reaper) end(work string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.here, work)
}

// Begin lets work on VMs that callers ask for run until ctx ends.
func (f *Fleet) Begin(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running = ctx
}

// Spawn runs work that outlives its caller and ends with the engine.
func (f *Fleet) Spawn(work func(running context.Context)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	running := f.running
	if running == nil || running.Err() != nil {
		return errors.New("the engine does not run")
	}
	f.background.Go(func() { work(running) })
	return nil
}

// Tend keeps the pools as wanted, makes requested VMs, destroys unwanted VMs and searches for
// leftover VMs, until ctx ends, which must be the context given to Begin.
func (f *Fleet) Tend(ctx context.Context) {
	defer func() {
		f.mu.Lock()
		f.running = nil
		f.mu.Unlock()
		f.background.Wait()
	}()
	f.background.Go(func() { f.tendPools(ctx) })
	f.background.Go(func() { f.sweepEach(ctx) })
	tick := time.NewTicker(f.o.CleanupInterval)
	defer tick.Stop()
	for {
		if err := f.tendVMs(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Error("finding VMs to create or destroy failed", "err", err)
		}
		ends, look := time.NewTimer(f.untilNextEnd()), false
		select {
		case <-ctx.Done():
			ends.Stop()
			return
		case <-ends.C:
			f.noteNextEnd(nil, false) // until the VMs are read
		case <-tick.C:
			look = true
		case <-f.reaper.wake:
			ends.Stop()
			continue
		}
		ends.Stop()
		if err := f.expire(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Error("find expired VMs failed", "err", err)
		}
		if !look {
			continue
		}
		if err := f.tendIdle(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Error("find idle VMs failed", "err", err)
		}
		if vms, err := f.o.Store.VMs(ctx); err == nil && job.Leads(ctx, f.o.Engines, f.o.Log) {
			f.background.Go(func() { f.keepLeases(ctx, vms) })
		}
	}
}

// DestroySoon has the VMs made or destroyed that were just recorded as wanted or unwanted.
func (f *Fleet) DestroySoon() {
	f.reaper.mu.Lock()
	f.reaper.left = true
	f.reaper.told++
	f.reaper.mu.Unlock()
	signal(f.reaper.wake)
}

// tellUnwanted is DestroySoon, and notifies the other engines: the leader destroys.
func (f *Fleet) tellUnwanted(ctx context.Context) error {
	f.DestroySoon()
	if f.o.Engines == nil {
		return nil
	}
	return f.o.Engines.Tell(ctx, job.Notice{Kind: job.NoticeFree})
}

// Expect records what this engine's jobs may ask for.
func (f *Fleet) Expect(d job.Demand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d.Seq >= f.demand.Seq {
		f.demand = d
	}
}

// jobsWait reports whether a job waits for a slot.
func (f *Fleet) jobsWait() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.demand.Waits
}

// creating returns the VMs that are, or are about to be, made here, with or without a job.
func (f *Fleet) creating(ctx context.Context) (all []vm.Making) {
	f.mu.Lock()
	starting := f.demand.Starting
	f.mu.Unlock()
	for _, id := range starting {
		j, err := f.o.Jobs.Job(ctx, id)
		if err == nil && (j.Status == job.Pending || j.Status == job.Provisioning) && j.Outcome == nil && !j.Claims() {
			all = append(all, vm.Making{ID: id, MemoryMB: job.SizeMB(j.Manifest.Resources.Memory), Begun: j.Status == job.Provisioning})
		}
	}
	return append(all, f.beingMade()...)
}

// Busy reports whether this engine has something to do for VMs: there are pools, VMs that are
// unwanted, expire or are to be suspended when idle, or work on a VM.
func (f *Fleet) Busy() bool {
	f.reaper.mu.Lock()
	left := f.reaper.left
	f.reaper.mu.Unlock()
	f.mu.Lock()
	expiring := f.expiring
	f.mu.Unlock()
	f.idleSuspender.mu.Lock()
	awake := f.idleSuspender.awake
	f.idleSuspender.mu.Unlock()
	return left || expiring+awake > 0 || f.Working() || f.pools.active()
}

// Working reports whether a VM without a job is being made or destroyed here, or one is being
// started, stopped or the like.
func (f *Fleet) Working() bool {
	f.reaper.mu.Lock()
	destroys := len(f.reaper.here)
	f.reaper.mu.Unlock()
	return destroys+len(f.beingMade()) > 0 || f.access.busy()
}

// tendVMs begins to make requested VMs and to destroy unwanted ones, if this engine leads. VMs
// whose job has not ended are destroyed by the job.
func (f *Fleet) tendVMs(ctx context.Context) error {
	f.reaper.mu.Lock()
	told := f.reaper.told
	f.reaper.mu.Unlock()
	leads, left := job.Leads(ctx, f.o.Engines, f.o.Log), false
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	f.noteNextEnd(vms, leads)
	if saved := f.noteSaved(vms); leads {
		if err := f.trim(ctx, saved); err != nil {
			return err
		}
	}
	busy := 0 // making requested VMs
	for _, of := range f.beingMade() {
		if of.Pool == "" {
			busy++
		}
	}
	var waiting []vm.VM
	forking := map[string]bool{} // copies that wait until the host is ready for them
	for _, v := range vms {
		for _, id := range v.Forking.IDs {
			forking[id] = true
		}
	}
	for _, v := range vms {
		wanted := v.AskedFor() && v.BeingMade()
		if leads && v.Forking.Active() {
			left = true
			f.tendForkSoon(ctx, v)
		}
		if !leads || !wanted && !v.Doomed() {
			continue
		}
		left = true
		if wanted && v.Own.Copied() {
			if !forking[v.Job] { // the original VM is gone, and its row
				f.background.Go(func() { f.logged(ctx, v, f.giveForkUp(ctx, v, "the VM to copy is gone")) })
			}
			continue
		}
		if wanted && v.Checkpoint != nil && f.jobsWait() { // jobs come first
			continue
		}
		switch making := f.isMaking(v.Job); {
		case wanted && v.Given(): // a VM from a pool waits for nobody
			f.begin(ctx, v)
		case wanted && !making && busy >= f.o.MaxMaking:
			waiting = append(waiting, v)
		case wanted && !making:
			busy++
			f.begin(ctx, v)
		case wanted:
		case making: // another engine was told to destroy it
			f.stopMaking(v.Job)
		case f.reaper.begin(v.Job):
			f.background.Go(func() { f.destroy(ctx, v) })
		}
	}
	f.reaper.mu.Lock()
	if f.reaper.told == told {
		f.reaper.left = left
	}
	f.reaper.mu.Unlock()
	return f.queued(ctx, waiting)
}

// tendForkSoon tends the copies of a VM, unless that is in progress.
func (f *Fleet) tendForkSoon(ctx context.Context, of vm.VM) {
	work := "fork of " + of.Job
	if !f.reaper.begin(work) {
		return
	}
	begun := of.Forking.Begun
	f.background.Go(func() {
		f.logged(ctx, of, f.tendFork(ctx, of.Job))
		f.reaper.end(work)
		if now, err := f.o.Store.VM(ctx, of.Job); err == nil && now.Forking.Begun != begun { // there is more to do
			signal(f.reaper.wake)
		}
	})
}

// logged logs that work on copies failed and will be repeated.
func (f *Fleet) logged(ctx context.Context, v vm.VM, err error) {
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("work on copies of a VM failed, will be done again", "job_id", v.Job, "vm_id", v.ID, "err", err)
	}
}

// queued records in the rows of waiting VMs that others are made before them.
func (f *Fleet) queued(ctx context.Context, waiting []vm.VM) error {
	text := fmt.Sprintf("waiting: %d VMs are being made, as many as MAX_JOBS allows", f.o.MaxMaking)
	for _, v := range waiting {
		if v.Own.Waits != "" {
			continue
		}
		_, err := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
			v.Own.Waits = text
			return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text}}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// destroy destroys an unwanted VM. The next look retries a failure.
func (f *Fleet) destroy(ctx context.Context, v vm.VM) {
	defer f.reaper.end(v.Job)
	release, err := f.lockLife(ctx, v)
	if err != nil {
		return // an engine that led before makes or destroys it
	}
	defer release()
	if v, err = f.o.Store.VM(ctx, v.Job); err != nil || !v.Doomed() {
		return // the VM was settled since it was read, or the next tick looks again
	}
	log := f.o.Log.With("job_id", v.Job, "vm_id", v.ID)
	f.o.Guest.Forget(asJob(v))
	_, err = f.Remove(job.WithCaller(ctx, f.ender(ctx, v.Job)), v)
	if err == nil || job.IsClass(err, job.HostLeftAlone) {
		err = f.Settle(ctx, v.Job, err)
		f.o.Guest.Forget(asJob(v)) // the VM may have been pinged meanwhile
		f.dropKey(ctx, v.Job)
		signal(f.reaper.wake)
	} else if ctx.Err() == nil {
		text := "VM not destroyed, will be tried again: " + err.Error()
		if err := f.Tell(ctx, v.Job, []job.Event{{Kind: job.EventWarning, Phase: job.PhaseDestroy, Text: text}}); err != nil {
			log.Error("record warning failed", "err", err)
		}
	}
	if ctx.Err() == nil {
		log.Info("unwanted VM destroyed", "err", err)
		f.TendSoon()
	}
}

// destroyed is the event for an unwanted VM that was destroyed.
func destroyed(v vm.VM) job.Event {
	return job.Event{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d is destroyed", v.ID)}
}
