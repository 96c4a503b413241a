package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// named is the source for jobs that share the VM that their manifest names.
func (f *Fleet) named(ctx context.Context, a *acquisition) (has bool, err error) {
	if !a.job.Shares() {
		return false, nil
	}
	kept, err := f.shared(ctx, a.job)
	if err != nil {
		return false, err
	}
	kept, done, err := f.use(ctx, kept, func(p job.Progress) { job.Tell(ctx, p) })
	if err != nil {
		return false, err
	}
	defer done() // the job itself counts as a use
	inside, err := f.inside(ctx, kept)
	if err != nil {
		return false, err
	}
	if len(inside) > maxShared { // including this job
		return false, fmt.Errorf("VM %d runs %d jobs already, which is the limit; wait for one to end", kept.ID, len(inside)-1)
	}
	a.job, err = f.updateJob(ctx, a.job.ID, func(j *job.Job) ([]job.Event, error) {
		v := kept
		j.VM = &v
		return j.Reach(job.Provisioning), nil
	})
	return err == nil, err
}

// shared returns the VM that j was submitted to run in. Another VM with that name or ID now may be
// another principal's.
func (f *Fleet) shared(ctx context.Context, j job.Job) (vm.VM, error) {
	v, err := f.o.Store.VM(ctx, j.SharedVM)
	if errors.Is(err, job.ErrNotFound) || err == nil && (v.State == vm.Destroyed || v.State == vm.Forgotten) {
		return v, noVM(j.Manifest.VM, "is no longer the VM that this job was submitted for")
	}
	if err != nil {
		return v, err
	}
	return v, takesJobs(v, j.Manifest.VM)
}
