package executor_test

import (
	"context"
	"sync/atomic"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
)

// unreachableGuest is a guest whose connection breaks under the first pushes
// and starts, each with the error the guest package gives for that.
type unreachableGuest struct {
	executor.Runner
	pushes, starts atomic.Int32
}

var errUnreachable = &job.HostError{Op: "start the task", Class: job.HostUnreachable, Text: "the connection ended"}

func (g *unreachableGuest) Push(ctx context.Context, j job.Job, p job.Payload) error {
	if g.pushes.Add(1) <= 2 {
		return errUnreachable
	}
	return g.Runner.Push(ctx, j, p)
}

func (g *unreachableGuest) Start(ctx context.Context, j job.Job) (bootID string, err error) {
	if g.starts.Add(1) <= 2 {
		return "", errUnreachable
	}
	return g.Runner.Start(ctx, j)
}

func TestStart_VMOutOfReachForAWhile(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.Runner = &unreachableGuest{Runner: r.fake}
	r.restart()
	id := r.submit()
	if j := r.until(id, job.Job.Done); j.Status != job.Success {
		t.Errorf("job is %s: %+v", j.Status, j.Outcome)
	}
}
