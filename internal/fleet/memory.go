package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// A VM's memory on its host's disk, of a snapshot or a suspension, counts as disk of the VM's
// owner. The row records it before the host is asked to store it, and until the host was seen
// without it: if the engine dies in between, the next one keeps counting it.

// hostGoesOn is how long a host may keep storing memory for an engine that was killed.
const hostGoesOn = time.Hour

// storing stores a VM's memory with a snapshot or, without a name, as that of a suspended VM. It
// returns a *job.FieldError if the VM's owner may not have so much disk.
func (f *Fleet) storing(ctx context.Context, v vm.VM, snapshot string, store func() error) error {
	if err := f.noteMemory(ctx, v.Job, snapshot); err != nil {
		return err
	}
	err := store()
	if err != nil { // an engine that ends cannot check, and leaves that to the next one
		f.seeMemory(ctx, v.Job, now())
	}
	return err
}

// noteMemory counts the memory that a VM is to have on disk, if that is allowed and it does not
// count already.
func (f *Fleet) noteMemory(ctx context.Context, id, snapshot string) error {
	end, err := f.Decide(ctx)
	if err != nil {
		return err
	}
	defer end()
	v, err := f.o.Store.VM(ctx, id)
	if err != nil {
		return err
	}
	what, instead := "snapshot", "take it without memory"
	if snapshot == "" {
		what, instead = "suspension", "stop it instead"
	}
	mb, p := job.StateMB(v.Resources), job.Principal{Name: v.Principal} // the limits of another's token, such as an admin's, do not apply
	if caller, ok := job.PrincipalFrom(ctx); ok && caller.Owner() == v.Principal {
		p = caller
	}
	if v.Stored(snapshot) {
		p.Limits = job.Limits{}
	} else {
		maker, err := f.Known(ctx, id)
		if err != nil {
			return err
		}
		s := job.Submission{Client: maker.Client, Principal: p, Manifest: job.DiskAlone(mb)}
		if err := f.Admit(ctx, s, s.Manifest); err != nil {
			return tooMuchMemory(err, instead)
		}
	}
	_, err = f.o.Store.GrowVM(ctx, v, what, mb, p.Limits, quietly(func(v *vm.VM) {
		v.Memories = append(withoutMemory(*v, func(m vm.Memory) bool { return m.Snapshot == snapshot }), vm.Memory{Snapshot: snapshot, At: now()})
	}))
	return tooMuchMemory(err, instead)
}

// tooMuchMemory replaces the remedy of a limit error by what helps when memory is to be stored.
func tooMuchMemory(err error, instead string) error {
	if over, is := errors.AsType[*job.FieldError](err); is && over.Fault == job.FaultLimit {
		told := *over
		told.Field = "vm"
		told.Remedy = instead + "; or make room: resume a suspended VM, remove a snapshot with memory or what else takes disk, or destroy a VM"
		return &told
	}
	return err
}

func withoutMemory(v vm.VM, gone func(vm.Memory) bool) []vm.Memory {
	return slices.DeleteFunc(slices.Clone(v.Memories), gone)
}

// dropMemory stops counting memory of a VM.
func (f *Fleet) dropMemory(ctx context.Context, id string, gone func(vm.Memory) bool) error {
	return f.set(ctx, id, func(v *vm.VM) { v.Memories = withoutMemory(*v, gone) })
}

// seeMemory stops counting memory of a VM that was noted before a time and is not on its host.
// Memory that the host does not tell about keeps counting.
func (f *Fleet) seeMemory(ctx context.Context, id string, before time.Time) {
	v, err := f.o.Store.VM(ctx, id)
	var gone []vm.Memory
	if err == nil {
		gone, err = f.goneMemory(ctx, v, before)
	}
	if err == nil && len(gone) > 0 { // memory recorded again meanwhile has another time
		err = f.dropMemory(ctx, id, func(m vm.Memory) bool { return slices.Contains(gone, m) })
	}
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("look for a VM's memory on disk failed", "job_id", id, "vm_id", v.ID, "err", err)
	}
}

func (f *Fleet) goneMemory(ctx context.Context, v vm.VM, before time.Time) (gone []vm.Memory, err error) {
	var snapshots []job.Snapshot
	for _, m := range v.Memories {
		switch {
		case m.At.After(before):
			continue
		case m.Snapshot == "":
			status, err := f.o.Provider.Status(ctx, v)
			if err != nil {
				return nil, err
			}
			if status == vm.Running || status == vm.Stopped {
				gone = append(gone, m)
			}
			continue
		case snapshots == nil:
			if snapshots, err = f.o.Provider.Snapshots(ctx, v); err != nil {
				return nil, fmt.Errorf("snapshots: %w", err)
			}
		}
		if !slices.ContainsFunc(snapshots, func(s job.Snapshot) bool { return s.Name == m.Snapshot && (s.Memory || s.Incomplete) }) {
			gone = append(gone, m)
		}
	}
	return gone, nil
}

// tendMemory stops counting memory that somebody has removed on the host, or that a killed engine
// did not get to store.
func (f *Fleet) tendMemory(ctx context.Context) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("look for VMs' memory on disk failed", "err", err)
	}
	before := now().Add(-hostGoesOn)
	for _, v := range vms {
		if v.Stays() && len(v.Memories) > 0 {
			f.seeMemory(ctx, v.Job, before)
		}
	}
}
