package executor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
)

// cutGrace is what a VM has left after a cancel for what its task has written: an
// honest one is mostly done by then, and no result is lost for impatience.
const cutGrace = 5 * time.Second

// collect makes the output complete and then the status terminal. A task that
// still runs (cancelled, timed out) is stopped first. A VM that no longer
// answers is given several tries, and one that does a deadline over all of it;
// then what is held is the output, and said to be incomplete. So it is cutGrace
// after a caller cancels.
func (e *Executor) collect(ctx context.Context, r *run) error {
	cuttable, end := context.WithCancelCause(ctx)
	defer end(nil)
	cut := func() { time.AfterFunc(cutGrace, func() { end(errCut) }) }
	r.sent.Lock() // what a callback has brought is written, and no more is
	e.mu.Lock()
	r.cut = cut
	e.mu.Unlock()
	r.sent.Unlock()
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
		state     job.RunState
		out       [2]job.OutputInfo
		artifacts []job.Artifact
		skipped   job.SkippedArtifacts
	)
	if !j.StartedAt.IsZero() && j.VM.State == job.VMCreated {
		patience := e.patience(j)
		work, end := allow(cuttable, 2*patience, 4*e.o.MaxOutput+2*e.o.Artifacts.All)
		defer end()
		if state, out, err = e.collectOutput(ctx, work, j); err != nil {
			return err
		}
		if artifacts, skipped, err = e.collectArtifacts(ctx, work, j, state); err != nil {
			return err
		}
	}
	_, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Stdout, j.Stderr, j.Progress = out[0], out[1], ""
		j.Artifacts, j.SkippedArtifacts = artifacts, skipped
		if o := j.Outcome; o.Reason == job.ReasonKilled && o.ExitCode == nil && state.Exited && state.Reason != "lost" {
			o.ExitCode, o.Duration = &state.ExitCode, state.Duration
		}
		if err := j.Finish(now()); err != nil {
			return nil, err
		}
		return slices.Concat(skippedEvents(skipped), e.takeHeard(r).late(), []job.Event{{Kind: job.EventStatus, Text: string(j.Status)}}), nil
	})
	return err
}

// patience is how long a VM that does not answer is asked for what a job has
// left there: not long where nobody waits for it, or little hope is, and less by
// what engines before this one have waited.
func (e *Executor) patience(j job.Job) time.Duration {
	patience := e.o.CollectPatience
	if r := j.Outcome.Reason; r == job.ReasonLost || r == job.ReasonCancelled {
		patience /= 10
	}
	return patience - j.Silence.Unseen
}

// collectOutput ends the task, where it was not it that did, fetches what is
// missing of both streams and seals them. It returns how the task stands then;
// not Started where that could not be learned. What it does in the VM ends with
// work, and before that when the VM is silent, or too slow.
func (e *Executor) collectOutput(ctx, work context.Context, j job.Job) (state job.RunState, out [2]job.OutputInfo, err error) {
	timed, end := allow(work, e.patience(j), 4*e.o.MaxOutput)
	defer end()
	_, fetchErr := e.masker(j) // it would not come back by waiting
	if fetchErr == nil {
		quiet := e.listen(ctx, j)
		quiet.asked(func() {}) // timed ends it
		if state, fetchErr = e.settle(ctx, timed, j); fetchErr == nil {
			quiet.seen(ctx)
		}
		quiet.end()
	}
	if fetchErr == nil {
		fetchErr = retry(timed, func() error { return e.verify(timed, j, state) })
	}
	for i, stream := range []string{job.Stdout, job.Stderr} {
		total := written(state, stream)
		var tail []byte
		if fetchErr == nil {
			fetchErr = retry(timed, func() (err error) {
				tail, err = e.fetch(timed, j, stream, total)
				return err
			})
		}
		if ctx.Err() != nil {
			return state, out, ctx.Err()
		}
		why := ""
		if fetchErr != nil {
			why = e.whyEnded(ctx, timed, j, fetchErr)
			e.o.Log.Warn("output incomplete", "job_id", j.ID, "stream", stream, "err", why)
			if total, err = e.o.Store.AppendOutput(ctx, j.ID, stream, 0, nil); err != nil {
				return state, out, err
			}
		}
		if out[i], err = e.o.Store.SealOutput(ctx, j.ID, stream, total, tail); err != nil {
			return state, out, err
		}
		if why == "" && state.DiskFull {
			why = diskFull
		}
		out[i].Incomplete, out[i].Why = why != "", why
	}
	if fetchErr != nil {
		state = job.RunState{}
	}
	return state, out, nil
}

const diskFull = "the VM's disk was full while the task ran: what it printed meanwhile may be missing"

// settle ends a task that something else than its own end has ended, and answers
// how it stands. In a VM that stays it is told to end even where a caller does
// not want to wait for what it has written.
func (e *Executor) settle(ctx, timed context.Context, j job.Job) (state job.RunState, err error) {
	running := j.Outcome.Reason != job.ReasonExitStatus
	stop := func(ctx context.Context) error {
		err := e.o.Guest.Stop(ctx, j, cmp.Or(j.StopSignal, "TERM"))
		running = running && err != nil
		return err
	}
	err = retry(timed, func() (err error) {
		if running {
			if err := stop(timed); err != nil {
				return err
			}
		}
		state, err = e.o.Guest.Probe(timed, j)
		return err
	})
	if running && (j.Shares() || j.KeepsVM()) && errors.Is(context.Cause(timed), errCut) {
		brief, end := context.WithTimeout(ctx, e.o.CollectPatience/10)
		defer end()
		if err := stop(brief); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("a task was left running in a VM that stays", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		}
	}
	return state, err
}

// whyEnded says in a line why collecting did not come to its end.
func (e *Executor) whyEnded(ctx, work context.Context, j job.Job, err error) string {
	switch cause := context.Cause(work); {
	case errors.Is(cause, errCut):
		return errCut.Error()
	case errors.Is(cause, errTooSlow):
		return "the VM was given up, " + errTooSlow.Error() + "; the last try: " + brief(e.hideError(ctx, j.ID, err).Error())
	}
	return brief(e.hideError(ctx, j.ID, err).Error())
}

// brief is what a reason shows of an error, which may be a VM's words.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 300 {
		return string(r[:300]) + "..."
	}
	return text
}
