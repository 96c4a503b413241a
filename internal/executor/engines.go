package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/sleep"
)

// Engines connects engines that share a store. This engine is a member while it renews its lease.
// The others evict an engine that has not renewed its lease: its jobs and locks are free then, and
// nothing it still writes has an effect.
type Engines interface {
	// Join makes this engine a member with a new ID and a lease. What it held as an earlier member
	// becomes free.
	Join(ctx context.Context, about job.EngineInfo, lease time.Duration) (id string, err error)
	// Renew extends the lease; job.ErrDetach if this engine is no longer a member.
	Renew(ctx context.Context, lease time.Duration) error
	// Leave ends the membership.
	Leave(ctx context.Context) error
	// Drain records that this engine takes no more jobs.
	Drain(ctx context.Context) error
	// Engines returns every member, oldest first; one of them leads.
	Engines(ctx context.Context) ([]job.EngineInfo, error)
	// Evict ends the membership of an engine whose lease has ended or that is known to be dead, and
	// reports whether it did.
	Evict(ctx context.Context, id string, dead bool) (bool, error)
	lock.Engines
	// Locked returns what the engine that holds a lock does meanwhile; empty if none holds it.
	Locked(ctx context.Context, name string) (string, error)
	// Listen calls heard for each notice from another engine, one at a time, until ctx ends.
	// Changes of jobs and pools send their own notices.
	Listen(ctx context.Context, heard func(job.Notice)) error
	// Tell sends a notice to the other engines.
	Tell(ctx context.Context, n job.Notice) error
}

// serve works until running ends: alone all the time, among other engines as long as this one is a
// member, and then as a new member.
func (e *Executor) serve(running context.Context, m membership) {
	defer close(e.done)
	for {
		e.hold(m)
		if running.Err() != nil {
			break
		}
		l, err := e.enroll(running)
		for ; err != nil; l, err = e.enroll(running) {
			e.o.Log.Warn("joining the other engines failed, will be tried again", "err", err)
			if sleep.For(running, e.o.EngineLease/renewals) != nil {
				return
			}
		}
		m = e.open(running, l)
	}
	if e.o.Engines == nil {
		return
	}
	leaving, end := context.WithTimeout(context.WithoutCancel(running), e.o.EngineLease)
	defer end()
	if err := e.o.Engines.Leave(leaving); err != nil {
		e.o.Log.Warn("leaving the other engines failed: they wait for the end of the lease", "err", err)
	}
}

// enroll makes this engine a member and returns the jobs that it may adopt.
func (e *Executor) enroll(ctx context.Context) (left, error) {
	if e.o.Engines != nil {
		began := time.Now()
		id, err := e.o.Engines.Join(ctx, e.o.About, e.o.EngineLease)
		if err != nil {
			return left{}, err
		}
		e.leaseUntil = began.Add(e.o.EngineLease - e.leaseMargin())
		e.mu.Lock()
		e.id = id
		e.mu.Unlock()
		if e.o.Joined != nil {
			e.o.Joined(id)
		}
		e.o.Log.Info("joined the engines of the database", "engine", id)
	}
	return e.unfinished(ctx, true)
}

// membership is the time in which this engine may work: until it stops or loses its lease.
// Everything in progress is then left as it is.
type membership struct {
	ctx context.Context //nolint:containedctx // it is the membership
	end context.CancelCauseFunc
}

// open begins a membership and adopts the jobs in l.
func (e *Executor) open(running context.Context, l left) membership {
	ctx, end := context.WithCancelCause(running)
	e.o.Fleet.Begin(ctx)
	e.adopt(ctx, l)
	return membership{ctx, end}
}

