package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// unwanted is what is known of the VMs that are to be destroyed though no job ends: kept
// ones, and pools'.
type unwanted struct {
	wake chan struct{} // there may be more

	mu   sync.Mutex
	left bool            // there are some, as of the last look
	here map[string]bool // those being destroyed here
}

// Tend keeps the pools as they are wanted, and destroys what nobody wants any more, until
// ctx ends.
func (f *Fleet) Tend(ctx context.Context) {
	defer f.background.Wait()
	f.background.Go(func() { f.tendPools(ctx) })
	tick := time.NewTicker(f.o.CleanupInterval)
	defer tick.Stop()
	for {
		if err := f.destroyUnwanted(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Error("find VMs that are not wanted failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-f.unwanted.wake:
		}
	}
}

// DestroySoon has the VMs destroyed of which it was just recorded that nobody wants them.
func (f *Fleet) DestroySoon() {
	f.unwanted.mu.Lock()
	f.unwanted.left = true
	f.unwanted.mu.Unlock()
	signal(f.unwanted.wake)
}

// Busy reports whether this engine has something to do for VMs: there are pools, or VMs that
// nobody wants.
func (f *Fleet) Busy() bool {
	f.unwanted.mu.Lock()
	left := f.unwanted.left
	f.unwanted.mu.Unlock()
	return left || f.Working() || f.pools.active()
}

// Working reports whether a VM is being made for a pool here, or destroyed.
func (f *Fleet) Working() bool {
	f.unwanted.mu.Lock()
	destroys := len(f.unwanted.here)
	f.unwanted.mu.Unlock()
	return destroys+len(f.beingMade()) > 0
}

// destroyUnwanted begins to destroy the VMs that nobody wants, if this engine leads. Those
// whose job has not ended are destroyed by that.
func (f *Fleet) destroyUnwanted(ctx context.Context) error {
	leads := f.o.Engine.Leads(ctx)
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	f.unwanted.mu.Lock()
	defer f.unwanted.mu.Unlock()
	f.unwanted.left = false
	for _, v := range vms {
		if !leads || !v.Doomed() {
			continue
		}
		f.unwanted.left = true
		if !f.unwanted.here[v.Job] && !f.isMaking(v.Job) {
			f.unwanted.here[v.Job] = true
			f.background.Go(func() { f.destroy(ctx, v) })
		}
	}
	return nil
}

// destroy destroys a VM that nobody wants. What fails is tried again the next time.
func (f *Fleet) destroy(ctx context.Context, v vm.VM) {
	defer func() {
		f.unwanted.mu.Lock()
		defer f.unwanted.mu.Unlock()
		delete(f.unwanted.here, v.Job)
	}()
	release, err := f.lockLife(ctx, v)
	if err != nil {
		return // an engine that has led before makes or destroys it
	}
	defer release()
	log := f.o.Log.With("job_id", v.Job, "vm_id", v.ID)
	f.o.Guest.Forget(maker(v))
	_, err = f.Remove(job.WithCaller(ctx, f.o.Engine.Ender(ctx, v.Job)), v)
	if err == nil || job.IsClass(err, job.HostLeftAlone) {
		err = f.Settle(ctx, v.Job, err)
		f.o.Guest.Forget(maker(v)) // it may have been asked meanwhile
		f.o.Engine.Destroyed(ctx, v.Job)
		signal(f.unwanted.wake)
	} else if ctx.Err() == nil {
		text := "VM not destroyed, will be tried again: " + err.Error()
		_, noteErr := f.update(ctx, v.Job, func(*vm.VM) ([]job.Event, error) {
			return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseDestroy, Text: text}}, nil
		})
		if noteErr != nil {
			log.Error("record warning failed", "err", noteErr)
		}
	}
	if ctx.Err() == nil {
		log.Info("VM that nobody wants is destroyed", "err", err)
		f.TendSoon()
	}
}

// destroyed is what is told when a VM was destroyed that nobody wanted.
func destroyed(v vm.VM) job.Event {
	return job.Event{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d is destroyed", v.ID)}
}
