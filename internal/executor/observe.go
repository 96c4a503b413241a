package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// observe tells of a change.
func (e *Executor) observe(j job.Job, events []job.Event) {
	if e.o.Observer != nil && len(events) > 0 {
		e.o.Observer.Changed(j, events)
	}
}

// observePhase tells of a phase that has run under ctx.
func (e *Executor) observePhase(ctx context.Context, j job.Job, phase string, began time.Time, err error) {
	result := job.PhaseOK
	switch {
	case err == nil:
	case errors.Is(context.Cause(ctx), job.ErrDetach):
		result = job.PhaseInterrupted
	case ctx.Err() != nil:
		result = job.PhaseCancelled
	default:
		result = job.PhaseFailed
	}
	if e.o.Observer != nil {
		e.o.Observer.PhaseEnded(j, phase, began, result, err)
	}
}

// observeLeaks tells how many VMs should not be on the host.
func (e *Executor) observeLeaks(vms int) {
	if e.o.Observer != nil {
		e.o.Observer.Leaked(vms)
	}
}
