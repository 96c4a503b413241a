package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// nobody is an observer that ignores everything.
type nobody struct{}

func (nobody) Changed(job.Job, []job.Event)                                  {}
func (nobody) PhaseEnded(job.Job, string, time.Time, job.PhaseResult, error) {}
func (nobody) Leaked(int)                                                    {}
func (nobody) Pooled(job.PoolEvent)                                          {}
func (nobody) Cordoned(string, bool, job.Caller)                             {}
func (nobody) TokenChanged(job.Token, bool, job.Caller)                      {}
func (nobody) Notified(job.Delivery)                                         {}

// phaseResult returns how a phase that ran under ctx ended.
func phaseResult(ctx context.Context, err error) job.PhaseResult {
	switch {
	case err == nil:
		return job.PhaseOK
	case errors.Is(context.Cause(ctx), job.ErrDetach):
		return job.PhaseInterrupted
	case ctx.Err() != nil:
		return job.PhaseCancelled
	}
	return job.PhaseFailed
}
