package queuetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/dispatch"
	"linus/internal/job"
	"linus/internal/loops"
)

// service is one of runners that come first: it gives each piece of work once, and has runners until
// they have had one, or are taken back.
type service struct {
	mu      sync.Mutex
	away    bool
	since   map[string]time.Time // of work that waits
	given   map[string]int
	done    map[string]int
	runners map[string]string // the work of each
}

var errAway = errors.New("the service is away")

func (s *service) lock() (unlock func(), err error) {
	s.mu.Lock()
	if s.away {
		s.mu.Unlock()
		return nil, errAway
	}
	return s.mu.Unlock, nil
}

func (*service) Task() string { return "true\n" }

func (s *service) Waiting(context.Context) (all []dispatch.Work, err error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for id, since := range s.since {
		all = append(all, dispatch.Work{ID: id, Since: since})
	}
	slices.SortFunc(all, func(a, b dispatch.Work) int { return a.Since.Compare(b.Since) })
	return all, nil
}

func (*service) Claim(context.Context, dispatch.Work) (bool, error) { return true, nil }

func (*service) Hold(context.Context, dispatch.Session, <-chan struct{}) error { return nil }

func (s *service) Handover(_ context.Context, of dispatch.Session) (dispatch.Handover, error) {
	unlock, err := s.lock()
	if err != nil {
		return dispatch.Handover{}, err
	}
	s.runners[of.Name] = of.Work.ID
	unlock()
	time.Sleep(rand.N(20 * time.Second)) //nolint:gosec,forbidigo // the answer's way
	return dispatch.Handover{Secret: []byte(of.Name)}, nil
}

func (s *service) Release(_ context.Context, of dispatch.Session, _ *job.Outcome) error {
	unlock, err := s.lock()
	if err == nil {
		delete(s.runners, of.Name)
		unlock()
	}
	return err
}

// run is a runner: it has its work for some minutes, if that waits. Some never connect.
func (s *service) run(ctx context.Context, name string) int {
	if rand.N(20) == 0 { //nolint:gosec // a choice
		return 1
	}
	s.mu.Lock()
	id, known := s.runners[name]
	_, waits := s.since[id]
	if waits {
		delete(s.since, id)
		s.given[id]++
	}
	s.mu.Unlock()
	if !known || !waits {
		return 1
	}
	select {
	case <-ctx.Done():
		return 1
	case <-time.After(time.Minute + rand.N(4*time.Minute)): //nolint:gosec // a duration
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[id]++
	delete(s.runners, name)
	return 0
}

// Three queues with two dispatchers each, for hours: dispatchers and their engine are killed, and the
// services and the engine away for minutes. No work is lost, none is run twice, and neither a VM nor a runner is left.
func TestSoak_ThreeQueues(t *testing.T) {
	times := 1
	if loops.AtNight() {
		times = 20
	}
	for range times {
		synctest.Test(t, soak)
	}
}

func soak(t *testing.T) {
	services := map[string]*service{}
	var all sync.WaitGroup
	e := NewEngine(t)
	e.Run = func(ctx context.Context, vm VM) int { return services[vm.Session.Queue].run(ctx, string(vm.Secret)) }
	busy, over := context.WithTimeout(t.Context(), 3*time.Hour)
	defer over()
	waits := func(about time.Duration) bool {
		select {
		case <-busy.Done():
			return false
		case <-time.After(about/2 + rand.N(about)): //nolint:gosec // a duration
			return true
		}
	}
	e.Far = 5 * time.Second
	kills := 0
	all.Go(func() {
		for ; waits(20 * time.Minute); kills++ {
			e.Kill()
			time.Sleep(rand.N(8 * time.Minute)) //nolint:gosec // a duration
			e.Start()
		}
	})
	for i := range 3 {
		s := &service{since: map[string]time.Time{}, given: map[string]int{}, done: map[string]int{}, runners: map[string]string{}}
		queue := fmt.Sprint("queue", i)
		services[queue] = s
		all.Go(func() {
			for n := 0; waits(time.Minute); n++ {
				s.mu.Lock()
				s.since[fmt.Sprint("work", n)] = time.Now()
				s.mu.Unlock()
			}
		})
		all.Go(func() {
			for waits(30 * time.Minute) {
				s.mu.Lock()
				s.away = true
				s.mu.Unlock()
				time.Sleep(5 * time.Minute)
				s.mu.Lock()
				s.away = false
				s.mu.Unlock()
			}
		})
		for _, name := range []string{"one", "two"} {
			st := &stage{Service: Service{Connect: func(string) dispatch.Queue { return s }}, t: t, engine: e, named: name, queue: queue, pause: 5 * time.Second, again: true}
			all.Go(func() {
				for k := st.dispatch(&fail{}); waits(20 * time.Minute); k = st.dispatch(&fail{}) {
					k.now()
				}
			})
		}
	}
	all.Wait()
	time.Sleep(2 * time.Hour)
	if kills < 3 {
		t.Errorf("the engine was killed %d times", kills)
	}
	for queue, s := range services {
		s.mu.Lock()
		if len(s.given) < 100 || len(s.since) > 0 || len(s.runners) > 0 {
			t.Errorf("%s: %d given, waiting %v, runners left %v", queue, len(s.given), s.since, s.runners)
		}
		for id, n := range s.given {
			if n != 1 || s.done[id] != 1 {
				t.Errorf("%s: %s was given %d times and done %d times", queue, id, n, s.done[id])
			}
		}
		s.mu.Unlock()
	}
	for id, vm := range e.VMs() {
		if !vm.Status.Terminal() {
			t.Errorf("job %s of %s is %s", id, vm.Session.Queue, vm.Status)
		}
	}
}
