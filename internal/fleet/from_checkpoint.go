package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// restored is the source of checkpoints: a new VM that goes on from the memory of one like it,
// and does not boot.
func (f *Fleet) restored(ctx context.Context, a *acquisition) (has bool, err error) {
	j := a.job
	if j.Manifest.Start == job.StartCold {
		return false, nil
	}
	planned, err := f.pinned(ctx, j)
	if err != nil {
		return false, err
	}
	why, remedy := "can be used", string(job.BuildCheckpoint)+" makes one; or leave start out, and the VM boots if there is none"
	from, err := f.restorable(ctx, planned, j.Manifest.Start == job.StartRestore)
	switch {
	case err != nil:
		return false, err
	case from != nil:
		var failed error
		o, err := f.orderOf(ctx, a)
		if err == nil {
			has, failed, err = f.restore(ctx, o, *from)
		}
		if failed != nil {
			why, remedy = fmt.Sprintf("could be used: %s: %v", from.Name, failed), "leave start out, and the VM boots if it cannot be restored"
		}
		if err != nil || has {
			return has, f.unnamed(ctx, j.Principal, o.planned.Name, err)
		}
	}
	if j.Manifest.Start == job.StartRestore {
		return false, &job.FieldError{
			Field: "manifest.start", Problem: fmt.Sprintf("no checkpoint of template %s with %s %s", j.Manifest.VMTemplate, sizeText(j.Manifest.Resources), why),
			Remedy: remedy, Fault: job.FaultState,
		}
	}
	return false, nil
}

func sizeText(r vm.Resources) string {
	return fmt.Sprintf("%d cores, %s of memory and a disk of %s", r.CPU, r.Memory, r.Disk)
}

// restorable returns the checkpoint from which a VM may go on, or has begun to: of several the
// one that was used last. Nil: there is none. Where one is a must, those are looked at, too, that
// another engine has made since the last look.
func (f *Fleet) restorable(ctx context.Context, v vm.VM, must bool) (*vm.VM, error) {
	switch {
	case v.State == vm.Intended && v.From != "":
		from, err := f.o.Store.VM(ctx, v.From)
		if errors.Is(err, job.ErrNotFound) { // its VM may be there nevertheless
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

// bestOf returns the one of the checkpoints from which a VM is to go on, or nil.
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

// like reports whether two VMs are made of the same template, in the same size.
func like(a, b vm.Made) bool {
	return a.Template == b.Template && a.Resources.CPU == b.Resources.CPU &&
		job.SameSize(a.Resources.Memory, b.Resources.Memory) && job.SameSize(a.Resources.Disk, b.Resources.Disk)
}

// restore makes a VM that goes on from a checkpoint. What fails is removed, and has is false:
// the VM is to boot. failed is why, and err of what hinders that, too.
func (f *Fleet) restore(ctx context.Context, o order, from vm.VM) (has bool, failed, err error) {
	o.planned.From, o.from, o.spec.Checkpoint = from.Job, &from, from.ID
	_, _, err = f.make(ctx, o)
	failed = err
	var full *job.NoRoomError
	switch {
	case err == nil:
		f.usedCheckpoint(ctx, from.Job)
		return true, nil, nil
	case errors.As(err, &full): // another node may take it
		return false, failed, nil
	case ctx.Err() != nil || errors.Is(err, context.Canceled) || job.Own(err) || job.IsClass(err, job.HostFenced) || job.IsClass(err, job.HostExists):
		return false, failed, err
	}
	if job.IsClass(err, job.HostUnfit) {
		f.unfit(ctx, from, err)
	}
	host, ofHost := errors.AsType[*job.HostError](err)
	if _, clearErr := f.removeAttempt(ctx, o, o.planned.Job, ofHost && host.NoVM); clearErr != nil {
		return false, failed, errors.Join(err, clearErr)
	}
	text := fmt.Sprintf("the VM boots: it could not be restored from checkpoint %s: %v", from.Name, err)
	_, err = o.book.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
		v.From = ""
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: text}}, nil
	})
	return false, failed, err
}
