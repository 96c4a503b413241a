package executor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"linus/internal/job"
)

// Intervals while following a task. Callbacks report changes at once; SSH is used when they are
// silent, and sooner before the first callback has arrived.
const (
	firstProbe   = 3 * time.Second
	probeEvery   = 5 * time.Second
	timeoutGrace = 60 * time.Second // for the runner to report its own timeout
)

// follow returns when the job's outcome is decided: by the task's state as seen over SSH, on the
// channel that its start left open or in a check; by the deadline (enforced by the runner, or here
// if that fails); or because nothing is heard of the task any more. Callbacks arrive over a network
// where others may send them too: they delay or trigger a check, and decide nothing. A job that
// another engine followed before is checked at once. Times are by monotonic clocks: the VM's since
// its boot, and those of the engines that listened.
func (e *Executor) follow(ctx context.Context, r *run, j job.Job) (change, error) {
	if j.Outcome != nil {
		return nil, nil
	}
	e.openProxy(ctx, r, j)
	c := checks{clock: e.listen(ctx, j)}
	defer c.clock.end()
	channel := e.attend(ctx, r, j)
	defer channel.stop()
	ended := func(state job.RunState) change { // seen over SSH, so it decides
		r.capture.Narrate(ctx, j) // records what the agent did last
		return deciding(taskOutcome(j.Manifest, state, state.Text))
	}
	reports := r.reported    // nil after a report that proved wrong, until the next check
	var due <-chan time.Time // when to record what was heard; nil if there is nothing
	noted := time.Now()      // the phase was just recorded
	heard := func() {
		if due == nil {
			due = time.After(time.Until(noted.Add(noteEvery)))
		}
	}
	first := firstProbe
	if r.adopted {
		first = 0
	}
	next, lastCheck := time.NewTimer(first), time.Now()
	defer next.Stop()
	for {
		reported := false
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-r.changed:
			c.clock.heard(ctx)
			heard()
			if reports != nil {
				next.Reset(min(2*e.o.HeartbeatInterval+probeEvery, time.Until(lastCheck.Add(e.o.HeartbeatThreshold))))
			}
			continue
		case <-channel.came:
			heard()
			continue
		case state := <-channel.ended:
			return ended(state), nil
		case <-due:
			due, noted = nil, time.Now()
			e.note(ctx, r)
			continue
		case <-reports:
			reports, reported = nil, true
			if state := channel.reported(ctx); state != nil {
				decided := ended(*state)
				return all(e.takeHeard(r).noting(r.capture.Narrating()), decided), nil
			}
			e.note(ctx, r)
		case <-next.C:
			reports = r.reported
		}
		next.Reset(probeEvery)
		lastCheck = time.Now()
		verdict, decided, err := e.check(ctx, r, &c, reported)
		switch {
		case err != nil || verdict == jobDecided:
			return decided, err
		case verdict == checkAgain:
			next.Reset(0)
		}
	}
}

// checks is the state that one check of a task leaves for the next.
type checks struct {
	clock *contactClock
	ways  ways
	moved bool // the VM had changed its address at the last check
}

// verdict says when the next check is due.
type verdict int

const (
	checkLater verdict = iota
	checkAgain         // at once: the VM has just changed its address
	jobDecided         // never
)

// check asks over SSH for the state of a job's task, and returns the change that decides the job if
// the task has ended. reported says that a callback has reported the end.
func (e *Executor) check(ctx context.Context, r *run, c *checks, reported bool) (verdict, change, error) {
	decide := func(o job.Outcome) (verdict, change, error) { return jobDecided, deciding(o), nil }
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err != nil || j.Outcome != nil {
		return jobDecided, nil, err
	}
	state, seen, err := e.probeTask(ctx, j, c.clock)
	if ctx.Err() != nil {
		return checkLater, nil, ctx.Err()
	}
	if job.IsEngineFault(err) && !sshIsHopeless(j, seen) {
		return checkLater, nil, err // the VM's state is unknown
	}
	if err != nil {
		outcome, moved := e.whileUnseen(ctx, j, c.clock, seen, err)
		if outcome != nil {
			return decide(*outcome)
		}
		next := checkLater
		if moved {
			c.ways = ways{}
			if !c.moved {
				next = checkAgain
			}
		}
		c.moved = moved
		return next, nil, nil
	}
	c.moved = false
	if held := e.heldUp(r); held != nil {
		if _, err := e.update(ctx, r.id, recordEvents(held...)); err != nil {
			return checkLater, nil, err
		}
		e.passed(r)
	}
	switch {
	case state.Exited:
		return decide(taskOutcome(j.Manifest, state, state.Text))
	case !state.Started:
		return decide(lostOutcome("the VM answers, but the job is gone from it: was it reset?"))
	case state.Duration > overdue(j):
		return decide(taskOutcome(j.Manifest, job.RunState{Reason: "timeout", Duration: state.Duration}, ""))
	case reported:
		return checkLater, nil, e.contradict(ctx, j)
	}
	e.whileSilent(ctx, r, j, state, &c.ways)
	return checkLater, nil, nil
}

// overdue is the longest time that a task can run if its runner enforces the timeout.
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

// taskOutcome returns the job's outcome for the state that the runner reports.
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
