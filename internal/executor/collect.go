package executor

import (
	"context"
	"errors"

	"linus/internal/job"
)

// collect makes the output complete and then the status terminal. A task that
// still runs (cancelled, timed out) is stopped first. A VM that no longer
// answers is given several tries; then what is held is the output, and said to
// be incomplete.
func (e *Executor) collect(ctx context.Context, r *run) error {
	j, err := e.Store.Job(ctx, r.id)
	if err != nil || j.Status.Terminal() {
		return err
	}
	if j.Outcome == nil {
		return errors.New("nothing has decided the outcome")
	}
	var (
		state     RunState
		out       [2]job.OutputInfo
		artifacts []job.Artifact
		events    []job.Event
	)
	if !j.StartedAt.IsZero() && j.VM.State == job.VMCreated {
		if state, out, err = e.collectOutput(ctx, j); err != nil {
			return err
		}
		if artifacts, events, err = e.collectArtifacts(ctx, j, state); err != nil {
			return err
		}
	}
	_, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Stdout, j.Stderr, j.Artifacts, j.Progress = out[0], out[1], artifacts, ""
		if o := j.Outcome; o.Reason == job.ReasonKilled && o.ExitCode == nil && state.Exited && state.Reason != "lost" {
			o.ExitCode, o.Duration = &state.ExitCode, state.Duration
		}
		if err := j.Finish(now()); err != nil {
			return nil, err
		}
		return append(events, job.Event{Kind: job.EventStatus, Text: string(j.Status)}), nil
	})
	return err
}
