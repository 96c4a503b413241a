package queuetest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/job"
)

// Service is a stand-in for a queue's service, under the control of Conforms.
type Service struct {
	// Connect returns a queue of the service for a starting dispatcher with that name.
	Connect func(name string) dispatch.Queue
	// Add adds n pieces of waiting work.
	Add func(n int)
	// Run is what a session's VM runs with its secret, until ctx ends. It returns the task's exit code.
	Run func(ctx context.Context, vm VM) int
	// Done returns how often each piece of work was done.
	Done func() []int
	// Left returns what remains in the service of finished work and sessions, such as runners and claims.
	// It may wait for what disappears by itself.
	Left func() []string
	// Nonsense makes the service's next n answers nonsense. Nil: there is nothing to test.
	Nonsense func(n int)
}

// Conforms tests that a queue keeps the contract of dispatch.Queue, with a new service for each test:
// whatever dies in the middle, each piece of work is done once, and nothing is left behind.
func Conforms(t *testing.T, start func(t *testing.T) Service) {
	t.Helper()
	var all sync.WaitGroup // they mostly wait, so all run at once, even on few processors
	defer all.Wait()
	at := func(name string, test func(t *testing.T)) { all.Go(func() { t.Run(name, test) }) }
	for _, tt := range []struct {
		name string
		fail
	}{
		{"serves", fail{}},
		{"dispatcher killed before the claim", fail{at: "Claim", kills: true}},
		{"dispatcher killed after the claim", fail{at: "Claim", after: true, kills: true}},
		{"dispatcher killed before its job is there", fail{at: "Submit", kills: true}},
		{"dispatcher killed when its job is there", fail{at: "Submit", after: true, kills: true}},
		{"dispatcher killed before the hand-over", fail{at: "Handover", kills: true}},
		{"dispatcher killed after the hand-over", fail{at: "Handover", after: true, kills: true}},
		{"dispatcher killed when its VM has the work", fail{at: "WriteFile", after: true, kills: true}},
		{"dispatcher killed before it takes back what is left", fail{at: "Release", kills: true}},
		{"the queue fails to say what waits", fail{at: "Waiting", times: 1}},
		{"the claim fails", fail{at: "Claim", times: 1}},
		{"the claim is lost", fail{at: "Hold", times: 1}},
		{"the hand-over fails", fail{at: "Handover", times: 1}},
		{"the hand-over's answer is lost", fail{at: "Handover", after: true, times: 1}},
		{"what is left cannot be taken back at once", fail{at: "Release", times: 1}},
		{"the engine takes no job at first", fail{at: "Submit", times: 2}},
		{"the engine's answer is lost", fail{at: "Submit", after: true, times: 1}},
		{"the engine does not watch", fail{at: "Watch", times: 2}},
		{"the VM cannot be written to", fail{at: "WriteFile", times: 1}},
		{"the answer that the VM has the work is lost", fail{at: "WriteFile", after: true, times: 1}},
	} {
		at(tt.name, func(t *testing.T) {
			s := newStage(t, start(t))
			s.Add(3)
			if tt.kills {
				s.dispatch(&tt.fail).wait(t)
			}
			s.dispatch(&tt.fail)
			s.all(t, 3)
		})
	}
	at("nonsense", func(t *testing.T) {
		s := newStage(t, start(t))
		if s.Nonsense == nil {
			t.Skip("it cannot answer nonsense")
		}
		s.Nonsense(1)
		s.Add(2)
		s.dispatch(&fail{})
		s.all(t, 2)
	})
	at("two dispatchers", func(t *testing.T) {
		s := newStage(t, start(t))
		s.Add(4)
		s.dispatch(&fail{})
		s.named = "another"
		s.dispatch(&fail{})
		s.all(t, 4)
	})
	at("takes back again, and what never was", func(t *testing.T) {
		s := newStage(t, start(t))
		s.Add(1)
		s.dispatch(&fail{})
		s.all(t, 1)
		q := s.Connect("later")
		for _, vm := range s.engine.VMs() {
			of := dispatch.Session{Work: vm.Session.Work, Job: vm.ID, Name: vm.Session.Name}
			for range 2 {
				if err := q.Release(t.Context(), of, vm.Outcome); err != nil {
					t.Errorf("again: %v", err)
				}
			}
			of.Job, of.Name, of.Work.ID = "", "linus-dispatch-NEVER", of.Work.ID+"0"
			if err := q.Release(t.Context(), of, nil); err != nil {
				t.Errorf("of a session that never began: %v", err)
			}
		}
		s.all(t, 1)
	})
}

