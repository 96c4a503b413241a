package executor

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// found records the ID under which the host has the job's VM.
func (e *Executor) found(ctx context.Context, id string, v vm.VM) error {
	_, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		j.VM.ID, j.VM.Node = v.ID, v.Node
		return nil, nil
	})
	return err
}

// settleVM records the result of destroying a VM: it is gone, or, if err is a
// *job.HostError, the host has left it alone. That is reported again only if the reason
// changes. It returns the error, with what can be done.
func (e *Executor) settleVM(ctx context.Context, id string, err error) error {
	var host *job.HostError
	if err != nil && !errors.As(err, &host) {
		return err
	}
	var left *job.HostError
	_, noteErr := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		if host != nil {
			was := *j.VM
			told := *host
			told.Remedy += "; or keep it, and have it forgotten: " + string(job.ForgetVM) + " " + was.Name
			left = &told
			if was.State == vm.LeftAlone && was.Reason == left.Text {
				return nil, nil
			}
			j.VM.State, j.VM.Reason, j.VM.Remedy = vm.LeftAlone, left.Text, left.Remedy
			return []job.Event{{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is left alone: %s; %s", was.ID, left.Text, left.Remedy)}}, nil
		}
		return gone(j)
	})
	if left == nil {
		e.madeRoom()
	}
	if noteErr != nil || left == nil {
		return noteErr
	}
	e.o.Log.Warn("VM is left alone", "job_id", id, "err", left)
	return left
}

// gone is the change when a job's VM was destroyed.
func gone(j *job.Job) ([]job.Event, error) {
	was := *j.VM
	j.VM.State, j.VM.Reason, j.VM.Remedy = vm.Destroyed, "", ""
	if was.State == vm.LeftAlone {
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d, which was left alone, is gone", was.ID)}}, nil
	}
	return nil, nil
}

// lookAtLeftAlone checks the VMs that are left alone again: one whose proof is complete
// again is destroyed, and one that is gone is recorded as destroyed. It asks the host
// for their status first, since every attempt to destroy is audited.
func (e *Executor) lookAtLeftAlone(ctx context.Context) {
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		if ctx.Err() == nil {
			e.o.Log.Error("find VMs that are left alone failed", "err", err)
		}
		return
	}
	for _, v := range vms {
		if v.State != vm.LeftAlone {
			continue
		}
		status, err := e.o.Provider.Status(ctx, v)
		if err != nil || status == vm.Unproven {
			continue
		}
		if err := e.tryLeftAlone(ctx, v.Job); err != nil && ctx.Err() == nil && !job.IsClass(err, job.HostLeftAlone) {
			e.o.Log.Warn("VM that was left alone could not be destroyed, will be tried again", "job_id", v.Job, "vm_id", v.ID, "err", err)
		}
	}
}

// tryLeftAlone tries again to destroy a VM that is left alone, unless it has been
// forgotten meanwhile and so is the operator's.
func (e *Executor) tryLeftAlone(ctx context.Context, id string) error {
	release, err := e.leaving.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	m, err := e.o.Jobs.Job(ctx, id)
	if err != nil || m.VM == nil || m.VM.State != vm.LeftAlone {
		return err
	}
	err = e.o.Provider.Destroy(ctx, *m.VM)
	if job.IsClass(err, job.HostForeign) {
		err = nil
	}
	if err != nil && !job.IsClass(err, job.HostLeftAlone) {
		return err
	}
	return e.settleVM(ctx, m.ID, err)
}

// destroyLeftAlone is DestroyVM for a VM that is left alone. When it returns, the VM
// is destroyed, or the host has refused.
func (e *Executor) destroyLeftAlone(ctx context.Context, m job.Job) (job.VMInfo, error) {
	if err := e.tryLeftAlone(ctx, m.ID); err != nil {
		return job.VMInfo{}, err
	}
	m, err := e.o.Jobs.Job(ctx, m.ID)
	if err != nil {
		return job.VMInfo{}, err
	}
	return e.oneInfo(ctx, m, nil, false)
}

// ForgetVM stops tracking a VM that is left alone. The VM is not touched; it is no
// longer listed, and the operator's from now on.
func (e *Executor) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	release, err := e.leaving.take(ctx)
	if err != nil {
		return job.VMInfo{}, err
	}
	defer release()
	m, err := e.creator(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if m.VM.State != vm.LeftAlone {
		return job.VMInfo{}, &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("%q is not left alone, so it is not to be forgotten", ref), Remedy: "destroy it: " + string(job.DestroyVM) + " " + m.VM.Name,
		}
	}
	if err := e.o.Provider.ForgetVM(ctx, *m.VM); err != nil {
		return job.VMInfo{}, err
	}
	m, err = e.update(context.WithoutCancel(ctx), m.ID, func(j *job.Job) ([]job.Event, error) {
		j.VM.State = vm.Forgotten
		text := fmt.Sprintf("VM %d is forgotten by request, and stays on the host", j.VM.ID)
		if behind := j.Manifest.Network.Behind(); behind != "" {
			text += "; " + behind
		}
		return []job.Event{{Kind: job.EventWarning, Text: text}}, nil
	})
	if err != nil {
		return job.VMInfo{}, err
	}
	e.o.Log.Warn("VM is forgotten by request, and stays on the host", "job_id", m.ID, "vm_id", m.VM.ID)
	return e.oneInfo(ctx, m, nil, false)
}
