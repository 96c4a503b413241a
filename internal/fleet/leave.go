package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// Settle records the result of destroying a VM: it is gone or, if err is a *job.HostError, the host
// has left it alone. That is reported again only if the reason changes. Settle returns the error
// together with a remedy.
func (f *Fleet) Settle(ctx context.Context, id string, err error) error {
	var host *job.HostError
	if err != nil && !errors.As(err, &host) {
		return err
	}
	var left *job.HostError
	_, noteErr := f.update(ctx, id, func(v *vm.VM) ([]job.Event, error) {
		if host == nil {
			return gone(v), nil
		}
		told := *host
		told.Remedy += "; or keep it, and make linus forget it: " + string(job.ForgetVM) + " " + v.Name
		left = &told
		if v.State == vm.LeftAlone && v.Reason == left.Text {
			return nil, nil
		}
		v.State, v.Reason, v.Remedy = vm.LeftAlone, left.Text, left.Remedy
		return []job.Event{{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is left alone: %s; %s", v.ID, left.Text, left.Remedy)}}, nil
	})
	if left == nil {
		f.MadeRoom()
	}
	if noteErr != nil || left == nil {
		return noteErr
	}
	f.o.Log.Warn("VM is left alone", "job_id", id, "err", left)
	return left
}

// gone changes the row of a VM that was destroyed, and returns the events to report.
func gone(v *vm.VM) []job.Event {
	was := v.State
	v.State, v.Reason, v.Remedy = vm.Destroyed, "", ""
	switch {
	case (was == vm.Intended || was == vm.Created) && v.Kept:
		return []job.Event{destroyed(*v)}
	case was == vm.LeftAlone:
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d, which was left alone, is gone", v.ID)}}
	}
	return nil
}

// lookAtLeftAlone checks the VMs that are left alone again: a VM that is proven again is destroyed,
// and a VM that is gone is recorded as destroyed. It asks the host for their status first, since
// every attempt to destroy is audited.
func (f *Fleet) lookAtLeftAlone(ctx context.Context) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.o.Log.Error("find VMs that are left alone failed", "err", err)
		}
		return
	}
	for _, v := range vms {
		if v.State != vm.LeftAlone {
			continue
		}
		if status, err := f.o.Provider.Status(ctx, v); err != nil || status == vm.Unproven {
			continue
		}
		if err := f.DestroyLeftAlone(ctx, v.Job); err != nil && ctx.Err() == nil && !job.IsClass(err, job.HostLeftAlone) {
			f.o.Log.Warn("VM that was left alone could not be destroyed, will be tried again", "job_id", v.Job, "vm_id", v.ID, "err", err)
		}
	}
}

// DestroyLeftAlone tries again to destroy a VM that is left alone, unless it was forgotten meanwhile
// and so is the operator's. Nil means that the VM is destroyed, or was settled by another call.
func (f *Fleet) DestroyLeftAlone(ctx context.Context, id string) error {
	release, err := f.leftAloneLock.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	v, err := f.o.Store.VM(ctx, id)
	if err != nil || v.State != vm.LeftAlone {
		return err
	}
	err = f.o.Provider.Destroy(ctx, v)
	if job.IsClass(err, job.HostForeign) {
		err = nil
	}
	if err != nil && !job.IsClass(err, job.HostLeftAlone) {
		return err
	}
	return f.Settle(ctx, id, err)
}

// Forget stops tracking a VM that is left alone. The VM is not touched; it is no longer listed and
// belongs to the operator from now on.
func (f *Fleet) Forget(ctx context.Context, id string) error {
	release, err := f.leftAloneLock.Take(ctx)
	if err != nil {
		return err
	}
	defer release()
	v, err := f.o.Store.VM(ctx, id)
	if err != nil {
		return err
	}
	if v.State != vm.LeftAlone {
		return &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("%q is not left alone, so it cannot be forgotten", v.Name), Remedy: "destroy it: " + string(job.DestroyVM) + " " + v.Name, Fault: job.FaultState,
		}
	}
	if err := f.o.Provider.ForgetVM(ctx, v); err != nil {
		return err
	}
	_, err = f.update(context.WithoutCancel(ctx), id, func(v *vm.VM) ([]job.Event, error) {
		v.State = vm.Forgotten
		text := fmt.Sprintf("VM %d was forgotten on request, and stays on the host", v.ID)
		if behind := v.Network.Behind(); behind != "" {
			text += "; " + behind
		}
		return []job.Event{{Kind: job.EventWarning, Text: text}}, nil
	})
	if err == nil {
		f.o.Log.Warn("VM forgotten on request, and stays on the host", "job_id", id, "vm_id", v.ID)
	}
	return err
}