// stage is a service with an engine and dispatchers.
type stage struct {
	Service

	t      *testing.T
	engine *Engine
	named  string
	queue  string
	pause  time.Duration // between polls, and half the cool-down
	again  bool          // a failed dispatcher is restarted
}

func newStage(t *testing.T, s Service) *stage {
	e := NewEngine(t)
	e.Run = s.Run
	return &stage{Service: s, t: t, engine: e, named: "here", queue: "one", pause: 20 * time.Millisecond}
}

// all waits until each of n pieces of work was done once and nothing is left.
func (s *stage) all(t *testing.T, n int) {
	t.Helper()
	done := func() bool { return len(s.Done()) == n && !slices.Contains(s.Done(), 0) }
	open := func() (ids []string) {
		for id, vm := range s.engine.VMs() {
			if !vm.Status.Terminal() {
				ids = append(ids, id)
			}
		}
		return ids
	}
	for deadline := time.Now().Add(time.Minute); !done() || len(open()) > 0 || len(s.Left()) > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: done %v, jobs %v, left %q", s.Done(), open(), s.Left())
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the service says nothing
	}
	if slices.Max(s.Done()) > 1 {
		t.Errorf("done more than once: %v", s.Done())
	}
}

// fail says which calls of a dispatcher fail and how often, or at which call it is killed.
type fail struct {
	at    string
	after bool // fails after the call has had its effect
	kills bool
	times int
}

// killed is a dispatcher that ends by itself, or with the test.
type killed struct {
	mortal *mortal
	stop   context.CancelFunc
	ended  chan struct{}
}

// now kills the dispatcher, and waits for its end.
func (k killed) now() {
	k.mortal.kill()
	k.stop()
	<-k.ended
}

func (k killed) wait(t *testing.T) {
	t.Helper()
	select {
	case <-k.ended:
	case <-time.After(time.Minute):
		t.Fatal("the dispatcher was never where it is killed")
	}
}

// dispatch starts a dispatcher. A killed dispatcher has no effect any more. f is reset, so that a later
// dispatcher does not fail.
func (s *stage) dispatch(f *fail) killed {
	ctx, stop := context.WithCancel(s.t.Context())
	m := &mortal{fail: *f, engine: s.engine, queue: s.Connect(s.named), dead: make(chan struct{}), stop: stop}
	f.kills, f.times, f.at = false, 0, ""
	k := killed{m, stop, make(chan struct{})}
	o := dispatch.Options{
		Engine: m, Name: s.named, Sessions: 2, Drain: time.Minute, Hurry: m.dead, Log: slog.New(slog.NewTextHandler(s.t.Output(), nil)),
		Every: s.pause, CoolDown: 2 * s.pause,
	}
	go func() {
		defer close(k.ended)
		defer stop()
		for dispatch.Serve(ctx, o, "standin", s.queue, m) != nil && s.again && ctx.Err() == nil {
			time.Sleep(time.Minute) //nolint:forbidigo // as its supervisor does
		}
	}()
	s.t.Cleanup(k.now)
	return k
}

// mortal is the queue and the engine of a dispatcher that may be killed.
type mortal struct {
	fail

	engine *Engine
	queue  dispatch.Queue
	stop   context.CancelFunc

	mu   sync.Mutex
	once sync.Once
	dead chan struct{}
}

var errFault = errors.New("a fault that is made")

func (m *mortal) kill() { m.once.Do(func() { close(m.dead) }) }

