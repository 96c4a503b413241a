package fleet

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

// ping checks that warm members answer, and prepares each for the job that will claim it. A member
// that is stopped or gone is given up at once, a running one when it fails to answer again. A
// member without a known host key is left to the job that claims it: nobody logs in there before.
func (f *Fleet) ping(ctx context.Context, members []vm.VM) {
	var asking sync.WaitGroup
	for _, m := range members {
		if m.Member.State != vm.MemberWarm || m.HostKey == "" || !f.pools.due(m.Job, 3*f.o.PoolInterval) {
			continue
		}
		asking.Go(func() {
			timed, end := context.WithTimeoutCause(ctx, pingTime, fmt.Errorf("no answer within %s", pingTime))
			defer end()
			err := f.o.Guest.Ping(timed, asJob(m))
			if err == nil {
				err = f.o.Guest.Warm(timed, asJob(m))
			}
			switch v, readErr := f.o.Store.VM(ctx, m.Job); {
			case readErr != nil:
			case v.State.Settled() || v.Unwanted || v.Member != nil && v.Member.State == vm.MemberDoomed:
				f.o.Guest.Forget(asJob(m)) // its connections may have been closed before this ping opened one
				return
			case v.Member == nil: // it belongs to somebody now
				return
			}
			silent := f.pools.answered(m.Job, err == nil)
			if err == nil || ctx.Err() != nil {
				return
			}
			status, asked := f.o.Provider.Status(ctx, m)
			switch {
			case asked != nil: // the host does not answer either
			case status == vm.Stopped || status == vm.Gone || status == vm.Unproven:
				f.giveUp(ctx, m, "its VM is "+string(status)+" on the host, and linus did not do it")
			case silent >= pingsMissed:
				f.giveUp(ctx, m, "it does not answer: "+err.Error())
			}
		})
	}
	asking.Wait()
	f.pools.forget(members)
}

// contact is when a warm member last answered.
type contact struct {
	at     time.Time
	missed int // pings missed in a row since
}

// due reports whether a member has not answered for at least that long.
func (p *pools) due(maker string, after time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.heard[maker].at) >= after
}

// answered records whether a member has answered, and returns how many times in a row it has not.
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

// forget drops the state of members that no longer exist.
func (p *pools) forget(members []vm.VM) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.heard, func(maker string, _ contact) bool {
		return !slices.ContainsFunc(members, func(m vm.VM) bool { return m.Job == maker })
	})
}

// suspending returns how many of the members in making are being suspended.
func (f *Fleet) suspending(making []vm.VM) int {
	f.pools.mu.Lock()
	defer f.pools.mu.Unlock()
	n := 0
	for _, m := range making {
		if f.pools.busy[m.Job] {
			n++
		}
	}
	return n
}

// hibernate suspends a warm member in the background, and reports whether it began: a job may have claimed
// the member. Meanwhile the member counts as being made: if this process ends, the next one gives it up.
func (f *Fleet) hibernate(ctx context.Context, m vm.VM) bool {
	f.pools.mu.Lock()
	f.pools.busy[m.Job] = true
	f.pools.mu.Unlock()
	if err := f.becomes(ctx, m, vm.MemberWarm, vm.MemberMaking); err != nil {
		f.pools.mu.Lock()
		delete(f.pools.busy, m.Job)
		f.pools.mu.Unlock()
		return false
	}
	f.background.Go(func() {
		f.o.Guest.Forget(asJob(m))
		err := f.o.Provider.SuspendVM(ctx, m)
		if err == nil {
			err = f.becomes(ctx, m, vm.MemberMaking, vm.MemberHibernated)
		}
		if err != nil && !errors.Is(err, errChanged) && ctx.Err() == nil {
			f.noteFailure(ctx, m, err.Error(), true)
			if err := f.doom(ctx, m.Job, vm.MemberMaking, "it could not be suspended: "+err.Error()); err != nil {
				f.o.Log.Error("giving up a pool's member failed", "job_id", m.Job, "err", err)
			}
		}
		f.pools.mu.Lock()
		delete(f.pools.busy, m.Job)
		f.pools.mu.Unlock()
		signal(f.pools.wake)
	})
	return true
}

// becomes moves a member from one state to another. It returns errChanged if the member is not in
// state from.
func (f *Fleet) becomes(ctx context.Context, m vm.VM, from, to vm.MemberState) error {
	_, err := f.update(ctx, m.Job, func(v *vm.VM) ([]job.Event, error) {
		if v.Member == nil || v.Member.State != from {
			return nil, errChanged
		}
		v.Member.Become(to, now())
		return nil, nil
	})
	return err
}