// hold works until the membership ends.
func (e *Executor) hold(m membership) {
	defer m.end(nil)
	if e.o.Engines != nil {
		e.work.Go(func() {
			e.keepLease(m.ctx)
			m.end(job.ErrDetach)
		})
		e.work.Go(func() { e.tendEngines(m.ctx) })
		e.work.Go(func() { e.handlePeerNotices(m.ctx) })
	}
	e.dispatch(m.ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue, e.unscanned = queue{}, 0
}

// renewals is how often a lease is renewed within its duration.
const renewals = 3

// leaseMargin is how long before the end of its lease an engine stops by itself: for a clock that
// runs slower than the database's, and for work to end.
func (e *Executor) leaseMargin() time.Duration { return e.o.EngineLease / 5 }

// keepLease renews the lease until ctx ends or the lease is lost. It uses the monotonic clock: time
// passes even if a renewal hangs.
func (e *Executor) keepLease(ctx context.Context) {
	tick := time.NewTicker(e.o.EngineLease / renewals)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.leaseDoubted:
		}
		began, renewed := time.Now(), make(chan error, 1)
		e.work.Go(func() { renewed <- e.o.Engines.Renew(ctx, e.o.EngineLease) })
		over := time.NewTimer(time.Until(e.leaseUntil))
		var err error
		select {
		case err = <-renewed:
		case <-over.C:
			err = errors.New("the database does not answer")
		case <-ctx.Done():
		}
		over.Stop()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			e.leaseUntil = began.Add(e.o.EngineLease - e.leaseMargin())
		case errors.Is(err, job.ErrDetach) || !time.Now().Before(e.leaseUntil):
			e.o.Log.Error("the lease is lost: this engine leaves its jobs to the others, and joins again", "err", err)
			return
		default:
			e.o.Log.Warn("renewing the lease failed, will be tried again", "err", err)
		}
	}
}

// tendEngines takes over from dead engines, and checks what other engines did in case a notice was lost.
func (e *Executor) tendEngines(ctx context.Context) {
	for {
		again, err := e.takeOver(ctx)
		if err == nil {
			err = e.catchUp(ctx)
		}
		if err != nil && ctx.Err() == nil {
			e.o.Log.Warn("looking at the other engines failed, will be tried again", "err", err)
		}
		if sleep.For(ctx, again) != nil {
			return
		}
	}
}

// takeOver evicts the engines whose lease has ended. It returns the time after which to do so
// again: when another lease ends, at the latest when this engine's is to be renewed.
func (e *Executor) takeOver(ctx context.Context) (again time.Duration, err error) {
	again = e.o.EngineLease / renewals
	engines, err := e.o.Engines.Engines(ctx)
	if err != nil {
		return again, err
	}
	var evicting sync.WaitGroup
	problems, errs := make([]string, len(engines)), make([]error, len(engines))
	for i, other := range engines {
		dead := other.ID == e.o.Predecessor
		switch {
		case other.Self:
		case other.Lease > 0 && !dead:
			again = min(again, other.Lease+afterLease)
		default: // in parallel: the host may not respond to one of them
			evicting.Go(func() { problems[i], errs[i] = e.evict(ctx, other, dead) })
		}
	}
	evicting.Wait()
	found := map[string]string{}
	for i, problem := range problems {
		if problem != "" {
			found[engines[i].ID] = problem
			again = min(again, e.o.EngineLease/retries)
		}
	}
	e.mu.Lock()
	e.problems = found
	e.mu.Unlock()
	return again, errors.Join(errs...)
}

const (
	// afterLease is how long after the end of a lease the engine is taken over, so that the
	// database sees the end, too.
	afterLease = 50 * time.Millisecond
	// retries is how often a failed take-over is tried again within the duration of a lease.
	retries = 15
)

