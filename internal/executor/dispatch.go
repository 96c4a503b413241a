package executor

import (
	"context"
	"slices"
	"time"

	"linus/internal/job"
)

// enqueue adds a new job at the end of the queue.
func (e *Executor) enqueue(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.waiting, id) && e.runs[id] == nil { // it was adopted as soon as it was stored
		e.waiting = append(e.waiting, id)
	}
	e.poke()
}

// poke wakes the dispatcher.
func (e *Executor) poke() { signal(e.wake) }

// dispatch starts waiting jobs as slots become free. Periodically it resumes unfinished
// jobs that have no run, such as those whose VM could not be destroyed, until it is gone.
func (e *Executor) dispatch(ctx context.Context) {
	defer close(e.done)
	defer e.work.Wait()
	e.work.Go(func() { e.sweep(ctx) })
	tick := time.NewTicker(e.o.CleanupInterval)
	defer tick.Stop()
	for {
		e.startWaiting(ctx)
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			continue
		case <-e.again:
		case <-tick.C:
			if err := e.expire(ctx); err != nil && ctx.Err() == nil {
				e.o.Log.Error("find expired VMs failed", "err", err)
			}
		}
		left, err := e.o.Store.Unfinished(ctx)
		if err != nil {
			e.o.Log.Error("find unfinished jobs failed", "err", err)
			continue
		}
		e.adopt(ctx, left)
	}
}

// adopt resumes jobs that had begun and queues those that had not.
func (e *Executor) adopt(ctx context.Context, unfinished []job.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range unfinished {
		switch {
		case e.runs[j.ID] != nil || slices.Contains(e.waiting, j.ID):
		case j.Status == job.Pending && j.Outcome == nil:
			e.waiting = append(e.waiting, j.ID)
		default:
			e.o.Log.Info("job adopted", "job_id", j.ID, "status", j.Status, "phase", j.Phase)
			e.launch(ctx, j, true)
		}
	}
	e.leftover = 0
}

// slots returns the number of runs with a VM of their own. e.mu is held.
func (e *Executor) slots() int {
	n := 0
	for _, r := range e.runs {
		if !r.shares {
			n++
		}
	}
	return n
}

// startWaiting starts the first jobs of the queue while slots are free. A waiting job
// that was cancelled, or that shares a VM, needs no slot.
func (e *Executor) startWaiting(ctx context.Context) {
	e.mu.Lock()
	waiting := slices.Clone(e.waiting)
	e.mu.Unlock()
	for _, id := range waiting {
		j, err := e.o.Store.Job(ctx, id)
		if err != nil {
			if ctx.Err() == nil {
				e.o.Log.Error("read waiting job failed", "job_id", id, "err", err)
			}
			return
		}
		e.mu.Lock()
		if e.slots() < e.o.MaxJobs || j.Outcome != nil || j.Shares() {
			e.waiting = slices.DeleteFunc(e.waiting, func(w string) bool { return w == id })
			e.launch(ctx, j, false)
		}
		e.mu.Unlock()
	}
}
