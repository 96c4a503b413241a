package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// restored is the way for checkpoints: a VM is restored from the memory of a similar one and does
// not boot. If that fails, the VM boots, unless it must be restored.
func (f *Fleet) restored(ctx context.Context, o *makeRequest) (v vm.VM, made bool, err error) {
	must := o.start == job.StartRestore
	if o.start == job.StartCold {
		return v, false, nil
	}
	from, err := f.restorable(ctx, o.planned, must)
	if err != nil {
		return v, false, err
	}
	why, remedy := "can be used", string(job.BuildCheckpoint)+" makes one; or leave start out, and the VM boots if there is none"
	if from != nil {
		restore := *o
		restore.planned.From, restore.from, restore.spec.Checkpoint = from.Job, from, from.ID
		v, failed := f.makeOne(ctx, restore)
		if failed == nil {
			f.usedCheckpoint(ctx, from.Job)
			return v, true, nil
		}
		if err := f.bootInstead(ctx, o, *from, failed); err != nil {
			return v, false, err
		}
		why, remedy = fmt.Sprintf("could be used: %s: %v", from.Name, failed), "leave start out, and the VM boots if it cannot be restored"
	}
	if must {
		err = &job.FieldError{
			Field: "manifest.start", Problem: fmt.Sprintf("no checkpoint of template %s with %s %s", o.planned.Template, sizeText(o.planned.Resources), why),
			Remedy: remedy, Fault: job.FaultState,
		}
	}
	return v, false, err
}

func sizeText(r vm.Resources) string {
	return fmt.Sprintf("%d cores, %s of memory and a disk of %s", r.CPU, r.Memory, r.Disk)
}

// restorable returns the checkpoint from which a VM may be restored, or has begun to be: the most
// recently used one, or nil if there is none. If must is set, it also looks for checkpoints that
// another engine made since the last look.
func (f *Fleet) restorable(ctx context.Context, v vm.VM, must bool) (*vm.VM, error) {
	switch {
	case v.State == vm.Intended && v.From != "":
		from, err := f.o.Store.VM(ctx, v.From)
		if errors.Is(err, job.ErrNotFound) { // the new VM may exist nevertheless
			from, err = vm.VM{Job: v.From, Node: v.Node}, nil
		}
		return &from, err
	case !v.State.Planned() || v.Template == "" || v.Checkpoint != nil:
		return nil, nil
	}
	saved, err := f.savedVMs(ctx)
	if err != nil {
		return nil, err
	}
	best, err := f.bestOf(ctx, saved, v)
	if err != nil || best != nil || !must {
		return best, err
	}
	if saved, err = f.lookForSaved(ctx); err != nil {
		return nil, err
	}
	return f.bestOf(ctx, saved, v)
}

// bestOf returns the checkpoint from which a VM is to be restored, or nil.
func (f *Fleet) bestOf(ctx context.Context, saved []vm.VM, v vm.VM) (best *vm.VM, err error) {
	if len(saved) == 0 {
		return nil, nil
	}
	cordoned, err := f.o.Store.Cordons(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range saved {
		if like(c.Made, v.Made) && (v.Node == "" || v.Node == c.Node) && !slices.Contains(cordoned, c.Node) && (best == nil || c.Checkpoint.UsedAt.After(best.Checkpoint.UsedAt)) {
			best = &c
		}
	}
	return best, nil
}

// like reports whether two VMs are made from the same template, in the same size.
func like(a, b vm.Made) bool {
	return a.Template == b.Template && a.Resources.CPU == b.Resources.CPU &&
		job.SameSize(a.Resources.Memory, b.Resources.Memory) && job.SameSize(a.Resources.Disk, b.Resources.Disk)
}

// bootInstead removes what is left of a VM that could not be restored from a checkpoint, so that it
// can boot. It returns the error if something prevents that.
func (f *Fleet) bootInstead(ctx context.Context, o *makeRequest, from vm.VM, failed error) error {
	var full *job.NoRoomError
	switch {
	case errors.As(failed, &full): // another node may take it
		return nil
	case ctx.Err() != nil || errors.Is(failed, context.Canceled) || job.IsEngineFault(failed) || job.IsClass(failed, job.HostFenced) || job.IsClass(failed, job.HostExists):
		return failed
	}
	if job.IsClass(failed, job.HostUnfit) {
		f.unfit(ctx, from, failed)
	}
	if _, err := f.removeAttempt(ctx, *o, o.planned.Job); err != nil {
		return errors.Join(failed, err)
	}
	text := fmt.Sprintf("the VM boots: it could not be restored from checkpoint %s: %v", from.Name, failed)
	v, err := o.recorder.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
		if v.From = ""; v.State == vm.Reserved {
			v.State = vm.Intended // on the node it already has
		}
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: text}}, nil
	})
	o.planned = v
	return err
}
