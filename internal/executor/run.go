package executor

import (
	"context"
	"sync"

	"linus/internal/job"
	"linus/internal/secret"
)

// run is one job being worked on.
type run struct {
	id       string
	cancel   context.CancelCauseFunc
	changed  chan struct{} // a report arrived
	reported chan struct{} // one of the task's end
	adopted  bool          // another process, or an earlier try, was here before
	shares   bool          // it runs in another job's VM
	input    line          // who sends to its task's stdin
	sent     sync.RWMutex  // held for reading while output that was sent is taken

	// Executor.mu guards these.
	heard  heard          // what reports have told and nobody has written down
	cut    func()         // ends collecting; nil before that
	masker *secret.Masker // hides its secrets; nil: not made yet
	story  *story         // what its agent does; nil: not told yet
}

// runOf returns the run of a job, nil when nobody works on it.
func (e *Executor) runOf(id string) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// launch works on a job in a goroutine of its own. e.mu is held.
func (e *Executor) launch(ctx context.Context, j job.Job, adopted bool) {
	id := j.ID
	jobCtx, cancel := context.WithCancelCause(ctx)
	r := &run{
		id: id, shares: j.Shares(), cancel: cancel, adopted: adopted,
		changed: make(chan struct{}, 1), reported: make(chan struct{}, 1),
	}
	e.runs[id] = r
	e.work.Go(func() {
		defer cancel(nil)
		done := e.runJob(ctx, jobCtx, r)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.runs, id)
		e.tell(id)
		if !done {
			e.leftover++
		}
		e.poke()
	})
}
