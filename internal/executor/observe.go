package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// Observer is told what happens, each time after it is on record. Its methods
// are called from many goroutines and must neither block nor fail.
type Observer interface {
	// Changed is told of the job as it is now and of the events of the change.
	Changed(j job.Job, events []job.Event)
	// PhaseEnded is told of one run of a phase; err is what ended it early.
	PhaseEnded(j job.Job, phase string, began time.Time, result PhaseResult, err error)
	// Leaked is told how many VMs the last search of the host has found that
	// carry our mark and should not be there.
	Leaked(vms int)
}

// PhaseResult is how a run of a phase ended.
type PhaseResult string

// The results.
const (
	PhaseOK          PhaseResult = "ok"
	PhaseFailed      PhaseResult = "failed"
	PhaseCancelled   PhaseResult = "cancelled"   // the job was
	PhaseInterrupted PhaseResult = "interrupted" // the engine stopped; the next one runs it again
)

// observe tells of a change.
func (e *Executor) observe(j job.Job, events []job.Event) {
	if e.Observer != nil && len(events) > 0 {
		e.Observer.Changed(j, events)
	}
}

// observePhase tells of a phase that has run under ctx.
func (e *Executor) observePhase(ctx context.Context, j job.Job, phase string, began time.Time, err error) {
	result := PhaseOK
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), ErrDetach):
		result = PhaseInterrupted
	case ctx.Err() != nil:
		result = PhaseCancelled
	default:
		result = PhaseFailed
	}
	if e.Observer != nil {
		e.Observer.PhaseEnded(j, phase, began, result, err)
	}
}

// observeLeaks tells how many VMs should not be on the host.
func (e *Executor) observeLeaks(vms int) {
	if e.Observer != nil {
		e.Observer.Leaked(vms)
	}
}
