package executor

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
)

// Pauses after an engine fault.
const (
	firstOwnPause   = 500 * time.Millisecond
	longestOwnPause = 10 * time.Second
)

// fault is an engine fault that holds a run up.
type fault struct {
	since time.Time
	text  string
}

// retryEngineFaults repeats work while it fails by a fault of the engine's own (see
// job.IsEngineFault), for at most r.patience: such a fault says nothing about the job's VM, in
// which the task runs on. The job's progress shows the fault, and an event records the delay.
func (e *Executor) retryEngineFaults(ctx context.Context, r *run, work func() error) error {
	pause := firstOwnPause
	for {
		err := work()
		if ctx.Err() != nil || !job.IsEngineFault(err) {
			return err
		}
		since, first := e.held(r, r.capture.ShownError(err))
		if first {
			pause = firstOwnPause
			e.o.Log.Error("an internal fault of this engine holds up a job", "job_id", r.id, "err", err)
			e.tellHeld(ctx, r.id)
		}
		if since > r.patience {
			return err
		}
		r.adopted = true // so that the next attempt looks for what was begun
		_ = sleep.For(ctx, pause)
		pause = min(2*pause, longestOwnPause)
	}
}

// held records an engine fault, and returns how long it has held the run up.
func (e *Executor) held(r *run, err error) (since time.Duration, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first = r.fault == nil; first {
		r.fault = &fault{since: time.Now()}
	}
	r.fault.text = err.Error()
	return time.Since(r.fault.since), first
}

// tellHeld wakes the job's watchers, who read the fault. It does not if reading the job is what fails.
func (e *Executor) tellHeld(ctx context.Context, id string) {
	if _, err := e.o.Jobs.Job(ctx, id); err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.watchers[id]; w != nil {
		w.held = true
		e.wakeWatchers(id)
	}
}

// heldUp returns the event of a fault that has held the run up, if there is one. passed clears the
// fault once that is recorded.
func (e *Executor) heldUp(r *run) []job.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := r.fault
	if f == nil {
		return nil
	}
	return []job.Event{{At: now(), Kind: job.EventWarning, Text: "held up for " + time.Since(f.since).Round(time.Second).String() +
		" by an internal fault of this engine, which says nothing about the VM: " + f.text}}
}

func (e *Executor) passed(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.fault = nil
}
