package executor

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// named is the source of VMs that others have made: the one that the manifest names, which
// the job shares.
func (e *Executor) named(ctx context.Context, r *run, j job.Job) (_ job.Job, has bool, err error) {
	if !j.Shares() {
		return j, false, nil
	}
	kept, err := e.sharedVM(ctx, j)
	if err != nil {
		return j, false, err
	}
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return j, false, err
	}
	others := sharers(begun, kept)
	if len(others) > maxShared { // itself included
		return j, false, fmt.Errorf("VM %d runs %d jobs already, which is the limit; wait for one to end", kept.ID, len(others)-1)
	}
	j, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		v := kept
		j.VM = &v
		return become(j, job.Provisioning), nil
	})
	return j, err == nil, err
}

// sharedVM returns the VM that j was submitted to run in: another VM that has its name or
// ID by now may be another principal's.
func (e *Executor) sharedVM(ctx context.Context, j job.Job) (vm.VM, error) {
	v, err := e.o.VMs.VM(ctx, j.SharedVM)
	if errors.Is(err, job.ErrNotFound) || err == nil && (v.State == vm.Destroyed || v.State == vm.Forgotten) {
		return v, noVM(j.Manifest.VM, "is no longer the VM that this job was submitted for")
	}
	if err != nil {
		return v, err
	}
	return v, takesJobs(v, j.Manifest.VM)
}
