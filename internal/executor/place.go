package executor

import (
	"context"
	"errors"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// fits returns an error if it is known that no node can ever take the VM of a
// submission.
func (e *Executor) fits(ctx context.Context, m job.Manifest) error {
	if m.VM != "" {
		return nil
	}
	spec, err := e.vmSpecOf(job.Job{Manifest: m}, vm.VM{})
	if err != nil {
		return err
	}
	return neverFits(e.o.Fleet.Fits(ctx, spec))
}

// neverFits returns what is wrong with a manifest whose VM no node can take, however long
// it waits; other errors as they are.
func neverFits(err error) error {
	var none *job.NoRoomError
	if !errors.As(err, &none) || !none.Never() {
		return err
	}
	wrong := &job.FieldError{Field: "manifest", Problem: none.Error(), Remedy: "ask for what a node has, or have it set up on one"}
	only := func(reason job.RefusalReason) bool {
		return !slices.ContainsFunc(none.Refusals, func(r job.Refusal) bool { return r.Reason != reason })
	}
	switch {
	case only(job.RefusedMemory):
		wrong.Field, wrong.Remedy = "manifest.resources.memory", "ask for less memory"
	case only(job.RefusedTemplate):
		wrong.Field, wrong.Remedy = "manifest.vmTemplate", "use a template that a node has, or build this one"
	}
	return wrong
}

// relocate records that the job's VM is on another node, and tells of it in the rows of the
// job and of the one that made the VM.
func (e *Executor) relocate(ctx context.Context, j job.Job, node string) {
	e.o.Log.Info("the VM is on another node", "job_id", j.ID, "vm_id", j.VM.ID, "node", node, "before", j.VM.Node)
	told, err := e.o.Fleet.Moved(ctx, j.VM.Job, node)
	if err == nil && j.VM.Job != j.ID && len(told) > 0 {
		_, err = e.update(ctx, j.ID, recordEvents(told...))
	}
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("record of a VM's node failed", "job_id", j.ID, "err", err)
	}
}
