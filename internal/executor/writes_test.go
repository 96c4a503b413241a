package executor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/vm"
)

// countedStore counts the changes that its callers wait for: each may be a commit.
type countedStore struct {
	*store.Store
	writes *atomic.Int64
}

func (s countedStore) Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error) {
	s.writes.Add(1)
	return s.Store.Insert(ctx, j, key, within, children...)
}

func (s countedStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	s.writes.Add(1)
	return s.Store.Update(ctx, id, change)
}

func (s countedStore) Take(ctx context.Context, id string) (job.Job, bool, error) {
	s.writes.Add(1)
	return s.Store.Take(ctx, id)
}

func (s countedStore) AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error) {
	s.writes.Add(1)
	return s.Store.AppendOutput(ctx, id, stream, offset, data)
}

func (s countedStore) SealOutput(ctx context.Context, id string, ends ...job.StreamEnd) ([]job.OutputInfo, error) {
	s.writes.Add(1)
	return s.Store.SealOutput(ctx, id, ends...)
}

// A job waits for few commits: most of what an engine costs are these.
func TestJob_WaitsForFewWrites(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fails  string // the step that does
		status job.Status
		most   int64
	}{
		{"all well", "", job.Success, 16},
		{"a VM that cannot be made", "start_vm", job.Failed, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.stop()
			var writes atomic.Int64
			r.opts.Stores = executor.StoresOf(countedStore{r.store, &writes})
			r.restart()
			r.behave(providertest.Behaviour{FailStep: tt.fails}, true)
			if j := r.eventually(r.submit(), job.Job.Done); j.Status != tt.status {
				t.Fatalf("%+v", j.Outcome)
			}
			if n := writes.Load(); n > tt.most {
				t.Errorf("%d writes, want at most %d", n, tt.most)
			} else {
				t.Logf("%d writes", n)
			}
		})
	}
}

// warmed notes what VMs' rows say when they are prepared.
type warmed struct {
	*providertest.Fake
	store *store.Store
	seen  chan vm.VM
}

func (g warmed) Warm(ctx context.Context, j job.Job) error {
	v, err := g.store.VM(ctx, j.VM.Job)
	select {
	case g.seen <- v:
	default:
	}
	return err
}

// A member can be claimed when it is prepared, not before: what prepares it takes as long
// as the start of a task.
func TestPool_MemberIsPreparedBeforeItIsWarm(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	g := warmed{r.fake, r.store, make(chan vm.VM, 1)}
	r.vms.Guest = g
	r.restart()
	r.newPool(1)
	if m := <-g.seen; m.Member == nil || m.Member.State != vm.MemberMaking {
		t.Errorf("prepared first as %+v", m.Member)
	}
	r.removePool()
}

// steppedStore counts the changes that may be written later.
type steppedStore struct {
	*store.Store
	soon *atomic.Int64
}

func (s steppedStore) UpdateSoon(id string, change func(*job.Job) (job.Record, error)) func() (job.Job, error) {
	s.soon.Add(1)
	return s.Store.UpdateSoon(id, change)
}

// The steps of a VM's creation that come at about the same time are written together, in
// their order and with the times at which they came.
func TestProvision_WritesStepsTogether(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	const pause = 30 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		var soon atomic.Int64
		r.opts.Stores = executor.StoresOf(steppedStore{r.store, &soon})
		r.restart()
		r.behave(providertest.Behaviour{StepDelay: pause}, true)
		id := r.submit()
		r.wait(id)
		events, err := r.store.Events(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		var steps []job.Event
		for _, e := range events {
			if e.Kind == job.EventProgress {
				steps = append(steps, e)
			}
		}
		if len(steps) < 8 {
			t.Fatalf("%d steps of %d events", len(steps), len(events))
		}
		if last := steps[len(steps)-1]; last.Phase != "connect" {
			t.Errorf("the last step is %s, want connect: what takes the time until the phase's end", last.Phase)
		}
		for i, e := range steps[1:] {
			if took := e.At.Sub(steps[i].At); took != pause {
				t.Errorf("step %s came %s after the one before, want %s", e.Phase, took, pause)
			}
		}
		if n := soon.Load(); n > 4 {
			t.Errorf("%d changes for %d steps, want at most 4", n, len(steps))
		}
	})
}
