package executor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/patience"
	"linus/internal/vm"
)

// cutGrace is how long after a cancel a VM may still deliver its task's output. An honest VM is
// mostly done by then, so no result is lost.
const cutGrace = 5 * time.Second

// collect completes the output and then makes the status terminal. It first stops a task that still runs
// (cancelled, timed out). It retries a VM that does not respond, with a deadline for everything. After
// the deadline, or cutGrace after a caller cancels, the output is what is stored, marked as incomplete.
func (e *Executor) collect(ctx context.Context, r *run, j job.Job) (change, error) {
	if j.Manifest.FansOut() {
		return e.joinChildren(ctx, r)
	}
	work, end := context.WithCancelCause(ctx)
	defer end(nil)
	cut := func() { // an attempt may end before that
		e.mu.Lock()
		if r.cutAt.IsZero() {
			r.cutAt = time.Now().Add(cutGrace)
		}
		left := time.Until(r.cutAt)
		e.mu.Unlock()
		if left <= 0 {
			end(capture.ErrCut)
			return
		}
		time.AfterFunc(left, func() { end(capture.ErrCut) })
	}
	r.capture.Close() // data that a callback delivered is written, and nothing more is accepted
	e.mu.Lock()
	r.cut = cut
	e.mu.Unlock()
	j, err := e.o.Jobs.Job(ctx, r.id) // from here on a cancel calls cut
	if err != nil || j.Status.Terminal() {
		return nil, err
	}
	if j.Outcome == nil {
		return nil, errors.New("nothing has decided the outcome")
	}
	if j.SkipCollect {
		cut()
	}
	var (
		state job.RunState
		got   capture.Collected
	)
	if !j.StartedAt.IsZero() && j.VM.State == vm.Created {
		state, got, err = r.capture.Collect(ctx, work, j, e.patience(j), func(timed context.Context) (job.RunState, error) { return e.settle(ctx, timed, j) })
		if err != nil {
			return nil, err
		}
	}
	left, told, err := e.takeCommits(ctx, work, r, j, &got)
	if err != nil {
		return nil, err
	}
	putBack := e.o.Fleet.PutBack(ctx, j) // the task's writes must be on the disk before its result is visible
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return func(j *job.Job) ([]job.Event, error) {
		j.Stdout, j.Stderr, j.Progress = got.Output[0], got.Output[1], ""
		j.Artifacts, j.SkippedArtifacts, j.Repository = got.Artifacts, got.Skipped, left
		if o := j.Outcome; o.Reason == job.ReasonKilled && o.ExitCode == nil && state.Exited && state.Reason != "lost" {
			o.ExitCode, o.Duration = &state.ExitCode, state.Duration
		}
		var kept []job.Event
		if state.Started || state.Exited { // its VM has responded
			kept = j.KeepVM(now())
		}
		if err := j.Finish(now()); err != nil {
			return nil, err
		}
		return slices.Concat(got.Warnings(), told, putBack, e.takeHeard(r).late(), kept, []job.Event{{Kind: job.EventStatus, Text: string(j.Status)}}), nil
	}, nil
}

// patience is how long to try to collect from a VM that does not respond. It is short if nobody
// waits for the result or there is little hope, and reduced by the time that earlier engines waited.
func (e *Executor) patience(j job.Job) time.Duration {
	wait := e.o.CollectPatience
	if r := j.Outcome.Reason; r == job.ReasonLost || r == job.ReasonCancelled {
		wait /= 10
	}
	return wait - j.Silence.Unseen
}

// settle stops a task whose job ended by something other than the task's exit, and returns the task's
// state. In a persistent VM it stops the task even if a caller does not want to wait for its output.
func (e *Executor) settle(ctx, timed context.Context, j job.Job) (state job.RunState, err error) {
	clock := e.listen(ctx, j)
	defer clock.end()
	clock.probeStarted(func() {}) // timed bounds it
	running := j.Outcome.Reason != job.ReasonExitStatus
	stop := func(ctx context.Context) error {
		err := e.o.Runner.Stop(ctx, j, cmp.Or(j.StopSignal, job.Signals[0]))
		running = running && err != nil
		return err
	}
	err = patience.Retry(timed, func() (err error) {
		if running {
			if err := stop(timed); err != nil {
				return err
			}
		}
		state, err = e.o.Runner.Probe(timed, j)
		return err
	})
	switch {
	case err == nil:
		clock.seen(ctx)
	case job.IsEngineFault(err):
		clock.restart(ctx, j.Silence)
	}
	if running && (j.Shares() || j.Keeps()) && errors.Is(context.Cause(timed), capture.ErrCut) {
		brief, end := context.WithTimeout(ctx, e.o.CollectPatience/10)
		defer end()
		if err := stop(brief); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("a task was left running in a persistent VM", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		}
	}
	return state, err
}
