package fleet

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Engine is what the fleet needs of the engine that runs jobs in its VMs.
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
	// Creating returns the VMs that this engine's jobs make, or are about to.
	Creating(ctx context.Context) []vm.Making
	// LoginKey returns the public key that is to log in to a VM, the same one each time; empty: the
	// provider's.
	LoginKey(id string) (string, error)
	// TellUnwanted tells the engine that leads of VMs that nobody wants any more.
	TellUnwanted(ctx context.Context) error
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
