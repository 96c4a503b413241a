package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
)

// witness keeps what an executor tells.
type witness struct {
	mu       sync.Mutex
	phases   []string // name and result
	events   []string // kind and text
	leaked   []int
	pooled   []job.PoolEvent
	notified []job.DeliveryState
	nodes    []string // node, whether it is cordoned, by whom
}

func (w *witness) observe(h job.Happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch h := h.(type) {
	case job.Change:
		for _, e := range h.Events {
			w.events = append(w.events, e.Kind+" "+e.Text)
		}
	case job.PhaseEnd:
		phase := h.Phase
		if h.Job.ID == "" || time.Since(h.Began) > time.Minute || (h.Err == nil) != (h.Result == job.PhaseOK) {
			phase += " with wrong details"
		}
		w.phases = append(w.phases, phase+" "+string(h.Result))
	case job.Leaked:
		w.leaked = append(w.leaked, int(h))
	case job.CordonChange:
		w.nodes = append(w.nodes, fmt.Sprint(h.Node, " ", h.Cordoned, " ", h.By.Client))
	case job.Delivery:
		w.notified = append(w.notified, h.State)
	case job.PoolEvent:
		w.pooled = append(w.pooled, h)
	}
}

func (w *witness) saw(list func(*witness) []string, what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(list(w), what)
}

func phasesOf(w *witness) []string { return w.phases }
func eventsOf(w *witness) []string { return w.events }

// observed is a rig with a witness.
func observed(t *testing.T) (*rig, *witness) {
	r, w := newRig(t, 1), &witness{}
	r.stop()
	r.opts.Observer = w.observe
	r.restart()
	return r, w
}

// A lateStore answers the jobs that have begun as they were when there first were any.
type lateStore struct {
	*store.Store
	first atomic.Pointer[[]job.Job]
}

func (s *lateStore) InProgress(ctx context.Context) ([]job.Job, error) {
	if first := s.first.Load(); first != nil {
		return *first, nil
	}
	jobs, err := s.Store.InProgress(ctx)
	if len(jobs) > 0 && jobs[0].Status == job.Running {
		s.first.Store(&jobs)
	}
	return jobs, err
}

func done(j job.Job) bool { return j.Done() }

func TestObserver_IsToldOfPhasesAndHowTheyEnded(t *testing.T) {
	t.Parallel()
	t.Run("all well", func(t *testing.T) {
		r, w := observed(t)
		r.behave(providertest.Behaviour{}, true)
		r.until(r.submit(), done)
		r.stop()
		r.restart()
		want := []string{"provision ok", "push ok", "start ok", "run ok", "collect ok", "destroy ok"}
		if !slices.Equal(w.phases, want) {
			t.Errorf("phases %v, want %v", w.phases, want)
		}
		for _, event := range []string{"status provisioning", "status running", "decided exit_status", "status success"} {
			if !w.saw(eventsOf, event) {
				t.Errorf("not told of %q: %v", event, w.events)
			}
		}
	})
	t.Run("all well, and taken up again from a row that was read before its end", func(t *testing.T) {
		r, w := observed(t)
		r.stop()
		r.opts.Stores = executor.StoresOf(&lateStore{Store: r.store})
		r.restart()
		r.behave(providertest.Behaviour{Task: task(providertest.Task{For: 200 * time.Millisecond})}, false)
		r.until(r.submit(), done)
		deadline := time.Now().Add(time.Minute)
		for strings.Count(r.log.String(), "job adopted") < 3 && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		r.stop()
		want := []string{"provision ok", "push ok", "start ok", "run ok", "collect ok", "destroy ok"}
		if !slices.Equal(w.phases, want) || strings.Count(r.log.String(), "job adopted") < 3 {
			t.Errorf("phases %v, want %v; log:\n%s", w.phases, want, r.log)
		}
		r.restart()
	})
	t.Run("a phase that fails", func(t *testing.T) {
		r, w := observed(t)
		r.behave(providertest.Behaviour{FailStep: "start_vm"}, false)
		r.until(r.submit(), done)
		r.stop()
		if !w.saw(phasesOf, "provision failed") {
			t.Errorf("phases %v", w.phases)
		}
		r.restart()
	})
	t.Run("a job that is cancelled", func(t *testing.T) {
		r, w := observed(t)
		r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{For: time.Hour} }}, false)
		id := r.submit()
		r.until(id, func(j job.Job) bool { return j.Phase == "run" })
		if err := r.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		r.until(id, done)
		r.stop() // the end of a job is seen before the phase's is told
		if !w.saw(phasesOf, "run cancelled") {
			t.Errorf("phases %v", w.phases)
		}
		r.restart()
	})
	t.Run("an engine that stops", func(t *testing.T) {
		r, w := observed(t)
		r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{For: time.Hour} }}, false)
		r.until(r.submit(), func(j job.Job) bool { return j.Phase == "run" })
		r.stop()
		if !w.saw(phasesOf, "run interrupted") {
			t.Errorf("phases %v", w.phases)
		}
		r.restart()
	})
}

func TestObserver_IsToldOfVMsThatShouldNotBeThere(t *testing.T) {
	r, w := observed(t)
	r.behave(providertest.Behaviour{}, true)
	r.until(r.submit(), done)
	r.stop()
	r.fake.Set(providertest.Behaviour{Lists: []error{errors.New("host is away")}}) // tells nothing
	spec := providertest.NewSpec(r.vms.Owner, providertest.FakeTemplate)           // of no job known here
	if _, err := r.fake.Create(t.Context(), spec, func(job.Progress) {}); err != nil {
		t.Fatal(err)
	}
	w.leaked = nil
	r.opts.SweepInterval = 20 * time.Millisecond
	r.restart()
	deadline := time.Now().Add(time.Minute)
	for {
		w.mu.Lock()
		leaked := slices.Clone(w.leaked)
		w.mu.Unlock()
		if len(leaked) > 0 {
			if leaked[0] != 1 {
				t.Errorf("told of %v VMs, want 1", leaked)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("waited 10 s to be told")
		}
		time.Sleep(10 * time.Millisecond)
	}
}
