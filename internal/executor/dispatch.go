package executor

import (
	"context"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
)

// enqueue puts a new job at the end of the line.
func (e *Executor) enqueue(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.waiting, id) && e.live[id] == nil { // adopted as soon as it was stored
		e.waiting = append(e.waiting, id)
	}
	e.poke()
}

// poke wakes the dispatcher.
func (e *Executor) poke() { signal(e.wake) }

// dispatch starts waiting jobs as slots come free, and from time to time takes
// up unfinished jobs nobody works on: a VM that could not be destroyed is
// tried again until it is gone.
func (e *Executor) dispatch(ctx context.Context, unfinished []job.Job) {
	defer close(e.done)
	var jobs sync.WaitGroup
	defer e.verbs.Wait()
	defer jobs.Wait()

	e.adopt(ctx, &jobs, unfinished)
	jobs.Go(func() { e.sweep(ctx) })
	tick := time.NewTicker(e.CleanupInterval)
	defer tick.Stop()
	for {
		e.startWaiting(ctx, &jobs)
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			if !e.mustLook() {
				continue
			}
		case <-tick.C:
			if err := e.expire(ctx); err != nil && ctx.Err() == nil {
				e.Log.Error("find VMs whose time is over failed", "err", err)
			}
		}
		left, err := e.Store.Unfinished(ctx)
		if err != nil {
			e.Log.Error("find unfinished jobs failed", "err", err)
			continue
		}
		e.adopt(ctx, &jobs, left)
	}
}

// lookAgain makes the dispatcher take up a job that was done and is not any more.
func (e *Executor) lookAgain() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.look = true
	e.poke()
}

func (e *Executor) mustLook() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	look := e.look
	e.look = false
	return look
}

// adopt goes on with jobs that had begun and queues those that had not.
func (e *Executor) adopt(ctx context.Context, jobs *sync.WaitGroup, unfinished []job.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, j := range unfinished {
		switch {
		case e.live[j.ID] != nil || slices.Contains(e.waiting, j.ID):
		case j.Status == job.Pending && j.Outcome == nil:
			e.waiting = append(e.waiting, j.ID)
		default:
			e.Log.Info("job adopted", "job_id", j.ID, "status", j.Status, "phase", j.Phase)
			e.launch(ctx, jobs, j, true)
		}
	}
	e.leftover = 0
}

// slots counts the jobs at work that hold a VM of their own. e.mu is held.
func (e *Executor) slots() int {
	n := 0
	for _, r := range e.live {
		if !r.shares {
			n++
		}
	}
	return n
}

// startWaiting starts the jobs at the head of the line while slots are free.
// A waiting job that was cancelled, or that shares a VM, needs no slot.
func (e *Executor) startWaiting(ctx context.Context, jobs *sync.WaitGroup) {
	e.mu.Lock()
	waiting := slices.Clone(e.waiting)
	e.mu.Unlock()
	for _, id := range waiting {
		j, err := e.Store.Job(ctx, id)
		if err != nil {
			if ctx.Err() == nil {
				e.Log.Error("read waiting job failed", "job_id", id, "err", err)
			}
			return
		}
		e.mu.Lock()
		if e.slots() < e.MaxJobs || j.Outcome != nil || j.Shares() {
			e.waiting = slices.DeleteFunc(e.waiting, func(w string) bool { return w == id })
			e.launch(ctx, jobs, j, false)
		}
		e.mu.Unlock()
	}
}

// launch works on a job in a goroutine of its own. e.mu is held.
func (e *Executor) launch(ctx context.Context, jobs *sync.WaitGroup, j job.Job, adopted bool) {
	id := j.ID
	jobCtx, cancel := context.WithCancelCause(ctx)
	r := &run{
		id: id, shares: j.Shares(), cancel: cancel, adopted: adopted,
		changed: make(chan struct{}, 1), reported: make(chan struct{}, 1),
	}
	e.live[id] = r
	jobs.Go(func() {
		defer cancel(nil)
		done := e.work(ctx, jobCtx, r)
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.live, id)
		delete(e.masks, id)
		delete(e.stories, id)
		e.tell(id)
		if !done {
			e.leftover++
		}
		e.poke()
	})
}
