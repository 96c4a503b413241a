package executor

import (
	"context"
	"errors"

	"linus/internal/job"
	"linus/internal/vm"
)

// Keys are the key pairs for logging in to VMs, one for each VM, by the job that
// creates it. They outlive this process.
type Keys interface {
	// Make returns the public key, one line, for the VM a job is about to create: the
	// same one each time.
	Make(id string) (public string, err error)
	// Keep removes the pairs of all jobs for which keep returns false.
	Keep(keep func(id string) bool) error
	// Drop removes the key of the VM that job id created, if there is one.
	Drop(id string) error
}

// LoginKey returns the public key of a VM. It is created before the row says that there may
// be a VM.
func (e *Executor) LoginKey(id string) (string, error) {
	if e.o.Keys == nil {
		return "", nil
	}
	return e.o.Keys.Make(id)
}

// dropKeys removes the keys of VMs that are gone or forgotten.
func (e *Executor) dropKeys(ctx context.Context) {
	if e.o.Keys == nil {
		return
	}
	err := e.o.Keys.Keep(func(id string) bool { return e.needsKey(ctx, id) })
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("remove keys of VMs that are gone failed", "err", err)
	}
}

// dropKey is dropKeys for the VM that job id created.
func (e *Executor) dropKey(ctx context.Context, id string) {
	if e.o.Keys == nil || e.needsKey(ctx, id) {
		return
	}
	if err := e.o.Keys.Drop(id); err != nil {
		e.o.Log.Error("remove the key of a VM that is gone failed", "job_id", id, "err", err)
	}
}

// needsKey reports whether the VM that job id created may be there.
func (e *Executor) needsKey(ctx context.Context, id string) bool {
	v, err := e.o.VMs.VM(ctx, id)
	if err == nil && v.State != vm.Destroyed && v.State != vm.Forgotten {
		return true
	}
	if err == nil || errors.Is(err, job.ErrNotFound) { // it may be about to be made
		var j job.Job
		if j, err = e.o.Jobs.Job(ctx, id); err == nil {
			return !j.Finished()
		}
	}
	return !errors.Is(err, job.ErrNotFound)
}
