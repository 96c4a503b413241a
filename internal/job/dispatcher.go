package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Dispatchers are the operations on those who serve queues of others with jobs.
type Dispatchers interface {
	// Dispatchers returns those that have said within a day how they are, and those that are drained,
	// by queue and name.
	Dispatchers(ctx context.Context) ([]Dispatcher, error)
	// ReportDispatcher says how a dispatcher of the caller's is. The result says, in Draining,
	// whether it is to take no more work.
	ReportDispatcher(ctx context.Context, d Dispatcher) (Dispatcher, error)
	// DrainDispatcher has the dispatchers of a name take no more work, until UndrainDispatcher;
	// ErrNotFound. They end when their sessions have. Those that are started meanwhile wait.
	DrainDispatcher(ctx context.Context, name string) error
	// UndrainDispatcher lets the dispatchers of a name take work again; ErrNotFound. Those that are
	// about to end do so.
	UndrainDispatcher(ctx context.Context, name string) error
}

// Dispatcher is how one is that serves a queue, as it says itself.
type Dispatcher struct {
	Queue     string    `json:"queue" api:",required"` // its kind and name: github:owner/repository
	Name      string    `json:"name"`                  // the dispatcher's: its sessions are found again by it
	Principal string    `json:"principal,omitempty"`   // that it belongs to; empty: the operator
	StartedAt time.Time `json:"started_at"`
	HeardAt   time.Time `json:"heard_at,omitzero"` // when it last said so

	Sessions int       `json:"sessions"`           // that it has now
	Places   int       `json:"places"`             // how many it may have
	Waiting  int       `json:"waiting"`            // pieces of work, when it last asked
	Oldest   time.Time `json:"oldest,omitzero"`    // since when the oldest of them waits; zero: none does, or the queue does not say
	Problem  string    `json:"problem,omitempty"`  // why it gets no work at the moment; empty: it does
	Failed   []Failing `json:"failed,omitempty"`   // of its sessions, by reason
	Draining bool      `json:"draining,omitempty"` // it takes no more work
	Ended    bool      `json:"ended,omitempty"`    // it is to be forgotten, unless it is drained
	Stopped  bool      `json:"stopped,omitempty"`  // it has failed for a reason that does not pass, and is started again later
}

// Failing is how many sessions have failed for a reason.
type Failing struct {
	Reason Reason `json:"reason"`
	Count  int    `json:"count"`
}

// MaxDispatchers bounds the dispatchers of a principal, and DispatcherSilence is after what time
// without a word one is away.
const (
	MaxDispatchers    = 200
	DispatcherSilence = time.Minute
)

// DispatcherStatuses are what Status returns.
var DispatcherStatuses = []string{"serving", "failing", "draining", "drained", "stopped", "away"}

// Status is a word for how the dispatcher is.
func (d Dispatcher) Status() string {
	switch away := time.Since(d.HeardAt) > DispatcherSilence; {
	case d.Draining && (away || d.Ended):
		return "drained"
	case away:
		return "away"
	case d.Stopped:
		return "stopped"
	case d.Draining:
		return "draining"
	case d.Problem != "":
		return "failing"
	}
	return "serving"
}

// FailedText says how many of its sessions have failed, and why.
func (d Dispatcher) FailedText() string {
	var all []string
	for _, f := range d.Failed {
		all = append(all, fmt.Sprintf("%d %s", f.Count, f.Reason))
	}
	return strings.Join(all, ", ")
}

// Check returns a *FieldError for what a dispatcher cannot say.
func (d Dispatcher) Check() error {
	for _, text := range []struct {
		name, is string
		needed   bool
	}{{"queue", d.Queue, true}, {"name", d.Name, true}, {"problem", d.Problem, false}} {
		if err := sessionText(text.name, text.is, text.needed); err != nil {
			return err
		}
	}
	if len(d.Failed) > len(Reasons) {
		return field("failed", fmt.Sprintf("give at most %d", len(Reasons)), "are %d", len(d.Failed))
	}
	numbers := map[string]int{"sessions": d.Sessions, "places": d.Places, "waiting": d.Waiting}
	for _, f := range d.Failed {
		if !slices.Contains(Reasons, f.Reason) {
			return field("failed", "give reasons of jobs", "%.80q is unknown", f.Reason)
		}
		numbers["failed."+string(f.Reason)] = f.Count
	}
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		if err := Within(name, int64(numbers[name]), 0, 1<<30); err != nil {
			return err
		}
	}
	return nil
}

// Cells are those of a dispatcher.
func (d Dispatcher) Cells() Cells {
	return Cells{
		"name": d.Name, "status": State{[]string{d.Status()}, DispatcherStatuses}, "queue": d.Queue, "principal": cmp.Or(d.Principal, OperatorName),
		"sessions": d.Sessions, "waiting": d.Waiting, "started_at": d.StartedAt,
	}
}

// QueueID says which queue is meant, of all kinds.
func QueueID(kind, name string) string { return kind + ":" + name }
