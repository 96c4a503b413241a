package executor

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
)

// Pauses after a fault of the engine's own.
const (
	firstOwnPause   = 500 * time.Millisecond
	longestOwnPause = 10 * time.Second
)

// fault is a fault of the engine's own that holds a run up.
type fault struct {
	since time.Time
	text  string
}

// retryEngineFaults calls work until it does something else than fail by a fault of the engine's
// own (see job.IsEngineFault), for r.patience at most: such a fault says nothing of the job's VM,
// in which the task goes on. The job's progress says what is waited for, and its events
// that it was.
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
			e.o.Log.Error("a fault of this engine's own holds a job up", "job_id", r.id, "err", err)
			e.tellHeld(ctx, r.id)
		}
		if since > r.patience {
			return err
		}
		r.adopted = true // what was begun is looked for
		_ = sleep.For(ctx, pause)
		pause = min(2*pause, longestOwnPause)
	}
}

// held notes a fault of the engine's own, and returns for how long it has held the run up.
func (e *Executor) held(r *run, err error) (since time.Duration, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if first = r.fault == nil; first {
		r.fault = &fault{since: time.Now()}
	}
	r.fault.text = err.Error()
	return time.Since(r.fault.since), first
}

// tellHeld wakes the job's watchers, who read it: not where that is what fails.
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

// heldUp returns the event of a fault that has held the run up, if there is one; passed has it
// forgotten, once that is recorded.
func (e *Executor) heldUp(r *run) []job.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := r.fault
	if f == nil {
		return nil
	}
	return []job.Event{{At: now(), Kind: job.EventWarning, Text: "held up for " + time.Since(f.since).Round(time.Second).String() +
		" by a fault of this engine's own, which says nothing of the VM: " + f.text}}
}

func (e *Executor) passed(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.fault = nil
}
