package executor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
)

// claimsFirst is a store in which a job claims a member just before the change that gives
// it up, and that keeps what this change came to.
type claimsFirst struct {
	executor.JobStore
	maker atomic.Value // job ID of the member; empty: not yet
	came  chan error
}

func (s *claimsFirst) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	givesUp := false
	if id == s.maker.Load() {
		_, _ = s.JobStore.Update(ctx, id, func(j *job.Job) (job.Record, error) { // changes nothing
			_, err := change(j)
			givesUp = err == nil && j.Member.State == job.MemberDoomed
			return job.Record{}, errors.New("only looked")
		})
	}
	if !givesUp || !s.maker.CompareAndSwap(id, "") {
		return s.JobStore.Update(ctx, id, change)
	}
	claim := func(j *job.Job) (job.Record, error) {
		j.Member.Become(job.MemberClaimed, time.Now())
		return job.Record{}, nil
	}
	if j, err := s.JobStore.Update(ctx, id, claim); err != nil {
		return j, err
	}
	j, err := s.JobStore.Update(ctx, id, change)
	s.came <- err
	return j, err
}

// A pool that gives a member up does so by what it has seen of it: if a job has claimed
// the member since, the VM is the job's.
func TestPool_MemberClaimedAsItIsGivenUpIsTheJobs(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	s := &claimsFirst{JobStore: r.opts.Jobs, came: make(chan error, 1)}
	s.maker.Store("")
	r.opts.Jobs = s
	r.restart()
	r.newPool(1)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	r.wait(p.Members[0].Maker)
	s.maker.Store(p.Members[0].Maker)
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.came:
		if err == nil {
			t.Error("the claimed member was given up")
		}
	case <-time.After(time.Minute):
		t.Fatal("the member was not given up")
	}
}

// earlierFailure is a store that answers whoever asks under such a context with the
// pools' rows as they were before their last failure.
type earlierFailure struct{ executor.PoolStore }

type earlier struct{}

func (s earlierFailure) Pools(ctx context.Context) ([]job.Pool, error) {
	rows, err := s.PoolStore.Pools(ctx)
	if ctx.Value(earlier{}) != nil {
		for _, p := range rows {
			p.Failure.Count--
		}
	}
	return rows, err
}
