package fleet

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Engine is what the fleet needs of the engine that runs jobs in its VMs, and makes those of
// pools.
type Engine interface {
	// Leads reports whether this engine, of those that share the store, tends the pools.
	Leads(ctx context.Context) bool
	// JobsWait reports whether a client's job waits for a slot.
	JobsWait() bool
	// Ender returns who has asked for a VM's destruction, or for whom it is done; Destroyed
	// drops what the engine has for a VM that is gone.
	Ender(ctx context.Context, id string) job.Caller
	Destroyed(ctx context.Context, id string)
	// Holds reports whether a job has a VM, and for how long it may run.
	Holds(ctx context.Context, id string, v vm.VM) (held bool, timeout time.Duration, err error)
	// Creating returns the VMs that this engine makes, or is about to: for jobs, too.
	Creating(ctx context.Context) []vm.Making
	// Making returns the pools' VMs that this engine works on.
	Making() []vm.Making

	// Reserve stores a VM that is to be made, of which nothing can exist yet.
	Reserve(ctx context.Context, m job.Manifest, of vm.Member) (id string, err error)
	// Make begins to make a VM that is stored, unless another engine does.
	Make(ctx context.Context, id string)
	// Unmake ends the making of a VM, and has what there is of it destroyed.
	Unmake(ctx context.Context, id string) error
}

// Guest is what pools need of their VMs. A job.Job stands for the VM that it has made.
type Guest interface {
	// Ping checks that a VM responds over SSH; Warm prepares it for the first job there.
	Ping(ctx context.Context, j job.Job) error
	Warm(ctx context.Context, j job.Job) error
	// Forget closes the connections to a VM.
	Forget(j job.Job)
}

// maker stands for a VM where a Guest is asked about it.
func maker(v vm.VM) job.Job { return job.Job{ID: v.Job, VM: &v} }
