package executor

import (
	"context"
	"time"
)

func (e *Executor) sweep(ctx context.Context) {
	tick := time.NewTicker(e.o.SweepInterval)
	defer tick.Stop()
	for {
		if e.Leads(ctx) {
			e.dropOldJobs(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *Executor) dropOldJobs(ctx context.Context) {
	if e.o.Retention == 0 {
		return
	}
	n, err := e.o.Jobs.Forget(ctx, now().Add(-e.o.Retention))
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("delete old jobs failed", "err", err)
	}
	if n > 0 {
		e.o.Log.Info("old jobs deleted", "count", n)
	}
}
