package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// unwanted has what is destroyed of which was just recorded that nobody wants it: by the fleet
// here, or that of the engine that leads; by its job, if that has not ended.
func (e *Executor) unwanted(ctx context.Context) error {
	e.o.Fleet.DestroySoon()
	return e.TellUnwanted(ctx)
}

// TellUnwanted tells the other engines of VMs that nobody wants.
func (e *Executor) TellUnwanted(ctx context.Context) error {
	signal(e.reopened)
	if e.o.Engines == nil {
		return nil
	}
	return e.o.Engines.Tell(ctx, job.Notice{Kind: job.NoticeFree})
}

// Ender returns who has ended the job that made a VM, or has asked for the VM's destruction.
func (e *Executor) Ender(ctx context.Context, id string) job.Caller {
	j, err := e.o.Jobs.Job(ctx, id)
	if err != nil {
		return job.Caller{}
	}
	return j.Ender()
}

// Destroyed drops the key of a VM that is gone.
func (e *Executor) Destroyed(ctx context.Context, id string) { e.dropKey(ctx, id) }

// Holds reports whether a job has a VM, and for how long it may run.
func (e *Executor) Holds(ctx context.Context, id string, v vm.VM) (held bool, timeout time.Duration, err error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return false, 0, nil
	}
	return !j.Finished() && j.VM != nil && j.VM.Job == v.Job, seconds(j.Manifest.Timeout), err
}

// JobsWait reports whether a client's job waits for a slot.
func (e *Executor) JobsWait() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.queue.empty()
}

// Creating returns the VMs of this engine's jobs that are being made, or are about to be.
func (e *Executor) Creating(ctx context.Context) (all []vm.Making) {
	e.mu.Lock()
	var ids []string
	for id, r := range e.runs {
		if !r.shares {
			ids = append(ids, id)
		}
	}
	e.mu.Unlock()
	for _, id := range ids {
		j, err := e.o.Jobs.Job(ctx, id)
		if err == nil && (j.Status == job.Pending || j.Status == job.Provisioning) && j.Outcome == nil && !j.Claims() {
			all = append(all, vm.Making{ID: id, MemoryMB: job.SizeMB(j.Manifest.Resources.Memory), Begun: j.Status == job.Provisioning})
		}
	}
	return all
}
