package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
)

// Waits while following a task. Callbacks bring news at once; SSH is asked
// when they are silent, sooner before the first one came.
const (
	firstProbe   = 3 * time.Second
	probeEvery   = 5 * time.Second
	timeoutGrace = 60 * time.Second // for the runner's own timeout to be reported
)

// follow returns when the job's outcome is decided: by the runner's report, by
// what SSH tells when callbacks do not arrive, by the deadline (kept by the
// runner, and here should it fail), or because nothing is heard of the task any
// more. All by clocks that no change of date moves: the VM's since its boot,
// and ours since the last sign of life.
func (e *Executor) follow(ctx context.Context, r *run) error {
	lastSign := time.Now()
	var w ways
	wait := time.NewTimer(firstProbe)
	defer wait.Stop()
	for {
		j, err := e.Store.Job(ctx, r.id)
		if err != nil || j.Outcome != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changed:
			lastSign = time.Now()
			wait.Reset(2*e.HeartbeatInterval + probeEvery)
			continue
		case <-wait.C:
			wait.Reset(probeEvery)
		}
		state, err := e.Guest.Probe(ctx, j)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && state.Exited:
			return e.decide(ctx, r, taskOutcome(j.Manifest, state, state.Text))
		case err == nil && !state.Started:
			return e.decide(ctx, r, lostOutcome("the VM answers, but the job is gone from it: was it reset?"))
		case err == nil && state.Duration > time.Duration(j.Manifest.Timeout)*time.Second+timeoutGrace:
			return e.decide(ctx, r, taskOutcome(j.Manifest, RunState{Reason: "timeout", Duration: state.Duration}, ""))
		case err == nil:
			lastSign = time.Now()
			e.whileSilent(ctx, j, state, &w)
		}
		if err == nil {
			continue
		}
		switch status := e.stands(ctx, j); {
		case status == job.VMGone, status == job.VMStopped:
			return e.decide(ctx, r, lostOutcome(fmt.Sprintf("its VM is %s on the host, and not by us", status)))
		case time.Since(lastSign) > e.HeartbeatThreshold:
			return e.decide(ctx, r, lostOutcome(fmt.Sprintf("no heartbeat and no answer over SSH for %s: %v", e.HeartbeatThreshold, err)))
		}
	}
}

// stands asks the host for a VM that does not answer SSH. Unknown proves nothing.
func (e *Executor) stands(ctx context.Context, j job.Job) job.VMStatus {
	status, err := e.Provider.Status(ctx, *j.VM)
	if err != nil {
		e.Log.Debug("the host does not say how the VM stands", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		return job.VMUnknown
	}
	return status
}

// taskOutcome turns what the runner says into how the job ended.
func taskOutcome(m job.Manifest, s RunState, text string) job.Outcome {
	code := s.ExitCode
	o := job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: text, At: now(), Duration: s.Duration}
	switch {
	case s.Reason == "timeout":
		o.Status, o.Reason, o.ExitCode = job.Timeout, job.ReasonTimeout, nil
		o.Error = cmp.Or(text, fmt.Sprintf("timed out after %d s; raise manifest.timeout if the task needs longer", m.Timeout))
	case s.Reason == "stopped":
		o.Reason, o.Error = job.ReasonKilled, cmp.Or(text, "killed")
	case s.Reason == "lost":
		return lostOutcome(cmp.Or(text, "the VM restarted while the task ran"))
	case code == 0:
		o.Status = job.Success
	default:
		o.Error = cmp.Or(text, fmt.Sprintf("exit status %d", code))
	}
	return o
}

func lostOutcome(text string) job.Outcome {
	return job.Outcome{Status: job.Failed, Reason: job.ReasonLost, Error: text, At: now()}
}

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

// retry calls f with growing pauses until it succeeds or ctx ends.
func retry(ctx context.Context, f func() error) error {
	pause := 500 * time.Millisecond
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// reach calls f, with growing pauses, for as long as the VM cannot be reached,
// but no longer than patience, with which f's context ends. A try that may take
// longer than that works with its caller's.
func reach(ctx context.Context, patience time.Duration, f func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	_ = retry(patient, func() error { // what f said last is what matters
		last = f(patient)
		var host *job.HostError
		if errors.As(last, &host) && host.Class == job.HostUnreachable {
			return last
		}
		return nil
	})
	return last
}
