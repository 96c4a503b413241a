package executor_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/vm"
)

// claimsFirst is a store in which a job claims a member just before the change that gives
// it up, and that keeps what this change came to.
type claimsFirst struct {
	fleet.Store
	maker atomic.Value // ID of the member; empty: not yet
	came  chan error
}

func (s *claimsFirst) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	givesUp := false
	if id == s.maker.Load() {
		_, _ = s.Store.UpdateVM(ctx, id, func(v *vm.VM) ([]job.Event, error) { // changes nothing
			_, err := change(v)
			givesUp = err == nil && v.Member.State == vm.MemberDoomed
			return nil, errors.New("only looked")
		})
	}
	if !givesUp || !s.maker.CompareAndSwap(id, "") {
		return s.Store.UpdateVM(ctx, id, change)
	}
	claim := func(v *vm.VM) ([]job.Event, error) {
		v.Member.Become(vm.MemberClaimed, time.Now())
		return nil, nil
	}
	if v, err := s.Store.UpdateVM(ctx, id, claim); err != nil {
		return v, err
	}
	v, err := s.Store.UpdateVM(ctx, id, change)
	s.came <- err
	return v, err
}

// A pool that gives a member up does so by what it has seen of it: if a job has claimed
// the member since, the VM is the job's.
func TestPool_MemberClaimedAsItIsGivenUpIsTheJobs(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	s := &claimsFirst{Store: r.store, came: make(chan error, 1)}
	s.maker.Store("")
	r.vms.Store = s
	r.restart()
	r.newPool(1)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	s.maker.Store(p.Members[0].Maker)
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{}.Change()); err != nil {
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
