package capture

import (
	"context"
	"errors"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
)

// ErrCut is the cause with which a caller cancels the collecting of a job's output.
var ErrCut = errors.New("collecting was cancelled by user")

// Collected describes the stored output and artifacts of a task.
type Collected struct {
	Output    [2]job.OutputInfo // of stdout and of stderr
	Artifacts []job.Artifact
	Skipped   job.SkippedArtifacts
}

// Collect completes and seals the copy of a task's output, and stores the task's artifacts. settle
// ends the task if it still runs, and returns its state; it is not called if FollowEnd got the
// state that decided the outcome. Reading from the VM ends with work (cancelled by a caller:
// ErrCut), if the VM does not answer for as long as wait, or if the data arrives too slowly. The
// output is then what is stored, marked as incomplete. The state is zero if the output could not be
// fetched. Errors are those of ctx and the store.
func (c *Capture) Collect(ctx, work context.Context, j job.Job, wait time.Duration, settle func(context.Context) (job.RunState, error)) (state job.RunState, got Collected, err error) {
	work, end := patience.Allow(work, 2*wait, 4*c.o.MaxOutput+2*c.o.Artifacts.All)
	defer end()
	if state, err = c.collectOutput(ctx, work, j, wait, settle, &got); err == nil {
		err = c.collectArtifacts(ctx, work, j, state, &got)
	}
	return state, got, err
}

func (c *Capture) collectOutput(ctx, work context.Context, j job.Job, wait time.Duration, settle func(context.Context) (job.RunState, error), got *Collected) (state job.RunState, err error) {
	timed, end := patience.Allow(work, wait, 4*c.o.MaxOutput)
	defer end()
	fetchErr := c.CanHide() // retrying would not change it
	switch {
	case fetchErr != nil:
	case c.ended != nil && j.Outcome.Reason == job.ReasonExitStatus:
		state = *c.ended // this state has decided the outcome
	default:
		state, fetchErr = settle(timed)
	}
	if fetchErr == nil {
		fetchErr = patience.Retry(timed, func() error { return c.verify(timed, j, state) })
	}
	var ends [2]job.StreamEnd
	var why [2]string // reason why each stream is incomplete; empty: complete
	for i, stream := range streams {
		end := job.StreamEnd{Stream: stream, Total: state.Written(stream)}
		if fetchErr == nil {
			fetchErr = patience.Retry(timed, func() (err error) {
				end.Tail, err = c.fetch(timed, j, stream, end.Total)
				return err
			})
		}
		if ctx.Err() != nil {
			return state, ctx.Err()
		}
		if ours(work, fetchErr) {
			return state, fetchErr
		}
		if fetchErr != nil {
			why[i] = c.whyEnded(timed, fetchErr)
			c.o.Log.Warn("output incomplete", "job_id", c.id, "stream", stream, "err", why[i])
			if end.Total, err = c.seen(ctx, stream); err != nil {
				return state, err
			}
		}
		ends[i] = end
	}
	sealed, err := c.o.Store.SealOutput(ctx, c.id, ends[:]...)
	if err != nil {
		return state, err
	}
	for i, info := range sealed {
		if why[i] == "" && state.DiskFull {
			why[i] = diskFull
		}
		info.Incomplete, info.Why = why[i] != "", why[i]
		got.Output[i] = info
	}
	if fetchErr != nil {
		state = job.RunState{}
	}
	return state, nil
}

// ours reports whether work failed by an engine fault, after which the VM still has what was not
// stored. A caller who cancels the collecting does not wait for it.
func ours(work context.Context, err error) bool {
	return job.IsEngineFault(err) && !errors.Is(context.Cause(work), ErrCut)
}

const diskFull = "the VM's disk was full while the task ran: what it printed meanwhile may be missing"

// whyEnded returns, in one line, why work was not completed.
func (c *Capture) whyEnded(work context.Context, err error) string {
	switch cause := context.Cause(work); {
	case errors.Is(cause, ErrCut):
		return ErrCut.Error()
	case errors.Is(cause, patience.ErrTooSlow), errors.Is(err, patience.ErrTooSlow):
		return "the VM was given up, " + patience.ErrTooSlow.Error() + "; the last try: " + brief(c.ShownError(err).Error())
	}
	return brief(c.ShownError(err).Error())
}

// brief bounds an error's text, which a VM may have written, for use in a reason.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 300 {
		return string(r[:300]) + "..."
	}
	return text
}
