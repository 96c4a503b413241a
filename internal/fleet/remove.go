package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// Remove destroys a VM; nil: it is gone. If its ID was never learned, or belongs to another VM now,
// the VM is searched for by its marker. removed reports whether there was one.
func (f *Fleet) Remove(ctx context.Context, v vm.VM) (removed bool, err error) {
	err = f.o.Provider.Destroy(ctx, v)
	if !job.IsClass(err, job.HostForeign) && (err != nil || v.ID != 0) {
		return err == nil, err
	}
	vms, err := f.o.Provider.List(ctx)
	if err != nil {
		return false, err
	}
	for _, there := range vms {
		if there.Job != v.Job {
			continue
		}
		if err := f.found(ctx, there); err != nil {
			return removed, err
		}
		there.Name, there.HostName = v.Name, v.HostName // the host leaves a VM with another name alone
		if err := f.o.Provider.Destroy(ctx, there); err != nil && !job.IsClass(err, job.HostForeign) {
			return removed, err
		}
		removed = true
	}
	return removed, nil
}

// found records the ID under which the host has a VM.
func (f *Fleet) found(ctx context.Context, there vm.VM) error {
	return f.set(ctx, there.Job, func(v *vm.VM) { v.ID, v.Node = there.ID, there.Node })
}

// sweepEach periodically compares the host with the store, if this engine leads, and drops the keys
// of VMs that are gone.
func (f *Fleet) sweepEach(ctx context.Context) {
	for {
		if job.Leads(ctx, f.o.Engines, f.o.Log) {
			f.tendVolumes(ctx)
			f.tendSaved(ctx)
			f.tendMemory(ctx)
		}
		if any, err := f.o.Store.AnyVM(ctx); err == nil && any && job.Leads(ctx, f.o.Engines, f.o.Log) {
			if leaked := f.Sweep(ctx); leaked >= 0 {
				f.o.Changes.Add(job.Leaked(leaked))
			}
		}
		f.dropKeys(ctx)
		if sleep.For(ctx, f.o.SweepInterval) != nil {
			return
		}
	}
}

// Sweep compares the host with the store and destroys VMs that were destroyed before but exist
// again under another ID. Such a VM must have the marker and name, which the host proves again. If
// it has the same ID, which was seen free, somebody has restored it, and it is left alone. Unknown
// VMs are left alone as well: this store may not be the only one with this marker, and the host's
// lease ends such VMs. VMs that were left alone are checked again. leaked is how many VMs exist
// that should not; -1: the host was not seen completely.
func (f *Fleet) Sweep(ctx context.Context) (leaked int) {
	defer f.lookAtLeftAlone(ctx)
	vms, err := f.o.Provider.List(ctx)
	if err != nil {
		if ctx.Err() == nil {
			f.o.Log.Warn("list VMs on the host failed", "err", err)
		}
		leaked = -1
	}
	for _, there := range vms {
		unwanted, err := f.reap(ctx, there)
		if err != nil {
			return -1
		}
		if unwanted && leaked >= 0 {
			leaked++
		}
	}
	if noteErr := f.noteTurned(ctx, vms, err == nil); noteErr != nil && ctx.Err() == nil {
		f.o.Log.Warn("that VMs were turned on or off from outside linus could not be recorded yet", "err", noteErr)
	}
	return leaked
}

// noteTurned records which VMs that stay were turned off or on by somebody else: usage counts while
// they run. The host is asked again for each, as linus may have worked on it since the list was
// made; whole says that the list is complete.
func (f *Fleet) noteTurned(ctx context.Context, there []vm.VM, whole bool) error {
	seen := map[string]vm.Status{}
	for _, v := range there {
		seen[v.Job] = v.Status
	}
	rows, err := f.o.Store.VMs(ctx)
	for _, v := range rows {
		status, listed := seen[v.Job]
		if !listed && whole {
			status = vm.Gone
		}
		if turned(v, status) && err == nil {
			err = f.noteStatus(ctx, v.Job, f.vmStatus(ctx, v))
		}
		if status == vm.Running && f.idleSuspender.seen(v) && f.vmStatus(ctx, v) == vm.Running { // resumed on the host: a use
			f.background.Go(func() {
				if _, done, err := f.use(ctx, v, silent); err == nil { // the VM may have another address
					done()
				}
			})
		}
	}
	return err
}

// turned reports whether a VM that stays is off although it was recorded as on, or the reverse. A VM
// that is suspended because it is idle does not count: an engine can end before the suspension is done.
func turned(v vm.VM, seen vm.Status) bool {
	on := v
	on.Off = ""
	return v.Stays() && !v.BeingMade() && on.Counts() && (seen == vm.Running && !v.Counts() || seen.Down() && v.Counts())
}

func (f *Fleet) noteStatus(ctx context.Context, id string, status vm.Status) error {
	d, err := f.access.decide(ctx)
	if err != nil {
		return err
	}
	defer d.end()
	if work, err := f.access.workOn(ctx, id); err != nil || work != "" {
		return err // the work itself records how it leaves the VM
	}
	return f.set(ctx, id, func(v *vm.VM) {
		switch {
		case !turned(*v, status):
		case status == vm.Running:
			v.Off, v.UsedAt = "", now()
		default:
			v.Off = status
		}
	})
}

// reap destroys a VM on the host if it is unwanted, and reports whether it is. An error ends the sweep.
func (f *Fleet) reap(ctx context.Context, there vm.VM) (unwanted bool, err error) {
	log := f.o.Log.With("vm_id", there.ID, "node", there.Node, "job_id", there.Job)
	v, err := f.o.Store.VM(ctx, there.Job)
	switch {
	case errors.Is(err, job.ErrNotFound):
		log.Warn("VM with our mark, but of no job known here: left alone")
		return true, nil
	case err != nil:
		return false, err
	case v.State != vm.Destroyed:
		if f.Spread() && v.ID == there.ID && v.Node != "" && v.Node != there.Node {
			if _, err := f.Moved(ctx, v.Job, there.Node); err != nil && ctx.Err() == nil {
				log.Warn("record of a VM's node failed", "err", err)
			}
		}
		return false, nil // its job destroys or keeps it
	case there.Name != v.OnHost():
		log.Warn("VM with a job's mark, but another name: left alone")
		return true, nil
	case there.ID == v.ID:
		status, err := f.o.Provider.Status(ctx, there)
		if err != nil || status == vm.Gone {
			return false, nil //nolint:nilerr // it went meanwhile, or will be seen the next time
		}
		log.Warn("destroyed VM is back on the host, and linus did not put it there: left alone")
		return true, nil
	}
	text := fmt.Sprintf("VM %d was found after the job's end and is destroyed", there.ID)
	if err = f.o.Provider.Destroy(ctx, there); err != nil {
		if ctx.Err() != nil {
			return true, err
		}
		if job.IsClass(err, job.HostLeftAlone) {
			err = errors.Join(f.found(ctx, there), f.Settle(ctx, there.Job, err))
			log.Warn("VM found after its job's end is left alone", "err", err)
			return true, nil
		}
		text = fmt.Sprintf("VM %d was found after the job's end and could not be destroyed, will be tried again: %v", there.ID, err)
	}
	log.Warn("VM found after its job's end", "err", err)
	if err := f.Tell(ctx, there.Job, []job.Event{{Kind: job.EventWarning, Text: text}}); err != nil && ctx.Err() == nil {
		log.Error("record warning failed", "err", err)
	}
	return true, nil
}
