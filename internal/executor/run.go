package executor

import (
	"context"

	"linus/internal/capture"
	"linus/internal/job"
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
	capture  *capture.Capture

	// Executor.mu guards these.
	heard heard  // what reports have told and nobody has written down
	cut   func() // ends collecting; nil before that
}

// runOf returns the run of a job, nil when nobody works on it.
func (e *Executor) runOf(id string) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// captureOf returns what captures a job that is being worked on, and for another
// one that hides its secrets all the same.
func (e *Executor) captureOf(j job.Job) *capture.Capture {
	if r := e.runOf(j.ID); r != nil {
		return r.capture
	}
	return capture.New(e.captures, j)
}

// launch works on a job in a goroutine of its own. e.mu is held.
func (e *Executor) launch(ctx context.Context, j job.Job, adopted bool) {
	id := j.ID
	jobCtx, cancel := context.WithCancelCause(ctx)
	r := &run{
		id: id, shares: j.Shares(), cancel: cancel, adopted: adopted,
		changed: make(chan struct{}, 1), reported: make(chan struct{}, 1),
		capture: capture.New(e.captures, j),
	}
	e.runs[id] = r
	e.work.Go(func() {
		defer cancel(nil)
		done := e.runJob(ctx, jobCtx, r)
		r.capture.Close()
		e.mu.Lock()
		delete(e.runs, id)
		if !done {
			e.leftover++
		}
		e.mu.Unlock()
		e.changed(id)
		e.poke()
	})
}
