package fleet

import (
	"context"
	"errors"

	"linus/internal/job"
	"linus/internal/vm"
)

// Keys are the key pairs for logging in to VMs, one for each VM, by the ID in its marker. They
// outlive this process.
type Keys interface {
	// Make returns the public key, one line, for a VM that is about to be made. It is the same each time.
	Make(id string) (public string, err error)
	// Keep removes the pairs of all VMs for which keep returns false.
	Keep(keep func(id string) bool) error
	// Drop removes the key of a VM, if there is one.
	Drop(id string) error
}

// loginKey returns the public key of a VM. It is created before the row says that there may be a VM.
func (f *Fleet) loginKey(id string) (string, error) {
	if f.o.Keys == nil {
		return "", nil
	}
	return f.o.Keys.Make(id)
}

// dropKeys removes the keys of VMs that are gone or forgotten.
func (f *Fleet) dropKeys(ctx context.Context) {
	if f.o.Keys == nil {
		return
	}
	err := f.o.Keys.Keep(func(id string) bool { return f.needsKey(ctx, id) })
	if err != nil && ctx.Err() == nil {
		f.o.Log.Error("remove keys of VMs that are gone failed", "err", err)
	}
}

func (f *Fleet) dropKey(ctx context.Context, id string) {
	if f.o.Keys == nil || f.needsKey(ctx, id) {
		return
	}
	if err := f.o.Keys.Drop(id); err != nil {
		f.o.Log.Error("remove the key of a VM that is gone failed", "job_id", id, "err", err)
	}
}

// needsKey reports whether the VM with an ID in its marker may exist, for somebody to log in to.
func (f *Fleet) needsKey(ctx context.Context, id string) bool {
	v, err := f.o.Store.VM(ctx, id)
	if err == nil && v.State != vm.Destroyed && v.State != vm.Forgotten && !v.Saved() {
		return true
	}
	if err == nil || errors.Is(err, job.ErrNotFound) { // the VM may be about to be made
		var j job.Job
		if j, err = f.o.Jobs.Job(ctx, id); err == nil {
			return !j.Finished()
		}
	}
	return !errors.Is(err, job.ErrNotFound)
}
