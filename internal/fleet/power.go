package fleet

import (
	"context"

	"linus/internal/job"
	"linus/internal/vm"
)

// Start starts a VM and returns when it accepts logins, with its address recorded.
func (f *Fleet) Start(ctx context.Context, v vm.VM) error {
	up, err := f.o.Provider.StartVM(ctx, v, silent)
	return f.isUp(ctx, up, err)
}

// Resume resumes a VM that is suspended, as Start starts one.
func (f *Fleet) Resume(ctx context.Context, v vm.VM) error {
	up, err := f.o.Provider.ResumeVM(ctx, v, silent)
	return f.isUp(ctx, up, err)
}

// Revert reverts a VM to a snapshot and starts it, as Start does.
func (f *Fleet) Revert(ctx context.Context, v vm.VM, snapshot string) error {
	up, err := f.o.Provider.RevertVM(ctx, v, snapshot, silent)
	return f.isUp(ctx, up, err)
}

// Stop shuts a VM down.
func (f *Fleet) Stop(ctx context.Context, v vm.VM) error { return f.o.Provider.StopVM(ctx, v) }

// Suspend writes a VM's memory to disk and stops it.
func (f *Fleet) Suspend(ctx context.Context, v vm.VM) error { return f.o.Provider.SuspendVM(ctx, v) }

// Snapshot takes a snapshot of a VM's disk and, if that is set, of its memory.
func (f *Fleet) Snapshot(ctx context.Context, v vm.VM, name string, memory bool) error {
	return f.o.Provider.SnapshotVM(ctx, v, name, memory)
}

func silent(job.Progress) {}

// isUp records the address and host key of a VM that the host has started, unless it failed.
func (f *Fleet) isUp(ctx context.Context, v vm.VM, err error) error {
	if err != nil {
		return err
	}
	return f.Identify(ctx, v)
}
