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
)

// cutGrace is what a VM has left after a cancel for what its task has written: an
// honest one is mostly done by then, and no result is lost for impatience.
const cutGrace = 5 * time.Second

// collect makes the output complete and then the status terminal. A task that
// still runs (cancelled, timed out) is stopped first. A VM that no longer responds
// is asked several times, and all of it has a deadline: then what is held is the
// output, and said to be incomplete. The same goes cutGrace after a caller cancels.
func (e *Executor) collect(ctx context.Context, r *run) error {
	work, end := context.WithCancelCause(ctx)
	defer end(nil)
	cut := func() { time.AfterFunc(cutGrace, func() { end(capture.ErrCut) }) }
	r.capture.Close() // what a callback has brought is written, and no more is
	e.mu.Lock()
	r.cut = cut
	e.mu.Unlock()
	j, err := e.o.Store.Job(ctx, r.id) // from here on a cancel finds cut
	if err != nil || j.Status.Terminal() {
		return err
	}
	if j.Outcome == nil {
		return errors.New("nothing has decided the outcome")
	}
	if j.CollectCut {
		cut()
	}
	var (
		state job.RunState
		got   capture.Collected
	)
	if !j.StartedAt.IsZero() && j.VM.State == job.VMCreated {
		settle := func(timed context.Context) (job.RunState, error) { return e.settle(ctx, timed, j) }
		if state, got, err = r.capture.Collect(ctx, work, j, e.patience(j), settle); err != nil {
			return err
		}
	}
	_, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Stdout, j.Stderr, j.Progress = got.Output[0], got.Output[1], ""
		j.Artifacts, j.SkippedArtifacts = got.Artifacts, got.Skipped
		if o := j.Outcome; o.Reason == job.ReasonKilled && o.ExitCode == nil && state.Exited && state.Reason != "lost" {
			o.ExitCode, o.Duration = &state.ExitCode, state.Duration
		}
		if err := j.Finish(now()); err != nil {
			return nil, err
		}
		return slices.Concat(got.Warnings(), e.takeHeard(r).late(), []job.Event{{Kind: job.EventStatus, Text: string(j.Status)}}), nil
	})
	return err
}

// patience is how long a VM that does not answer is asked for what a job has
// left there: not long where nobody waits for it, or little hope is, and less by
// what engines before this one have waited.
func (e *Executor) patience(j job.Job) time.Duration {
	wait := e.o.CollectPatience
	if r := j.Outcome.Reason; r == job.ReasonLost || r == job.ReasonCancelled {
		wait /= 10
	}
	return wait - j.Silence.Unseen
}

// settle ends a task that something else than its own end has ended, and returns
// how it stands. In a VM that stays it is told to end even where a caller does
// not want to wait for what it has written.
func (e *Executor) settle(ctx, timed context.Context, j job.Job) (state job.RunState, err error) {
	quiet := e.listen(ctx, j)
	defer quiet.end()
	quiet.asked(func() {}) // timed ends it
	running := j.Outcome.Reason != job.ReasonExitStatus
	stop := func(ctx context.Context) error {
		err := e.o.Guest.Stop(ctx, j, cmp.Or(j.StopSignal, job.Signals[0]))
		running = running && err != nil
		return err
	}
	err = patience.Retry(timed, func() (err error) {
		if running {
			if err := stop(timed); err != nil {
				return err
			}
		}
		state, err = e.o.Guest.Probe(timed, j)
		return err
	})
	if err == nil {
		quiet.seen(ctx)
	}
	if running && (j.Shares() || j.KeepsVM()) && errors.Is(context.Cause(timed), capture.ErrCut) {
		brief, end := context.WithTimeout(ctx, e.o.CollectPatience/10)
		defer end()
		if err := stop(brief); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("a task was left running in a VM that stays", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		}
	}
	return state, err
}
