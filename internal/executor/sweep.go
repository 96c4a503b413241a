package executor

import (
	"context"
	"time"

	"linus/internal/job"
)

// sweep periodically finds what no job's own life takes care of.
func (e *Executor) sweep(ctx context.Context) {
	tick := time.NewTicker(e.o.SweepInterval)
	defer tick.Stop()
	for {
		if e.Leads(ctx) {
			e.reapVMs(ctx)
			e.dropOldJobs(ctx)
		}
		e.dropKeys(ctx)
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

// reapVMs has the fleet compared with the host, once there was a job.
func (e *Executor) reapVMs(ctx context.Context) {
	page, err := e.o.Jobs.List(ctx, job.Filter{Limit: 1})
	if err != nil || len(page.Jobs) == 0 {
		return
	}
	if leaked := e.o.Fleet.Sweep(ctx); leaked >= 0 {
		e.o.Observer(job.Leaked(leaked))
	}
}
