package executor_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

// Who observes the engine slowly holds no job up, and is told all that is stored, in its order,
// though the engine stops meanwhile.
func TestObserver_IsToldAllThatIsStored(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	slow := make(chan struct{})
	var mu sync.Mutex
	told := map[string][]string{}
	r.opts.Observer = func(h job.Happening) {
		<-slow
		mu.Lock()
		defer mu.Unlock()
		if c, is := h.(job.Change); is {
			for _, e := range noted(c.Events) {
				told[c.Job.ID] = append(told[c.Job.ID], e.Kind+" "+e.Phase+" "+e.Text)
			}
		}
	}
	r.restart()
	id := r.submit()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // nobody tells of it: the observer is stuck
		if j, err := r.store.Job(t.Context(), id); err == nil && j.Done() {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", j, err)
		}
	}
	mu.Lock()
	if len(told[id]) > 0 {
		t.Errorf("told %q by an observer that is stuck", told[id])
	}
	mu.Unlock()
	var over sync.WaitGroup
	over.Go(r.stop)
	close(slow)
	over.Wait()
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var stored []string
	for _, e := range noted(events) {
		stored = append(stored, e.Kind+" "+e.Phase+" "+e.Text)
	}
	if diff := cmp.Diff(stored, told[id]); diff != "" {
		t.Errorf("stored and told (-stored +told):\n%s", diff)
	}
}

// noted are events without steps, of which the store keeps only those that took a while.
func noted(events []job.Event) []job.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e job.Event) bool { return e.Kind == job.EventProgress })
}
