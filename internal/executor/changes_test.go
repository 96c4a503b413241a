package executor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

// Who observes the engine slowly holds no job up, and is told all that is stored, and each thing
// once and in its order, though the engine stops meanwhile.
func TestObserver_IsToldAllThatIsStored(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	slow := make(chan struct{})
	var mu sync.Mutex
	told := map[string][]job.Event{}
	r.opts.Observer = func(h job.Happening) {
		<-slow
		mu.Lock()
		defer mu.Unlock()
		if c, is := h.(job.Change); is {
			told[c.Job.ID] = append(told[c.Job.ID], c.Events...)
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
		t.Errorf("told %q by an observer that is stuck", texts(told[id]))
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
	if diff := cmp.Diff(texts(events), texts(told[id])); diff != "" {
		t.Errorf("stored and told (-stored +told):\n%s", diff)
	}
}

// texts are what events say, in their order.
func texts(events []job.Event) (all []string) {
	for _, e := range events {
		all = append(all, e.Kind+" "+e.Phase+" "+e.Text)
	}
	return all
}