// evict ends the membership of a dead engine; any engine with room may then take its jobs. First it
// makes the host refuse the dead engine's further commands: if that fails, the engine keeps its
// jobs, and evict returns the problem. A host that does not respond within the duration of a lease
// is asked again, so that its return is noticed.
func (e *Executor) evict(ctx context.Context, other job.EngineInfo, dead bool) (problem string, err error) {
	if e.o.Fence != nil {
		fencing, end := context.WithTimeout(ctx, e.o.EngineLease)
		defer end()
		if err := e.o.Fence(fencing, other.ID); err != nil {
			e.o.Log.Warn("a dead engine's jobs cannot be taken over", "engine", other.ID, "host", other.Host, "jobs", other.Jobs, "err", err)
			return "the host cannot be told to refuse it: " + err.Error(), nil
		}
	}
	evicted, err := e.o.Engines.Evict(ctx, other.ID, dead)
	if evicted {
		e.o.Log.Warn("an engine is dead: its jobs are taken over", "engine", other.ID, "host", other.Host, "pid", other.PID, "jobs", other.Jobs)
	}
	return "", err
}

// catchUp does what notices of other engines' changes would have caused, since any notice may be lost.
func (e *Executor) catchUp(ctx context.Context) error {
	e.mu.Lock()
	var runs []*run
	for _, r := range e.runs {
		runs = append(runs, r)
	}
	for key := range e.watchers {
		e.wakeWatchers(key)
	}
	free := e.slots() < e.o.MaxJobs
	e.mu.Unlock()
	for _, r := range runs {
		if err := e.applyRequests(ctx, r.id); err != nil {
			return err
		}
	}
	if free {
		e.mu.Lock()
		before := slices.Clone(e.queue.waiting)
		e.mu.Unlock()
		waiting, err := e.o.Queue.Waiting(ctx)
		if err != nil {
			return err
		}
		e.mu.Lock()
		for _, id := range before { // not IDs added meanwhile: the store was read without them
			if _, there := slices.BinarySearch(waiting, id); !there {
				e.queue.remove(id)
			}
		}
		for _, id := range waiting {
			if e.runs[id] == nil {
				e.queue.add(id)
			}
		}
		e.mu.Unlock()
	}
	signal(e.reopened)
	return nil
}

// applyRequests applies what was asked of a job at another engine to the job's run here, if it has one.
func (e *Executor) applyRequests(ctx context.Context, id string) error {
	j, err := e.o.Jobs.Job(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if j.Outcome != nil {
		e.interrupt(id, j.SkipCollect, errCancelled) // the working phases are over, whoever decided that
	}
	return nil
}

// take makes this engine the one that works on a job. It returns false if another engine does, or
// the job has ended or is gone.
func (e *Executor) take(ctx context.Context, id string) (job.Job, bool, error) {
	j, taken, err := e.o.Queue.Take(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return j, false, nil
	}
	return j, taken, err
}

// Leads reports whether this engine does the work that one engine does for all, such as sweeping
// and tending pools.
func (e *Executor) Leads(ctx context.Context) bool {
	return job.Leads(ctx, e.o.Engines, e.o.Log)
}

// Engines returns every engine that shares the store.
func (e *Executor) Engines(ctx context.Context) ([]job.EngineInfo, error) {
	e.mu.Lock()
	self := e.o.About
	self.Jobs, self.Leads, self.Self, self.Draining = len(e.runs), true, true, e.draining
	problems := e.problems
	e.mu.Unlock()
	if e.o.Engines == nil {
		return []job.EngineInfo{self}, nil
	}
	engines, err := e.o.Engines.Engines(ctx)
	for i := range engines {
		engines[i].Problem = problems[engines[i].ID]
	}
	return engines, err
}

// Drain makes this engine take no more jobs. It finishes those it works on.
func (e *Executor) Drain(ctx context.Context) error {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
	if e.o.Engines == nil {
		return nil
	}
	return e.o.Engines.Drain(ctx)
}

func (e *Executor) isOthers(j job.Job) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return j.Engine != "" && j.Engine != e.id
}

func (e *Executor) isDraining() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.draining
}

// Drained reports whether this engine is draining and works on nothing any more.
func (e *Executor) Drained() bool {
	e.mu.Lock()
	drained := e.draining && len(e.runs) == 0
	e.mu.Unlock()
	return drained && !e.o.Fleet.Working()
}
