package executor_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/store"
)

// endedStore says when a job is done.
type endedStore struct {
	*store.Store
	ended chan struct{}
}

func (s endedStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	was := job.Job{}
	j, err := s.Store.Update(ctx, id, func(j *job.Job) (job.Record, error) {
		was = *j
		return change(j)
	})
	if err == nil && j.Done() && !was.Done() {
		close(s.ended)
	}
	return j, err
}

// Who observes the engine slowly holds no job up, and is told all that is stored, in its order,
// though the engine stops meanwhile.
func TestObserver_IsToldAllThatIsStored(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	s := endedStore{r.store, make(chan struct{})}
	slow := make(chan struct{})
	var mu sync.Mutex
	told := map[string][]string{}
	r.opts.Stores = executor.StoresOf(s)
	r.opts.Observer = func(h job.Happening) {
		<-slow
		mu.Lock()
		defer mu.Unlock()
		if c, is := h.(job.Change); is {
			for _, e := range c.Events {
				told[c.Job.ID] = append(told[c.Job.ID], e.Kind+" "+e.Phase+" "+e.Text)
			}
		}
	}
	r.restart()
	id := r.submit()
	<-s.ended
	if !slices.Equal(told[id], nil) {
		t.Errorf("told %q by an observer that is stuck", told[id])
	}
	var over sync.WaitGroup
	over.Go(r.stop)
	close(slow)
	over.Wait()
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var stored []string
	for _, e := range events {
		stored = append(stored, e.Kind+" "+e.Phase+" "+e.Text)
	}
	if diff := cmp.Diff(stored, told[id]); diff != "" {
		t.Errorf("stored and told (-stored +told):\n%s", diff)
	}
}
