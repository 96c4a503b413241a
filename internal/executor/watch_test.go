package executor_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
)

// watchedStore counts the looks for events.
type watchedStore struct {
	*store.Store
	looks *atomic.Int64
}

func (s watchedStore) Events(ctx context.Context, id string, after int64) ([]job.Event, error) {
	s.looks.Add(1)
	return s.Store.Events(ctx, id, after)
}

// newWatchedRig is newRigHere with a store that counts the looks for events.
func newWatchedRig(t *testing.T) (*rig, *atomic.Int64) {
	t.Helper()
	r := newRigHere(t, 1)
	r.stop()
	var looks atomic.Int64
	r.opts.Stores = executor.StoresOf(watchedStore{r.store, &looks})
	r.restart()
	return r, &looks
}

// A watcher is woken for changes of the status, and for others together: in a bubble, all
// of a job that waits for nothing come at the same time.
func TestWatch_GathersChanges(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r, looks := newWatchedRig(t)
		r.behave(providertest.Behaviour{Warning: "one more event"}, true)
		id := r.submit()
		var seen []job.Event
		var statuses []job.Status
		for last := int64(0); ; {
			events, j, err := r.Watch(t.Context(), id, last)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if last = e.Seq; e.Kind == job.EventStatus {
					statuses = append(statuses, job.Status(e.Text))
				}
			}
			seen = append(seen, events...)
			if len(events) == 0 && j.Done() {
				break
			}
		}
		if diff := cmp.Diff([]job.Status{job.Provisioning, job.Running, job.Success}, statuses); diff != "" {
			t.Error(diff)
		}
		all, err := r.store.Events(t.Context(), id, 0)
		if diff := cmp.Diff(all, seen); diff != "" || err != nil {
			t.Errorf("what was seen is not what there is: %v\n%s", err, diff)
		}
		if n := looks.Load(); n > 10 {
			t.Errorf("%d looks for %d events, want at most 10", n, len(all))
		}
	})
}

// Who comes later has what others have seen, and is woken like them.
func TestWatch_AfterAnotherWatcher(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, true)
	id := r.submit()
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	all, err := r.store.Events(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	last := all[len(all)-1].Seq
	for range 2 { // the second finds what the first has seen
		over, end := context.WithCancel(t.Context())
		end()
		if events, j, err := r.Watch(over, id, last); len(events) != 0 || err == nil && j.ID != id {
			t.Errorf("%v, %+v, %v", events, j, err)
		}
	}
	if events, _, err := r.Watch(t.Context(), id, last-1); err != nil || len(events) == 0 || events[0].Seq != last {
		t.Errorf("%v, %v", events, err)
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			events, _, err := r.Watch(context.Background(), id, last)
			if err == nil && len(events) == 0 {
				t.Error("woken without an event")
			}
			ended <- err
		}()
	}
	release()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	r.wait(id)
}

// Who waits for the end only is not told of the steps, and does not wait for the VM.
func TestWatch_OnlyTheEnd(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r, looks := newWatchedRig(t)
		do, release := hold(t, providertest.Task{})
		r.behave(providertest.Behaviour{Task: do, Warning: "one more event", Destroys: slices.Repeat([]error{errors.New("not now")}, 1000)}, true)
		id := r.submit()
		if events, j, err := r.Watch(within(t, time.Minute), id, job.OnlyEnd); err != nil || len(events) != 0 || j.Status != job.Running {
			t.Errorf("%v, %s, %v while the task runs", events, j.Status, err)
		}
		release()
		if events, j, err := r.Watch(t.Context(), id, job.OnlyEnd); err != nil || len(events) != 0 || j.Status != job.Success || j.Done() {
			t.Errorf("%v, %s, %v; done: %v", events, j.Status, err, j.Done())
		}
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks for events", n)
		}
	})
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
