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

// Dispatchers are the operations on dispatchers, which serve queues of other systems with jobs.
type Dispatchers interface {
	// Dispatchers returns the dispatchers that reported within the last day, and the drained ones,
	// by queue and name.
	Dispatchers(ctx context.Context) ([]Dispatcher, error)
	// ReportDispatcher reports the state of one of the caller's dispatchers. Draining in the result
	// says whether the dispatcher must take no more work.
	ReportDispatcher(ctx context.Context, d Dispatcher) (Dispatcher, error)
	// DrainDispatcher makes the dispatchers of a name take no more work until UndrainDispatcher.
	// They end when their sessions have ended; dispatchers started meanwhile wait. It returns
	// ErrNotFound if there is no such dispatcher.
	DrainDispatcher(ctx context.Context, name string) error
	// UndrainDispatcher lets the dispatchers of a name take work again, except those that are about
	// to end. It returns ErrNotFound if there is no such dispatcher.
	UndrainDispatcher(ctx context.Context, name string) error
}

// Dispatcher is the state of a dispatcher, as it reports it.
type Dispatcher struct {
	Queue     string    `json:"queue" api:",required"` // its kind and name: github:owner/repository
	Name      string    `json:"name"`                  // the dispatcher's: it finds its sessions again by this name
	Principal string    `json:"principal,omitempty"`   // its owner; empty: the operator
	StartedAt time.Time `json:"started_at"`
	HeardAt   time.Time `json:"heard_at,omitzero"` // when it last reported

	Sessions int       `json:"sessions"`           // sessions it has now
	Places   int       `json:"places"`             // most sessions it may have
	Waiting  int       `json:"waiting"`            // pieces of work when it last asked
	Oldest   time.Time `json:"oldest,omitzero"`    // since when the oldest of them waits; zero: none waits, or the queue does not say
	Problem  string    `json:"problem,omitempty"`  // why it gets no work at the moment; empty: it gets work
	Failed   []Failing `json:"failed,omitempty"`   // failed sessions, by reason
	Draining bool      `json:"draining,omitempty"` // it takes no more work
	Ended    bool      `json:"ended,omitempty"`    // it has ended: its record is removed unless it is drained
	Stopped  bool      `json:"stopped,omitempty"`  // it failed for a lasting reason, and is started again later
}

// Failing counts the sessions that failed for one reason.
type Failing struct {
	Reason Reason `json:"reason"`
	Count  int    `json:"count"`
}

// MaxDispatchers bounds the dispatchers of a principal. A dispatcher is away after DispatcherSilence
// without a report.
const (
	MaxDispatchers    = 200
	DispatcherSilence = time.Minute
)

// DispatcherStatuses are what Status returns.
var DispatcherStatuses = []string{"serving", "failing", "draining", "drained", "stopped", "away"}

// Status describes the dispatcher in one word.
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

// FailedText lists how many sessions have failed, and why.
func (d Dispatcher) FailedText() string {
	var all []string
	for _, f := range d.Failed {
		all = append(all, fmt.Sprintf("%d %s", f.Count, f.Reason))
	}
	return strings.Join(all, ", ")
}

// Check returns a *FieldError for a report that a dispatcher cannot make.
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

// Cells returns the dispatcher's cells.
func (d Dispatcher) Cells() Cells {
	return Cells{
		"name": d.Name, "status": State{[]string{d.Status()}, DispatcherStatuses}, "queue": d.Queue, "principal": cmp.Or(d.Principal, OperatorName),
		"sessions": d.Sessions, "waiting": d.Waiting, "started_at": d.StartedAt,
	}
}

// QueueID identifies a queue among all kinds.
func QueueID(kind, name string) string { return kind + ":" + name }
