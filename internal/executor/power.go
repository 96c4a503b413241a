package executor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// StartVM starts a persistent VM and returns it when it accepts logins.
func (e *Executor) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.runExclusive(ctx, ref, "started", false, e.o.Fleet.Start)
}

// StopVM shuts a persistent VM down. Jobs in it must have ended.
func (e *Executor) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.runExclusive(ctx, ref, "stopped", true, e.o.Fleet.Stop)
}

// SuspendVM suspends a persistent VM. Jobs in it must have ended.
func (e *Executor) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.runExclusive(ctx, ref, "suspended", true, e.o.Fleet.Suspend)
}

// ResumeVM resumes a suspended persistent VM and returns it when it accepts logins.
func (e *Executor) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return e.runExclusive(ctx, ref, "resumed", false, e.o.Fleet.Resume)
}

// snapshotName is what Proxmox accepts, except for names it reserves.
var snapshotName = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]{0,39}$`)

func checkSnapshot(name string) error {
	if !snapshotName.MatchString(name) || slices.Contains([]string{"current", "pending"}, strings.ToLower(name)) {
		return &job.FieldError{Field: "snapshot", Problem: fmt.Sprintf("%q is not a snapshot's name", name), Remedy: "use letters, digits, - and _, a letter first, at most 40, and not current"}
	}
	return nil
}

// SnapshotVM takes a snapshot of a persistent VM's disk, and of its memory if that is
// set: jobs in it must have ended then, or a revert would run them again.
func (e *Executor) SnapshotVM(ctx context.Context, ref, name string, memory bool) (job.VMInfo, error) {
	if err := checkSnapshot(name); err != nil {
		return job.VMInfo{}, err
	}
	return e.runExclusive(ctx, ref, "snapshotted", memory, func(ctx context.Context, v vm.VM) error {
		return e.o.Fleet.Snapshot(ctx, v, name, memory)
	})
}

// RevertVM reverts a persistent VM to a snapshot and starts it. Jobs in it must have
// ended.
func (e *Executor) RevertVM(ctx context.Context, ref, name string) (job.VMInfo, error) {
	if err := checkSnapshot(name); err != nil {
		return job.VMInfo{}, err
	}
	return e.runExclusive(ctx, ref, "reverted", true, func(ctx context.Context, v vm.VM) error {
		return e.o.Fleet.Revert(ctx, v, name)
	})
}

// runExclusive runs work on a persistent VM. The work goes on if its caller leaves: half
// a revert is worse than none. done names it in one word. Meanwhile other work and new
// jobs are kept out of the VM. If alone is set, the work does not begin while jobs run.
func (e *Executor) runExclusive(ctx context.Context, ref, done string, alone bool, work func(context.Context, vm.VM) error) (job.VMInfo, error) {
	v, finished, err := e.reserve(ctx, ref, done, alone)
	if err != nil {
		return job.VMInfo{}, err
	}
	ended := make(chan error, 1)
	err = e.spawn(func(running context.Context) {
		running = job.WithClient(running, job.ClientFrom(ctx))
		if p, ok := job.PrincipalFrom(ctx); ok {
			running = job.WithPrincipal(running, p)
		}
		err := work(running, v)
		finished()
		ended <- err
	})
	if err != nil {
		finished()
		return job.VMInfo{}, err
	}
	e.o.Log.Info("work on a VM", "vm_id", v.ID, "job_id", v.Job, "work", done)
	select {
	case err := <-ended:
		if err != nil {
			return job.VMInfo{}, err
		}
		return e.VM(ctx, strconv.Itoa(v.ID))
	case <-ctx.Done():
		return job.VMInfo{}, fmt.Errorf("the work on the VM goes on: %w", context.Cause(ctx))
	}
}

// reserve reserves a persistent VM for work on it, until finished is called.
func (e *Executor) reserve(ctx context.Context, ref, done string, alone bool) (v vm.VM, finished func(), err error) {
	d, err := e.access.decide(ctx)
	if err != nil {
		return v, nil, err
	}
	defer d.end()
	v, err = e.openVM(ctx, d, ref)
	if err == nil && alone {
		err = e.idle(ctx, d, v, done)
	}
	if err != nil {
		return v, nil, err
	}
	finished, err = d.begin(ctx, v.Job, done)
	return v, finished, err
}
