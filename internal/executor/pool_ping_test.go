package executor_test

import (
	"context"
	"sync"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// latePing is a guest and a host: a pool's check of a member is answered only once the
// member's VM is being destroyed.
type latePing struct {
	*providertest.Fake
	first             sync.Once
	asked, goOn, done chan struct{}
}

func (p *latePing) Ping(ctx context.Context, j job.Job) error {
	if j.VM.Member == nil || j.ID != j.VM.Job {
		return p.Fake.Ping(ctx, j)
	}
	p.first.Do(func() {
		close(p.asked)
		<-p.goOn
		_ = p.Fake.Ping(context.WithoutCancel(ctx), j)
		close(p.done)
	})
	return nil
}

func (p *latePing) Destroy(ctx context.Context, v vm.VM) error {
	select {
	case <-p.goOn:
	default:
		close(p.goOn)
		<-p.done
	}
	return p.Fake.Destroy(ctx, v)
}

// A check of a member that outlasts the job that claimed it leaves no connection.
func TestPool_CheckThatOutlastsItsMemberLeavesNothing(t *testing.T) {
	p := &latePing{asked: make(chan struct{}), goOn: make(chan struct{}), done: make(chan struct{})}
	r := newRig(t, 1)
	r.stop()
	p.Fake = r.fake
	r.vms.Guest, r.opts.Provider = p, p
	r.restart()
	r.behave(providertest.Behaviour{}, true)
	r.newPool(1)
	<-p.asked
	r.behave(paused(providertest.Behaviour{}), true)
	if j := r.wait(r.submit()); j.Status != job.Success || j.VM.Source != vm.FromPool {
		t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
	}
	r.removePool()
	r.stop() // and with it the check
	r.noLeaks()
}
