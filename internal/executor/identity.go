package executor

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// recordIdentity records the current address and host key of the VM that job id created,
// if the fleet accepts them, and applies change to its row.
func (e *Executor) recordIdentity(ctx context.Context, id string, v vm.VM, change func(*job.Job) ([]job.Event, error)) (j job.Job, err error) {
	err = e.o.Fleet.Accept(ctx, id, v, func(ctx context.Context) (err error) {
		j, err = e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
			j.VM.IP, j.VM.User, j.VM.HostKey, j.VM.Node = v.IP, v.User, v.HostKey, v.Node
			return change(j)
		})
		return err
	})
	return j, err
}

// pinned returns an error if a VM is identified only by its address. It gets no secrets
// then: whatever answers there would receive them.
func pinned(v vm.VM) error {
	if v.HostKey != "" {
		return nil
	}
	return &job.FieldError{
		Field:   "manifest.secrets",
		Problem: fmt.Sprintf("VM %d (%s) gets none: its SSH host key was not read through the hypervisor, and whatever answers at %s would have them", v.ID, v.Name, v.IP),
		Remedy:  "use a template whose guest agent responds (" + string(job.BuildTemplate) + " makes one), or run the job without secrets",
	}
}
