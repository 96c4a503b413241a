package executor

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// These are what the fleet needs of the engine; see fleet.Engine.

// Spawn runs work in a goroutine, which outlives the caller and ends with the engine.
func (e *Executor) Spawn(work func(running context.Context)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begin == nil {
		return errors.New("the engine does not run")
	}
	e.begin(work)
	return nil
}

// TellUnwanted tells the other engines of VMs that nobody wants, and has jobs finished whose
// VM that is.
func (e *Executor) TellUnwanted(ctx context.Context) error {
	signal(e.reopened)
	if e.o.Engines == nil {
		return nil
	}
	return e.o.Engines.Tell(ctx, job.Notice{Kind: job.NoticeFree})
}

// EndedBy records who has asked for the destruction of the VM that a job has made.
func (e *Executor) EndedBy(ctx context.Context, id string, by job.Caller) error {
	_, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		j.EndBy(by)
		return nil, nil
	})
	return err
}

// InProgress returns every job that is not Done and does not wait for a slot.
func (e *Executor) InProgress(ctx context.Context) ([]job.Job, error) {
	return e.o.Jobs.InProgress(ctx)
}

// Stored returns a job as it is stored.
func (e *Executor) Stored(ctx context.Context, id string) (job.Job, error) {
	return e.o.Jobs.Job(ctx, id)
}

// Known returns a job or, for the ID of a VM that no job has made, what stands for one: who
// follows VMs by the IDs of jobs goes on doing so.
func (e *Executor) Known(ctx context.Context, id string) (job.Job, error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if !errors.Is(err, job.ErrNotFound) {
		return j, err
	}
	v, noVM := e.o.Fleet.Row(ctx, id)
	if noVM != nil || v.Own == nil {
		return j, err
	}
	return job.MakerOf(v), nil
}

// Events returns all events of a job.
func (e *Executor) Events(ctx context.Context, id string) ([]job.Event, error) {
	return e.o.Jobs.Events(ctx, id, 0)
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

// CheckSelf returns what is wrong with what the engine itself stands on.
func (e *Executor) CheckSelf(ctx context.Context) (wrong []job.Check) {
	fail := func(name, text, remedy string) {
		wrong = append(wrong, job.Check{Name: name, Level: "fail", Text: text, Remedy: remedy})
	}
	if e.o.Spare != nil {
		if err := e.o.Spare(); err != nil {
			fail("state", err.Error(), "running jobs continue; no job is accepted until there is more")
		}
	}
	if _, err := e.o.Queue.WaitingOf(ctx); err != nil && ctx.Err() == nil {
		fail("database", err.Error(), "see that the database runs, has disk left and can be reached")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	n, text := 0, ""
	for _, r := range e.runs {
		if r.fault != nil {
			n, text = n+1, r.fault.text
		}
	}
	if n > 0 {
		fail("engine", fmt.Sprintf("this engine cannot continue %d of its jobs, such as: %s", n, text), "the jobs wait for that, and their VMs work on; see the engine's log")
	}
	return wrong
}
