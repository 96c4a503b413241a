package executor_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
)

// busyHost is a host whose checks and plans end when they are let go on.
type busyHost struct {
	job.Provider
	checks, plans, most atomic.Int64
	silent              atomic.Bool   // its checks fail
	began               chan struct{} // one for each plan
	on                  chan struct{}
}

func (h *busyHost) Check(context.Context) (job.HostReport, error) {
	h.checks.Add(1)
	<-h.on
	if h.silent.Load() {
		return job.HostReport{}, errors.New("no answer")
	}
	return job.HostReport{OK: true}, nil
}

func (h *busyHost) Plan(context.Context, job.VMSpec) ([]string, error) {
	n := h.plans.Add(1)
	defer h.plans.Add(-1)
	for seen := h.most.Load(); n > seen && !h.most.CompareAndSwap(seen, n); seen = h.most.Load() {
	}
	h.began <- struct{}{}
	<-h.on
	return nil, nil
}

// Who may only read cannot have the host busy with itself: a hundred checks are one, and
// plans, of which each is another script, take turns.
func TestGuard_APrincipalRunsFewScriptsOnTheHost(t *testing.T) {
	r := newRig(t, 1)
	h := &busyHost{Provider: r.opts.Provider, began: make(chan struct{}, 20), on: make(chan struct{})}
	r.stop()
	r.opts.Provider = h
	r.restart()
	e := executor.Guarded(r.Executor)
	var all, asked sync.WaitGroup
	check := func(ctx context.Context) {
		asked.Add(1)
		all.Go(func() {
			asked.Done()
			if report, err := e.CheckHost(ctx); err != nil || !report.OK {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
	for i := range 100 {
		check(as(t, "reader"+strconv.Itoa(i), job.RoleRead))
	}
	for range 20 {
		asked.Add(1)
		all.Go(func() {
			asked.Done()
			if _, err := e.Plan(as(t, "ada", job.RoleRun), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}}); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()
	for range 4 {
		select {
		case <-h.began:
		case <-time.After(time.Minute):
			t.Fatal("no plans")
		}
	}
	close(h.on)
	all.Wait()
	if n := h.most.Load(); n != 4 {
		t.Errorf("%d plans of one principal at a time", n)
	}
	if n := h.checks.Load(); n != 1 {
		t.Errorf("%d checks within seconds", n)
	}
	check(job.WithPrincipal(t.Context(), job.Operator()))
	all.Wait()
	if n := h.checks.Load(); n != 2 {
		t.Errorf("%d checks: the operator's is a new one", n)
	}
	h.silent.Store(true)
	if _, err := e.CheckHost(job.WithPrincipal(t.Context(), job.Operator())); err == nil {
		t.Error("a check that fails says nothing")
	}
	h.silent.Store(false)
	check(as(t, "reader", job.RoleRead)) // one that failed is not believed
	all.Wait()
}
