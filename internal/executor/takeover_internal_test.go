package executor

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
)

// roster is a database's engines, of which this one is not.
type roster struct {
	QueueStore

	mu      sync.Mutex
	until   map[string]time.Time     // the ends of their leases
	evicted map[string]time.Duration // when they were taken over
	began   time.Time
}

func (r *roster) Waiting(context.Context) ([]string, error) { return nil, nil }

func (r *roster) engines() (all []job.EngineInfo) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, until := range r.until {
		all = append(all, job.EngineInfo{ID: id, Lease: time.Until(until)})
	}
	return all
}

func (r *roster) evict(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.until, id)
	r.evicted[id] = time.Since(r.began)
}

// others has another name than its method, so that it can be embedded.
type others = Engines

// members are a roster's engines as an executor sees them.
type members struct {
	others
	of *roster
}

func (m members) Engines(context.Context) ([]job.EngineInfo, error) { return m.of.engines(), nil }

func (m members) Evict(_ context.Context, id string, _ bool) (bool, error) {
	m.of.evict(id)
	return true, nil
}

// An engine is taken over as soon as its lease has ended, whenever the others have last
// looked, and whatever holds the fence of another one up.
func TestTakeOver_AsSoonAsALeaseEnds(t *testing.T) {
	const lease = 15 * time.Second
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	away := func(context.Context) error { return context.DeadlineExceeded }
	tests := []struct {
		name  string
		until map[string]time.Duration                     // from the first look
		tries map[string][]func(ctx context.Context) error // of their fences, before one that succeeds
		want  map[string]time.Duration                     // at the latest
	}{
		{"it ends between two looks", map[string]time.Duration{"a": 5100 * time.Millisecond}, nil, map[string]time.Duration{"a": 5300 * time.Millisecond}},
		{
			"the host is silent for the fence of another",
			map[string]time.Duration{"a": -1, "b": -1},
			map[string][]func(context.Context) error{"a": {silent}},
			map[string]time.Duration{"a": lease + 2*time.Second, "b": 0},
		},
		{
			"the host is away for a moment",
			map[string]time.Duration{"a": -1},
			map[string][]func(context.Context) error{"a": {away, away}},
			map[string]time.Duration{"a": 3 * time.Second},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &roster{until: map[string]time.Time{}, evicted: map[string]time.Duration{}, began: time.Now()}
				for id, d := range tt.until {
					r.until[id] = r.began.Add(d)
				}
				var mu sync.Mutex
				tries := maps.Clone(tt.tries)
				e := &Executor{reopened: make(chan struct{}, 1), o: Options{
					Stores: Stores{Queue: r}, Engines: members{of: r}, EngineLease: lease, Log: slog.New(slog.DiscardHandler),
					Fence: func(ctx context.Context, id string) error {
						mu.Lock()
						if len(tries[id]) == 0 {
							mu.Unlock()
							return nil
						}
						try := tries[id][0]
						tries[id] = tries[id][1:]
						mu.Unlock()
						return try(ctx)
					},
				}}
				ctx, end := context.WithTimeout(t.Context(), time.Minute)
				defer end()
				e.tendEngines(ctx)
				for id, latest := range tt.want {
					if at, evicted := r.evicted[id]; !evicted || at > latest {
						t.Errorf("%s was taken over after %s (%t), want %s at the latest", id, at, evicted, latest)
					}
				}
			})
		})
	}
}
