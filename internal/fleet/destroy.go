package fleet

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// DestroyVM is Destroy for a VM by its name or ID.
func (f *Fleet) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := f.Find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	return f.Destroy(ctx, v)
}

// Destroy destroys a persistent VM. Jobs in it, and the job that makes it, must have ended. It also destroys
// a VM that is still being created or worked on: a start that hangs must not prevent it. It returns once
// that is decided. The decision survives this process: destroying is retried until the VM is gone.
func (f *Fleet) Destroy(ctx context.Context, v vm.VM) (job.VMInfo, error) {
	if v.State == vm.LeftAlone {
		if err := f.DestroyLeftAlone(ctx, v.Job); err != nil { // when it returns, the VM is destroyed or the host has refused
			return job.VMInfo{}, err
		}
		return f.infoOf(ctx, v.Job)
	}
	if v.Member != nil {
		return f.destroyMember(ctx, v)
	}
	if v.Lifecycle != vm.Persistent {
		return job.VMInfo{}, noVM(v.Name, "goes with job "+v.Job+": cancel that")
	}
	if v.Stays() || v.BeingMade() {
		if err := f.discard(ctx, v, "destroyed by request"); err != nil {
			return job.VMInfo{}, err
		}
	}
	return f.infoOf(ctx, v.Job)
}

// destroyMember is DestroyVM for a pool's VM. If no job has claimed the VM, the pool gives it up
// and makes another.
func (f *Fleet) destroyMember(ctx context.Context, v vm.VM) (job.VMInfo, error) {
	if v.Member.State == vm.MemberClaimed {
		return job.VMInfo{}, noVM(v.Name, "goes with job "+v.Member.Claimer+": cancel that")
	}
	if err := f.doom(ctx, v.Job, v.Member.State, "destroyed by request"); err != nil {
		return job.VMInfo{}, err
	}
	return f.infoOf(ctx, v.Job)
}

// discard marks a persistent VM for destruction. It returns a *job.FieldError if jobs run in the VM.
func (f *Fleet) discard(ctx context.Context, v vm.VM, why string) error {
	return f.discardIf(ctx, v, why, func(vm.VM) bool { return true })
}

// discardIf is discard if is still holds for the VM when that is decided.
func (f *Fleet) discardIf(ctx context.Context, v vm.VM, why string, is func(vm.VM) bool) error {
	end, err := f.Decide(ctx)
	if err != nil {
		return err
	}
	defer end()
	if row, err := f.o.Store.VM(ctx, v.Job); err != nil || !is(row) {
		return err
	}
	if err := f.idle(ctx, v, "destroyed"); err != nil {
		return err
	}
	if v.Own != nil {
		return f.discardOwn(ctx, v.Job, why)
	}
	_, err = f.updateJob(ctx, v.Job, func(j *job.Job) ([]job.Event, error) {
		j.EndBy(job.CallerFrom(ctx))
		if j.VM.Unwanted {
			return nil, nil
		}
		j.VM.Unwanted = true
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d is %s", j.VM.ID, why)}}, nil
	})
	if err != nil {
		return err
	}
	f.o.Log.Info("VM is to be destroyed", "job_id", v.Job, "why", why)
	return f.tellUnwanted(ctx)
}

// ForgetVM stops tracking a VM that is left alone. The VM is not touched; it is no longer listed
// and belongs to the operator from now on.
func (f *Fleet) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := f.Find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if err := f.Forget(ctx, v.Job); err != nil {
		return job.VMInfo{}, err
	}
	return f.infoOf(context.WithoutCancel(ctx), v.Job)
}
