package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// engineWatch watches the members that a database has.
type engineWatch struct {
	mu     sync.Mutex
	hits   map[int]*takenOver // engines under a fault, by process
	taken  []takenOver
	faults []faultSpan
}

// takenOver is an engine that was hit, when its lease was first seen to have ended, and when it
// was no member any more.
type takenOver struct {
	pid                int
	what               string
	since, ended, gone time.Time
}

// faultSpan is how long a fault lasted; a zero end: it does.
type faultSpan struct {
	what, node string
	from, to   time.Time
}

func watchEngines(t *testing.T, database string) *engineWatch {
	w := &engineWatch{hits: map[int]*takenOver{}}
	ctx, end := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			if members, err := membersOf(ctx, database); err == nil {
				w.see(members)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { end(); watching.Wait() })
	return w
}

// membersOf are the processes of a database's engines, and whether their leases last.
func membersOf(ctx context.Context, database string) (map[int]bool, error) {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing to lose
	rows, err := conn.Query(ctx, "SELECT doc, lease_until > extract(epoch FROM clock_timestamp()) FROM engines")
	if err != nil {
		return nil, err
	}
	members := map[int]bool{}
	var doc string
	var lasts bool
	_, err = pgx.ForEachRow(rows, []any{&doc, &lasts}, func() error {
		var about struct{ PID int }
		err := json.Unmarshal([]byte(doc), &about)
		members[about.PID] = lasts
		return err
	})
	return members, err
}

// lasts notes that a fault begins, and with the function it returns that it has ended.
func (w *engineWatch) lasts(what, node string) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := len(w.faults)
	w.faults = append(w.faults, faultSpan{what: what, node: node, from: time.Now()})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.faults[at].to = time.Now()
	}
}

func (w *engineWatch) note(what string) { w.lasts(what, "")() }

// wasDown reports whether a node, or any, was down at some time of a span.
func (w *engineWatch) wasDown(node string, from, to time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.faults, func(f faultSpan) bool {
		return f.node != "" && (node == "" || f.node == node) && f.from.Before(to) && (f.to.IsZero() || f.to.After(from))
	})
}

// hit notes that a fault has begun of which an engine is to lose its membership.
func (w *engineWatch) hit(pid int, what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hits[pid] == nil && pid != 0 {
		w.hits[pid] = &takenOver{pid: pid, what: what, since: time.Now()}
	}
}

// forget takes back hit.
func (w *engineWatch) forget(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.hits, pid)
}

// see notes which engines are no members any more. One whose fault was over before its
// lease is not counted as taken over.
func (w *engineWatch) see(members map[int]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, hit := range w.hits {
		lasts, member := members[pid]
		switch {
		case lasts:
			hit.ended = time.Time{}
		case hit.ended.IsZero():
			hit.ended = time.Now()
		}
		switch {
		case !member:
			hit.gone = time.Now()
			w.taken = append(w.taken, *hit)
		case time.Since(hit.since) < time.Minute:
			continue
		}
		delete(w.hits, pid)
	}
}

// took is how many seconds after the faults of each kind the engines were taken over.
func (w *engineWatch) took() map[string][]float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	seconds := map[string][]float64{}
	for _, t := range w.taken {
		seconds[t.what] = append(seconds[t.what], t.gone.Sub(t.since).Round(100*time.Millisecond).Seconds())
		slices.Sort(seconds[t.what])
	}
	return seconds
}
