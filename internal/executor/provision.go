package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// warmPatience bounds how long a new VM is prepared for its task in advance. Push goes
// on from there.
const warmPatience = 10 * time.Second

// provision gets the job a VM, and prepares that for its task.
func (e *Executor) provision(ctx context.Context, r *run, j job.Job) error {
	if err := e.acquire(ctx, r, j); err != nil {
		return err
	}
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err != nil || j.Kind == job.KindVM || !j.StartedAt.IsZero() {
		return err
	}
	if pinned(*j.VM) != nil {
		return nil // push says whether the job may go there at all
	}
	if !j.Shares() && j.VM.Source == vm.Cold {
		book{e, r}.Tell(ctx, job.Progress{Step: "connect", Text: "connecting to the VM"})
	}
	timed, end := context.WithTimeout(ctx, warmPatience)
	defer end()
	if err := e.o.Guest.Warm(timed, j); err != nil {
		e.o.Log.Debug("the VM is not prepared in advance", "job_id", r.id, "err", err)
	}
	return nil
}

// source is where a job may get a VM. has: the job has one; else the next source is asked,
// with the job as it is then.
type source func(e *Executor, ctx context.Context, r *run, j job.Job) (_ job.Job, has bool, err error)

// sources are asked in this order: the VM that the job has already, the one that it names, a
// pool's, a new one. Each may be asked again after it was interrupted at any instant.
var sources = []source{(*Executor).holding, (*Executor).named, (*Executor).pooled, (*Executor).made}

// acquire gets the job a VM.
func (e *Executor) acquire(ctx context.Context, r *run, j job.Job) (err error) {
	for _, from := range sources {
		var has bool
		if j, has, err = from(e, ctx, r, j); err != nil || has {
			return err
		}
	}
	return errNoSource
}

// errNoSource is never seen: the last source makes a VM, or fails.
var errNoSource = errors.New("no source has a VM for this job")

// holding is the source of what the job has already, from an interrupted run: a VM of its own,
// one that it shares, or one of a pool in which its task has begun.
func (e *Executor) holding(_ context.Context, _ *run, j job.Job) (job.Job, bool, error) {
	has := j.VM != nil && (j.Shares() || j.VM.Job == j.ID && j.VM.State == vm.Created || j.Claims() && !j.StartedAt.IsZero())
	return j, has, nil
}
