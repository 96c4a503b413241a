package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// enqueue queues a new job. A job without its own VM needs no slot.
func (e *Executor) enqueue(j job.Job) {
	e.mu.Lock()
	switch {
	case e.runs[j.ID] != nil: // adopted as soon as it was stored
	case !j.WantsVM():
		e.queue.addReady(j.ID)
	default:
		e.queue.addOf(j.ID, j.Principal)
	}
	e.mu.Unlock()
	e.expect()
	e.poke()
}

func (e *Executor) poke() { signal(e.wake) }

// dispatch starts waiting jobs as slots become free. It periodically resumes unfinished jobs that
// have no run, such as those whose VM could not be destroyed.
func (e *Executor) dispatch(ctx context.Context) {
	defer e.work.Wait()
	e.expect()
	e.work.Go(func() { e.sweep(ctx) })
	e.work.Go(func() { e.notifyAll(ctx) })
	e.work.Go(func() { e.o.Fleet.Tend(ctx) })
	if e.o.Tokens != nil {
		e.work.Go(func() { e.o.Tokens.Watch(ctx) })
	}
	if e.o.Credentials != nil {
		e.work.Go(func() { e.o.Credentials.Watch(ctx) })
	}
	if e.o.Schedules != nil {
		e.work.Go(func() { e.o.Schedules.Tend(ctx) })
	}
	if e.o.HostTests != nil {
		e.work.Go(func() { e.o.HostTests.Tend(ctx) })
	}
	tick := time.NewTicker(e.o.CleanupInterval)
	defer tick.Stop()
	for {
		e.startWaiting(ctx)
		e.expect()
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			continue
		case <-e.reopened:
		case <-tick.C:
		}
		left, err := e.unfinished(ctx, false)
		if err != nil {
			e.o.Log.Error("find unfinished jobs failed", "err", err)
			continue
		}
		e.adopt(ctx, left)
	}
}

func (e *Executor) expect() {
	e.mu.Lock()
	e.demands++
	d := job.Demand{Seq: e.demands, Waits: !e.queue.empty()}
	for id, r := range e.runs {
		if !r.shares {
			d.Starting = append(d.Starting, id)
		}
	}
	e.mu.Unlock()
	e.o.Fleet.Expect(d)
}

// left are the unfinished jobs in the store.
type left struct {
	begun   []job.Job
	waiting []string // jobs that wait for a slot; nil: not read
	counted int      // number of Executor.unscanned that this read covers
}

// unfinished reads the jobs that adopt takes. Waiting jobs are already in the queue: they are read
// only at the engine's start, or if one may be missing there.
func (e *Executor) unfinished(ctx context.Context, start bool) (l left, err error) {
	e.mu.Lock()
	l.counted = e.unscanned
	e.mu.Unlock()
	if l.begun, err = e.o.Jobs.InProgress(ctx); err == nil && (start || l.counted > 0) {
		l.waiting, err = e.o.Queue.Waiting(ctx)
	}
	return l, err
}

// adopt resumes jobs that have begun, unless another engine works on them, and queues the others.
func (e *Executor) adopt(ctx context.Context, l left) {
	for _, j := range l.begun {
		switch {
		case e.runOf(j.ID) != nil || e.isOthers(j):
		case j.Status == job.Pending && j.Outcome == nil:
			e.mu.Lock()
			e.queue.addReady(j.ID)
			e.mu.Unlock()
		default:
			e.resume(ctx, j)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range l.waiting {
		if e.runs[id] == nil {
			e.queue.add(id)
		}
	}
	e.unscanned -= l.counted
}

func (e *Executor) resume(ctx context.Context, j job.Job) {
	if e.o.Engines != nil {
		if e.isDraining() && j.Engine == "" {
			return
		}
		taken, err := false, error(nil)
		if j, taken, err = e.take(ctx, j.ID); err != nil && ctx.Err() == nil {
			e.o.Log.Error("taking up a job that had begun failed", "job_id", j.ID, "err", err)
		}
		if !taken {
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue.remove(j.ID)
	if e.runs[j.ID] == nil {
		e.o.Log.Info("job adopted", "job_id", j.ID, "status", j.Status, "phase", j.Phase)
		e.launch(ctx, j, true)
	}
}

// recheckStore makes the dispatcher look in the store for a job that may be there without being queued.
func (e *Executor) recheckStore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unscanned++
}

// slots returns the number of runs with their own VM. The caller holds e.mu.
func (e *Executor) slots() int {
	n := 0
	for _, r := range e.runs {
		if !r.shares {
			n++
		}
	}
	return n
}

// startWaiting starts the jobs that need no slot and, while slots are free, those whose turn it is. It
// reads a job only when it is about to start it. Another engine that shares the store may be faster.
func (e *Executor) startWaiting(ctx context.Context) {
	for !e.isDraining() {
		e.learnPrincipals(ctx)
		e.mu.Lock()
		id, ok := e.queue.next(e.slots() < e.o.MaxJobs)
		e.mu.Unlock()
		if !ok {
			return
		}
		j, taken, err := e.take(ctx, id)
		e.mu.Lock()
		e.full = errors.Is(err, job.ErrNoSlot)
		e.mu.Unlock()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, job.ErrNoSlot) {
				e.o.Log.Error("taking up a waiting job failed", "job_id", id, "err", err)
			}
			return
		}
		e.mu.Lock()
		e.queue.remove(id)
		if taken && e.runs[id] == nil {
			e.queue.begun(id, j.Principal)
			e.launch(ctx, j, false)
		}
		e.mu.Unlock()
	}
}

// learnPrincipals reads the principals of waiting jobs if they are unknown and matter.
func (e *Executor) learnPrincipals(ctx context.Context) {
	e.mu.Lock()
	learn := e.queue.unknown && len(e.queue.waiting) > 1 && e.slots() < e.o.MaxJobs
	if learn {
		e.queue.unknown = false // before the read: jobs added meanwhile set it again
	}
	e.mu.Unlock()
	if !learn {
		return
	}
	principals, err := e.o.Queue.WaitingOf(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue.know(principals)
	if err != nil {
		e.queue.unknown = true
	}
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("reading the owners of the waiting jobs failed", "err", err)
	}
}
