package executor

import (
	"context"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/lock"
)

// run is the work on one job.
type run struct {
	id       string
	cancel   context.CancelCauseFunc
	changed  chan struct{}  // a report arrived
	reported chan struct{}  // the task's end was reported
	adopted  bool           // it continues work of another process or an earlier run
	shares   bool           // it has no VM of its own
	token    string         // for its task's callbacks; empty: not made
	input    lock.FairMutex // orders inputs to its task
	capture  *capture.Capture
	proxy    *proxy        // of a job that needs one; nil: not started
	patience time.Duration // with the engine's own faults

	// Executor.mu guards these.
	heard heard     // not yet recorded reports
	steps []change  // reported, but not yet recorded changes
	cut   func()    // stops collecting; nil before collect
	cutAt time.Time // when collecting must stop; zero: nobody has asked for that
	fault *fault    // engine fault that holds the run up; nil: none
}

// change changes a job and returns the events to record.
type change = func(*job.Job) ([]job.Event, error)

// all returns a change that makes all the given changes, skipping nil ones.
func all(changes ...change) change {
	return func(j *job.Job) (events []job.Event, err error) {
		for _, c := range changes {
			if c == nil {
				continue
			}
			more, err := c(j)
			if err != nil {
				return nil, err
			}
			events = append(events, more...)
		}
		return events, nil
	}
}

func (e *Executor) runOf(id string) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.runs[id]
}

// captureOf returns the Capture of a job's run or, without a run, a new one that hides the job's secrets.
func (e *Executor) captureOf(j job.Job) *capture.Capture {
	if r := e.runOf(j.ID); r != nil {
		return r.capture
	}
	return capture.New(e.captures, j)
}

// launch starts a run of a job in its own goroutine. The caller holds e.mu.
func (e *Executor) launch(ctx context.Context, j job.Job, adopted bool) {
	id := j.ID
	jobCtx, cancel := context.WithCancelCause(ctx)
	r := &run{
		id: id, shares: !j.WantsVM(), cancel: cancel, adopted: adopted,
		patience: overdue(j) + e.o.HeartbeatThreshold, // by then its task has ended
		changed:  make(chan struct{}, 1), reported: make(chan struct{}, 1),
		capture: capture.New(e.captures, j),
	}
	e.runs[id] = r
	e.work.Go(func() {
		defer cancel(nil)
		done := e.runJob(ctx, jobCtx, r)
		r.closeProxy()
		r.capture.Close()
		e.mu.Lock()
		delete(e.runs, id)
		if !done {
			e.unscanned++
		}
		e.mu.Unlock()
		e.changed(id)
		e.poke()
	})
}
