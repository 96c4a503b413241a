package executor

import (
	"context"
	"errors"

	"linus/internal/job"
)

// Keys are the key pairs that log in to VMs, one for each, by the job that makes
// it. They outlive this process.
type Keys interface {
	// Make returns the public key, one line, of the VM a job is about to make: the
	// same one each time.
	Make(id string) (public string, err error)
	// Find returns it of a VM that may have been begun before there were any.
	Find(id string) (public string, err error)
	// Keep removes the pairs of all jobs of which keep is not true.
	Keep(keep func(id string) bool) error
}

// loginKey returns the public key of j's VM. It is made before the row that says
// that there may be a VM: a VM that has begun without one goes on without.
func (e *Executor) loginKey(j job.Job) (string, error) {
	switch {
	case e.o.Keys == nil:
		return "", nil
	case j.VM == nil:
		return e.o.Keys.Make(j.ID)
	}
	return e.o.Keys.Find(j.ID)
}

// dropKeys removes the keys of VMs that are gone, or no business of ours any more.
func (e *Executor) dropKeys(ctx context.Context) {
	if e.o.Keys == nil {
		return
	}
	err := e.o.Keys.Keep(func(id string) bool {
		j, err := e.o.Store.Job(ctx, id)
		if err != nil {
			return !errors.Is(err, job.ErrNotFound)
		}
		ended := j.VM == nil || j.VM.State == job.VMDestroyed || j.VM.State == job.VMForgotten
		return !ended || !j.Done()
	})
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("remove keys of VMs that are gone failed", "err", err)
	}
}
