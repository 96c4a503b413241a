package executor

import (
	"context"
	"errors"

	"linus/internal/job"
)

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
