package executor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"linus/internal/job"
)

// Intervals while following a task. Callbacks report changes at once; SSH is used when
// they are silent, and sooner before the first one has arrived.
const (
	firstProbe   = 3 * time.Second
	probeEvery   = 5 * time.Second
	timeoutGrace = 60 * time.Second // for the runner's own timeout to be reported
)

// follow returns when the job's outcome is decided: by what SSH shows of the task, on
// the channel that its start left open or in a check; by the deadline (enforced by the
// runner, or here if that fails); or because nothing is heard of the task any more.
// Callbacks arrive over a network where others may send them too: they delay or trigger
// a check, and decide nothing. A job that another engine has followed is checked at
// once. Times are by monotonic clocks: the VM's since its boot, and those of the engines
// that listened.
func (e *Executor) follow(ctx context.Context, r *run) error {
	j, err := e.o.Store.Job(ctx, r.id)
	if err != nil || j.Outcome != nil {
		return err
	}
	quiet := e.listen(ctx, j)
	defer quiet.end()
	channel := e.attend(ctx, r, j)
	defer channel.stop()
	var w ways
	reports := r.reported    // nil after a report that proved wrong, until the next check
	followed := false        // the VM has changed its address, as of the last check
	var due <-chan time.Time // when to record what was heard; nil if nothing was
	var noted time.Time
	first := firstProbe
	if r.adopted {
		first = 0
	}
	wait, lastLook := time.NewTimer(first), time.Now()
	defer wait.Stop()
	for {
		reported := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changed:
			quiet.heard(ctx)
			if due == nil {
				due = time.After(time.Until(noted.Add(noteEvery)))
			}
			if reports != nil {
				wait.Reset(min(2*e.o.HeartbeatInterval+probeEvery, time.Until(lastLook.Add(e.o.HeartbeatThreshold))))
			}
			continue
		case <-channel.came:
			if due == nil {
				due = time.After(time.Until(noted.Add(noteEvery)))
			}
			continue
		case state := <-channel.ended:
			r.ended = &state
			return e.decide(ctx, r, taskOutcome(j.Manifest, state, state.Text))
		case <-due:
			due, noted = nil, time.Now()
			e.note(ctx, r)
			continue
		case <-reports:
			reports, reported = nil, true
			e.note(ctx, r)
			if r.ended = channel.reported(ctx); r.ended != nil {
				return e.decide(ctx, r, taskOutcome(j.Manifest, *r.ended, r.ended.Text))
			}
		case <-wait.C:
			reports = r.reported
		}
		wait.Reset(probeEvery)
		lastLook = time.Now()
		if j, err = e.o.Store.Job(ctx, r.id); err != nil || j.Outcome != nil {
			return err
		}
		state, seen, err := e.lookFor(ctx, j, quiet)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && state.Exited:
			return e.decide(ctx, r, taskOutcome(j.Manifest, state, state.Text))
		case err == nil && !state.Started:
			return e.decide(ctx, r, lostOutcome("the VM answers, but the job is gone from it: was it reset?"))
		case err == nil && state.Duration > overdue(j):
			return e.decide(ctx, r, taskOutcome(j.Manifest, job.RunState{Reason: "timeout", Duration: state.Duration}, ""))
		case err == nil && reported:
			if err := e.contradict(ctx, j); err != nil {
				return err
			}
		case err == nil:
			e.whileSilent(ctx, r, j, state, &w)
		default:
			outcome, moved := e.whileUnseen(ctx, j, quiet, seen, err)
			if outcome != nil {
				return e.decide(ctx, r, *outcome)
			}
			if moved {
				w = ways{}
			}
			if moved && !followed {
				wait.Reset(0)
			}
			followed = moved
			continue
		}
		followed = false
	}
}

// overdue is the longest a task can run if its runner enforces the timeout.
func overdue(j job.Job) time.Duration {
	return time.Duration(j.Manifest.Timeout)*time.Second + timeoutGrace
}

// contradict records that a task whose end was reported is still running.
func (e *Executor) contradict(ctx context.Context, j job.Job) error {
	if j.Contradicted {
		return nil
	}
	e.o.Log.Warn("a task's end was reported, but it runs on", "job_id", j.ID, "reported", j.Reported)
	_, err := e.update(ctx, j.ID, func(j *job.Job) ([]job.Event, error) {
		j.Contradicted = true
		return []job.Event{{Kind: job.EventIgnored, Text: "complete with " + j.Reported + ": over SSH the task is seen to run on"}}, nil
	})
	return err
}

// unconfirmed returns a note for a lost task whose end was reported.
func unconfirmed(j job.Job) string {
	if j.Reported == "" {
		return ""
	}
	return "; its end with " + j.Reported + " was reported, but SSH did not show it"
}

// vmStatus asks the host for the status of a VM that does not respond over SSH. Unknown
// proves nothing.
func (e *Executor) vmStatus(ctx context.Context, j job.Job) job.VMStatus {
	status, err := e.o.Provider.Status(ctx, *j.VM)
	if err != nil {
		e.o.Log.Debug("the host does not report the VM's status", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		return job.VMUnknown
	}
	return status
}

// taskOutcome returns the job's outcome for the state the runner reports.
func taskOutcome(m job.Manifest, s job.RunState, text string) job.Outcome {
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
