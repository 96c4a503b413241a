package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/vm"
)

var (
	errCancelled = errors.New("cancelled by user")
	errKilled    = errors.New("killed by user")
)

// Cancel ends a job. It returns once that is decided; right after, the task is stopped, its output
// is collected and its VM is destroyed. If the task has already exited, the outcome stays, and
// collecting stops cutGrace later; the stored output is then marked as incomplete. The same happens
// if a cancelled job is cancelled again long after its output should have been collected.
// Cancelling again is fine until the job has ended; then it is job.ErrCompleted.
func (e *Executor) Cancel(ctx context.Context, id string) error {
	err := e.end(ctx, id, job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, Error: "Cancelled by user"}, "", errCancelled)
	if errors.Is(err, job.ErrNotFound) {
		err = e.o.Fleet.CancelVM(ctx, id)
	}
	return err
}

// DestroyVM destroys a persistent VM. If a job is making it, that job is cancelled first.
func (e *Executor) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.o.Fleet.Find(ctx, ref)
	if err == nil && v.Own == nil && v.Lifecycle == vm.Persistent && v.State == vm.Intended {
		if err = e.Cancel(ctx, v.Job); err == nil || errors.Is(err, job.ErrCompleted) {
			v, err = e.o.Jobs.VM(ctx, v.Job)
		}
	}
	if err != nil {
		return job.VMInfo{}, err
	}
	return e.o.Fleet.Destroy(ctx, v)
}

// end decides a job at a caller's request and interrupts its run. The task gets the signal; empty: TERM.
func (e *Executor) end(ctx context.Context, id string, outcome job.Outcome, signal string, cause error) error {
	outcome.At = now()
	cut := false
	j, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		cut = false
		switch {
		case j.Decide(outcome):
			j.StopSignal, j.Silence = signal, job.Silence{}
			j.EndBy(job.CallerFrom(ctx))
			return []job.Event{decided(outcome)}, nil
		case !j.Status.Terminal() && j.Outcome.Reason == outcome.Reason && (outcome.Reason != job.ReasonCancelled || outcome.At.Sub(j.Outcome.At) < e.o.CollectPatience):
			return nil, nil // already done; a caller who cancels again after a long time does not want to wait
		case !j.Status.Terminal() && outcome.Reason == job.ReasonCancelled:
			cut = true
			if j.SkipCollect {
				return nil, nil
			}
			j.SkipCollect = true
			if j.EndedBy == "" {
				j.EndBy(job.CallerFrom(ctx))
			}
			return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseCollect, Text: capture.ErrCut.Error() + ": what has arrived is kept"}}, nil
		default:
			return nil, job.ErrCompleted
		}
	})
	if err != nil {
		return err
	}
	e.o.Log.Info("job ended by request", "job_id", id, "reason", outcome.Reason, "collecting", cut)
	e.interrupt(id, cut, cause)
	if j.Status == job.Pending {
		e.mu.Lock()
		if e.runs[id] == nil {
			e.queue.addReady(id) // it needs no slot to end
		}
		e.mu.Unlock()
	}
	e.poke()
	return nil
}

// interrupt interrupts a job's run, if it has one here: its collecting, or else its phases.
func (e *Executor) interrupt(id string, collecting bool, cause error) {
	stop := func() {}
	e.mu.Lock()
	if r := e.runs[id]; r != nil && collecting && r.cut != nil {
		stop = r.cut
	} else if r != nil {
		stop = func() { r.cancel(cause) }
	}
	e.mu.Unlock()
	stop()
}

// Kill ends a job's task with its whole process tree; the job then fails with reason killed. An
// empty signal is TERM. A job that waits or is being provisioned ends as well.
func (e *Executor) Kill(ctx context.Context, id, signal string) (job.Killed, error) {
	signal = strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	if signal != "" && !slices.Contains(job.Signals, signal) {
		return "", &job.FieldError{Field: "signal", Problem: fmt.Sprintf("%q is unknown", signal), Remedy: "use one of: " + strings.Join(job.Signals, ", ")}
	}
	err := e.end(ctx, id, job.Outcome{Status: job.Failed, Reason: job.ReasonKilled, Error: "Killed by user"}, signal, errKilled)
	if errors.Is(err, job.ErrNotFound) {
		err = e.o.Fleet.CancelVM(ctx, id)
	}
	switch {
	case errors.Is(err, job.ErrNotFound):
		return job.KillNotFound, nil
	case errors.Is(err, job.ErrCompleted):
		return job.AlreadyTerminated, nil
	case err != nil:
		return "", err
	}
	return job.KilledNow, nil
}
