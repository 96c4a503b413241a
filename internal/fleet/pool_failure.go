package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// longestBackoff is the longest wait of a pool between two tries after repeated failures.
const longestBackoff = 10 * time.Minute

// mayTry reports whether a pool may make members: it has not stopped, and has waited after its last
// failure, longer for each failure in a row.
func (f *Fleet) mayTry(p job.Pool) bool {
	if p.Failure == nil {
		return true
	}
	wait := min(longestBackoff, f.o.PoolInterval<<min(p.Failure.Row, 10))
	return !p.Stopped() && now().After(p.Failure.At.Add(wait))
}

// anyNumber matches what differs between texts of the same failure.
var anyNumber = lazyregexp.New(`[0-9a-f]{8,}|[0-9]+`)

// noteFailure counts, once, that a member could not be made or suspended.
func (f *Fleet) noteFailure(ctx context.Context, m vm.VM, text string, suspending bool) {
	counted := false
	_, err := f.o.Store.UpdatePool(ctx, m.Member.Pool, func(p *job.Pool) error {
		last := job.PoolFailure{}
		if p.Failure != nil {
			last = *p.Failure
		}
		if counted = last.Maker != m.Job; !counted {
			return nil
		}
		next := job.PoolFailure{Error: text, Count: 1, Row: last.Row + 1, Maker: m.Job, At: now(), Generation: m.Member.Generation, Suspending: suspending}
		if anyNumber.ReplaceAllString(last.Error, "#") == anyNumber.ReplaceAllString(next.Error, "#") {
			next.Count = last.Count + 1
		}
		p.Failure = &next
		return nil
	})
	if err != nil && !errors.Is(err, job.ErrNotFound) && ctx.Err() == nil {
		f.o.Log.Error("note a pool's failure failed", "pool", m.Member.Pool, "err", err)
	}
	if counted && err == nil {
		f.o.Log.Warn("a pool's member could not be made", "pool", m.Member.Pool, "job_id", m.Job, "err", text)
		f.o.Changes.Add(job.PoolEvent{Pool: m.Member.Pool, Kind: job.PoolFailed, Job: m.Job, Detail: text})
	}
}

// forgive forgets a pool's failures once a member was made after them, or when the pool's
// generation has changed. It returns the updated pool.
func (f *Fleet) forgive(ctx context.Context, p job.Pool, own []vm.VM, generation string) job.Pool {
	if p.Failure == nil {
		return p
	}
	failed := *p.Failure
	over := generation != "" && failed.Generation != generation ||
		slices.ContainsFunc(own, func(m vm.VM) bool {
			return m.Own.ReadyAt.After(failed.At) && (!failed.Suspending || m.Member.State == vm.MemberHibernated)
		})
	if !over {
		return p
	}
	next, err := f.o.Store.UpdatePool(ctx, p.Name, func(p *job.Pool) error {
		if p.Failure != nil && p.Failure.Maker == failed.Maker {
			p.Failure = nil
		}
		return nil
	})
	if err != nil {
		return p
	}
	return next
}
