package fleet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// StartVM starts a persistent VM and returns it when it accepts logins and has its volumes.
func (f *Fleet) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return f.runExclusive(ctx, ref, "started", false, func(ctx context.Context, v vm.VM) error {
		if err := f.up(f.o.Provider.StartVM)(ctx, v); err != nil {
			return err
		}
		return f.remount(ctx, v)
	})
}

// StopVM shuts a persistent VM down. Jobs in it must have ended.
func (f *Fleet) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return f.runExclusive(ctx, ref, "stopped", true, f.o.Provider.StopVM)
}

// SuspendVM suspends a persistent VM. Jobs in it must have ended.
func (f *Fleet) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return f.runExclusive(ctx, ref, "suspended", true, func(ctx context.Context, v vm.VM) error {
		return f.storing(ctx, v, "", func() error { return f.o.Provider.SuspendVM(ctx, v) })
	})
}

// ResumeVM resumes a suspended persistent VM and returns it when it accepts logins.
func (f *Fleet) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return f.runExclusive(ctx, ref, "resumed", false, f.up(f.o.Provider.ResumeVM))
}

// snapshotName matches the names that Proxmox accepts, apart from those it reserves.
var snapshotName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]{1,39}$`)

func checkSnapshot(name string) error {
	if !snapshotName.MatchString(name) || slices.Contains([]string{"current", "pending", forkSnapshot}, strings.ToLower(name)) {
		return &job.FieldError{Field: "snapshot", Problem: fmt.Sprintf("%q is not a snapshot's name", name), Remedy: "use letters, digits, - and _, a letter first, 2 to 40, and not current or linus-fork"}
	}
	return nil
}

// SnapshotVM takes a snapshot of a persistent VM's disk, and of its memory if memory is set: then
// jobs in it must have ended, or a revert would run them again.
func (f *Fleet) SnapshotVM(ctx context.Context, ref, name string, memory bool) (job.VMInfo, error) {
	if err := checkSnapshot(name); err != nil {
		return job.VMInfo{}, err
	}
	return f.runExclusive(ctx, ref, "snapshotted", memory, func(ctx context.Context, v vm.VM) error {
		take := func() error { return f.o.Provider.SnapshotVM(ctx, v, name, memory) }
		if memory {
			return f.storing(ctx, v, name, take)
		}
		return take()
	})
}

// RevertVM reverts a persistent VM to a snapshot and starts it. Jobs in it must have ended.
func (f *Fleet) RevertVM(ctx context.Context, ref, name string) (job.VMInfo, error) {
	if err := checkSnapshot(name); err != nil {
		return job.VMInfo{}, err
	}
	return f.runExclusive(ctx, ref, "reverted", true, f.up(func(ctx context.Context, v vm.VM, tell func(job.Progress)) (vm.VM, error) {
		return f.o.Provider.RevertVM(ctx, v, name, tell)
	}))
}

// ListSnapshots returns the snapshots of a persistent VM.
func (f *Fleet) ListSnapshots(ctx context.Context, ref string) ([]job.Snapshot, error) {
	v, err := f.findOpen(ctx, ref)
	if err != nil {
		return nil, err
	}
	return f.o.Provider.Snapshots(ctx, v)
}

// DeleteSnapshot removes a snapshot of a persistent VM, which may be running.
func (f *Fleet) DeleteSnapshot(ctx context.Context, ref, name string) (job.VMInfo, error) {
	if err := checkSnapshot(name); err != nil {
		return job.VMInfo{}, err
	}
	return f.runExclusive(ctx, ref, "rid of a snapshot", false, func(ctx context.Context, v vm.VM) error {
		err := f.o.Provider.DeleteSnapshot(ctx, v, name)
		switch {
		case !v.Stored(name):
		case err == nil:
			err = f.dropMemory(ctx, v.Job, func(m vm.Memory) bool { return m.Snapshot == name })
		default:
			f.seeMemory(ctx, v.Job, now())
		}
		return err
	})
}

// runExclusive runs work on a persistent VM, and keeps other work and new jobs out of it. The work
// continues if its caller leaves: half a revert is worse than none. done names the work in one
// word. If alone is set, the work does not begin while jobs run.
func (f *Fleet) runExclusive(ctx context.Context, ref, done string, alone bool, work func(context.Context, vm.VM) error) (job.VMInfo, error) {
	v, err := f.exclusive(ctx, ref, done, alone, work)
	if err != nil {
		return job.VMInfo{}, err
	}
	return f.VM(ctx, strconv.Itoa(v.ID))
}

// exclusive is runExclusive, and returns the VM as it was before the work.
func (f *Fleet) exclusive(ctx context.Context, ref, done string, alone bool, work func(context.Context, vm.VM) error) (vm.VM, error) {
	v, finished, err := f.workOn(ctx, ref, done, alone)
	if err != nil {
		return v, err
	}
	ended, said := make(chan error, 1), make(chan job.Progress, 1)
	err = f.Spawn(func(running context.Context) {
		running = job.WithListener(job.WithClient(running, job.ClientFrom(ctx)), func(p job.Progress) {
			select {
			case said <- p:
			default: // the caller has left
			}
		})
		if p, ok := job.PrincipalFrom(ctx); ok {
			running = job.WithPrincipal(running, p)
		}
		err := work(running, v)
		if err == nil {
			err = f.worked(running, v, done)
		}
		finished()
		ended <- err
	})
	if err != nil {
		finished()
		return v, err
	}
	f.o.Log.Info("work on a VM", "vm_id", v.ID, "job_id", v.Job, "work", done)
	for {
		select {
		case err := <-ended:
			return v, err
		case p := <-said:
			listener(ctx)(p)
		case <-ctx.Done():
			return v, fmt.Errorf("the operation on the VM continues: %w", context.Cause(ctx))
		}
	}
}

// workOn reserves a persistent VM for work on it, until finished is called.
func (f *Fleet) workOn(ctx context.Context, ref, done string, alone bool) (v vm.VM, finished func(), err error) {
	d, err := f.access.decide(ctx)
	if err != nil {
		return v, nil, err
	}
	defer d.end()
	v, err = f.openVM(ctx, ref)
	if err == nil {
		err = f.checkNotForking(v)
	}
	if err == nil && alone {
		err = f.idle(ctx, v, done)
	}
	if err != nil {
		return v, nil, err
	}
	finished, err = d.begin(ctx, v.Job, done)
	return v, finished, err
}

// leaves maps work that turns a VM on or off to how it leaves the VM.
var leaves = map[string]vm.Status{"started": "", "resumed": "", "reverted": "", "stopped": vm.Stopped, "suspended": vm.Suspended}

// worked records how work has left a VM. A VM that naps is then no longer suspended because it was
// idle, but because somebody asked for it.
func (f *Fleet) worked(ctx context.Context, v vm.VM, done string) error {
	off, turned := leaves[done]
	if off != "" {
		f.o.Guest.Leave(v)
	}
	naps := v.Naps() || !v.SuspendedAt.IsZero()
	switch {
	case !turned && naps:
		return f.mark(ctx, v)
	case !turned || !naps && v.Off == off:
		return nil
	}
	return f.set(ctx, v.Job, func(v *vm.VM) {
		v.Off = off
		if off == "" && v.AtEnd == vm.EndSuspend && over(*v) { // it was suspended because its time was over, and no engine got to record that
			v.ExpiresAt = time.Time{}
		}
		if naps {
			v.SuspendedAt, v.UsedAt = time.Time{}, now()
		}
	})
}

// Runs returns an error if a VM cannot be used because somebody had it stopped or suspended, and
// the host does not say that it runs all the same. It returns nil for a VM that is not found, or is
// suspended because it was idle.
func (f *Fleet) Runs(ctx context.Context, ref string) error {
	v, err := f.Find(ctx, ref)
	if err != nil {
		return nil //nolint:nilerr // who enters it says so
	}
	return f.runs(ctx, v)
}

func (f *Fleet) runs(ctx context.Context, v vm.VM) error {
	if v.Off == "" {
		return nil
	}
	status, err := f.o.Provider.Status(ctx, v)
	if err != nil {
		status = v.Off
	}
	return job.NotRunning(v, status)
}

// up wraps work that leaves a VM running: its address and host key are recorded afterwards.
func (f *Fleet) up(start func(context.Context, vm.VM, func(job.Progress)) (vm.VM, error)) func(context.Context, vm.VM) error {
	return func(ctx context.Context, v vm.VM) error {
		there, err := start(ctx, v, silent)
		if err == nil && v.Stored("") {
			err = f.dropMemory(ctx, v.Job, func(m vm.Memory) bool { return m.Snapshot == "" })
		}
		if err != nil {
			return err
		}
		return f.Identify(ctx, there)
	}
}

func silent(job.Progress) {}

// listener returns the function that gets the steps of a call.
func listener(ctx context.Context) func(job.Progress) {
	if tell := job.Listener(ctx); tell != nil {
		return tell
	}
	return silent
}
