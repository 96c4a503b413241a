package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// ping checks that warm members answer, and has each prepared for the job that will
// claim it. One that is stopped or gone is given up at once; one that runs, when it does
// not answer again. One that is known by its address only is left to the job that claims
// it: nobody logs in there before.
func (e *Executor) ping(ctx context.Context, members []job.Job) {
	var asking sync.WaitGroup
	for _, m := range members {
		if m.Member.State != job.MemberWarm || m.VM.HostKey == "" || !e.pools.due(m.ID, 3*e.o.PoolInterval) {
			continue
		}
		asking.Go(func() {
			timed, end := context.WithTimeoutCause(ctx, pingTime, fmt.Errorf("no answer within %s", pingTime))
			defer end()
			err := e.o.Guest.Ping(timed, m)
			if err == nil {
				err = e.o.Guest.Warm(timed, m)
			}
			if j, readErr := e.o.Jobs.Job(ctx, m.ID); readErr == nil && (j.Member.State == job.MemberDoomed || j.VM.State.Settled()) {
				e.o.Guest.Forget(m) // it may have been forgotten while it was asked
				return
			}
			silent := e.pools.answered(m.ID, err == nil)
			if err == nil || ctx.Err() != nil {
				return
			}
			status, asked := e.o.Provider.Status(ctx, *m.VM)
			switch {
			case asked != nil: // the host does not answer either
			case status == vm.Stopped || status == vm.Gone || status == vm.Unproven:
				e.giveUp(ctx, m, "its VM is "+string(status)+" on the host, and not by us")
			case silent >= pingsMissed:
				e.giveUp(ctx, m, "it does not answer: "+err.Error())
			}
		})
	}
	asking.Wait()
	e.pools.forget(members)
}

// contact is how a warm member has answered.
type contact struct {
	at     time.Time // the last time
	missed int       // how often in a row it has not since
}

// due reports whether a member has not answered for that long.
func (p *pools) due(maker string, after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.heard[maker].at) >= after
}

// answered notes whether a member has answered, and returns how often in a row it has
// not.
func (p *pools) answered(maker string, well bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.heard[maker]
	if well {
		c = contact{at: time.Now()}
	} else {
		c.missed++
	}
	p.heard[maker] = c
	return c.missed
}

// forget drops what is known of members that are no more.
func (p *pools) forget(members []job.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.heard, func(maker string, _ contact) bool {
		return !slices.ContainsFunc(members, func(m job.Job) bool { return m.ID == maker })
	})
}

// suspending returns how many of the members being made are being suspended.
func (e *Executor) suspending(making []job.Job) int {
	e.pools.mu.Lock()
	defer e.pools.mu.Unlock()
	n := 0
	for _, m := range making {
		if e.pools.busy[m.ID] {
			n++
		}
	}
	return n
}

// hibernate suspends a warm member in the background, and reports whether it began: a job
// may have claimed it. Meanwhile it counts as being made: if this process ends, the next
// one gives it up.
func (e *Executor) hibernate(ctx context.Context, m job.Job) bool {
	e.pools.mu.Lock()
	e.pools.busy[m.ID] = true
	e.pools.mu.Unlock()
	if err := e.becomes(ctx, m, job.MemberWarm, job.MemberMaking); err != nil {
		e.pools.mu.Lock()
		delete(e.pools.busy, m.ID)
		e.pools.mu.Unlock()
		return false
	}
	e.work.Go(func() {
		e.o.Guest.Forget(m)
		err := e.o.Provider.SuspendVM(ctx, *m.VM)
		if err == nil {
			err = ignoring(errChanged, e.becomes(ctx, m, job.MemberMaking, job.MemberHibernated))
		}
		if err != nil && ctx.Err() == nil {
			e.noteFailure(ctx, m, err.Error(), true)
			if err := e.doom(ctx, m.ID, job.MemberMaking, "it could not be suspended: "+err.Error()); err != nil {
				e.o.Log.Error("give a pool's member up failed", "job_id", m.ID, "err", err)
			}
		}
		e.pools.mu.Lock()
		delete(e.pools.busy, m.ID)
		e.pools.mu.Unlock()
		signal(e.pools.wake)
	})
	return true
}

// becomes moves a member from one state to another; errChanged if it is not in the
// first.
func (e *Executor) becomes(ctx context.Context, m job.Job, from, to job.MemberState) error {
	_, err := e.update(ctx, m.ID, func(j *job.Job) ([]job.Event, error) {
		if j.Member.State != from {
			return nil, errChanged
		}
		j.Member.Become(to, now())
		return nil, nil
	})
	return err
}

// ignoring returns err, or nil if it is what.
func ignoring(what, err error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