// step is called before and after each call. It fails or kills as m.fail says, and fails if the
// dispatcher is dead.
func (m *mortal) step(call string, after bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == call && m.after == after {
		switch {
		case m.kills:
			m.kill()
			m.stop()
		case m.times > 0:
			m.times--
			return errFault
		}
	}
	select {
	case <-m.dead:
		return errFault
	default:
		return nil
	}
}

// through makes a call, unless it is to fail or the dispatcher is dead.
func through[T any](m *mortal, call string, do func() (T, error)) (T, error) {
	if err := m.step(call, false); err != nil {
		var none T
		return none, err
	}
	got, err := do()
	if err == nil {
		err = m.step(call, true)
	}
	return got, err
}

// asks makes a call of the engine. If the engine is killed meanwhile, the answer is lost.
func asks[T any](m *mortal, call string, do func() (T, error)) (T, error) {
	return through(m, call, func() (none T, err error) {
		life, err := m.engine.reached()
		if err != nil {
			return none, err
		}
		got, failed := do()
		if now, err := m.engine.reached(); err != nil || now != life {
			return none, errFault
		}
		return got, failed
	})
}

func (m *mortal) Task() string { return m.queue.Task() }

func (m *mortal) Waiting(ctx context.Context) ([]dispatch.Work, error) {
	return through(m, "Waiting", func() ([]dispatch.Work, error) { return m.queue.Waiting(ctx) })
}

func (m *mortal) Claim(ctx context.Context, w dispatch.Work) (bool, error) {
	return through(m, "Claim", func() (bool, error) { return m.queue.Claim(ctx, w) })
}

func (m *mortal) Hold(ctx context.Context, s dispatch.Session, done <-chan struct{}) error {
	_, err := through(m, "Hold", func() (any, error) { return nil, m.queue.Hold(ctx, s, done) })
	if errors.Is(err, errFault) {
		err = dispatch.ErrLost
	}
	return err
}

func (m *mortal) Handover(ctx context.Context, s dispatch.Session) (dispatch.Handover, error) {
	return through(m, "Handover", func() (dispatch.Handover, error) { return m.queue.Handover(ctx, s) })
}

func (m *mortal) Release(ctx context.Context, s dispatch.Session, o *job.Outcome) error {
	_, err := through(m, "Release", func() (any, error) { return nil, m.queue.Release(ctx, s, o) })
	return err
}

func (m *mortal) Caller(ctx context.Context) (job.Principal, error) {
	return asks(m, "Caller", func() (job.Principal, error) { return m.engine.Caller(ctx) })
}

func (m *mortal) Plan(ctx context.Context, s job.Submission) ([]string, error) {
	return asks(m, "Plan", func() ([]string, error) { return m.engine.Plan(ctx, s) })
}

func (m *mortal) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	return asks(m, "Submit", func() (job.Job, error) { return m.engine.Submit(ctx, s) })
}

func (m *mortal) Watch(ctx context.Context, id string, after int64) (events []job.Event, j job.Job, err error) {
	j, err = asks(m, "Watch", func() (j job.Job, err error) {
		events, j, err = m.engine.Watch(ctx, id, after)
		return j, err
	})
	select {
	case <-m.dead: // it no longer waits
		return nil, j, job.ErrNotFound
	default:
		return events, j, err
	}
}

func (m *mortal) Cancel(ctx context.Context, id string) error {
	_, err := asks(m, "Cancel", func() (any, error) { return nil, m.engine.Cancel(ctx, id) })
	return err
}

func (m *mortal) List(ctx context.Context, f job.Filter) (job.Page, error) {
	return asks(m, "List", func() (job.Page, error) { return m.engine.List(ctx, f) })
}

func (m *mortal) WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error) {
	return asks(m, "WriteFile", func() (job.FileWritten, error) { return m.engine.WriteFile(ctx, w) })
}

func (m *mortal) WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error {
	_, err := asks(m, "WriteTree", func() (any, error) { return nil, m.engine.WriteTree(ctx, f, archive) })
	return err
}

func (m *mortal) ReportDispatcher(ctx context.Context, d job.Dispatcher) (job.Dispatcher, error) {
	return asks(m, "ReportDispatcher", func() (job.Dispatcher, error) { return m.engine.ReportDispatcher(ctx, d) })
}
