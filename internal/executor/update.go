package executor

import (
	"context"

	"linus/internal/job"
)

// update changes a job in the store, its texts fit to be shown, without secrets
// and none of them longer than people read, and tells those who watch it.
func (e *Executor) update(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	var events []job.Event
	j, err := e.o.Store.Update(ctx, id, func(j *job.Job) (_ []job.Event, err error) {
		undecided := j.Outcome == nil
		if events, err = change(j); err != nil {
			return nil, err
		}
		c := e.captureOf(*j)
		for i := range events {
			events[i].Text = c.Shown(events[i].Text)
		}
		j.Progress = c.Shown(j.Progress)
		if undecided && j.Outcome != nil {
			j.Outcome.Error = c.Shown(j.Outcome.Error)
		}
		return events, nil
	})
	if err != nil {
		return j, err
	}
	if len(events) > 0 {
		e.o.Observer.Changed(j, events)
	}
	e.changed(id)
	return j, nil
}

// telling is a change of a job that events tell of, and nothing else.
func telling(events ...job.Event) func(*job.Job) ([]job.Event, error) {
	return func(*job.Job) ([]job.Event, error) { return events, nil }
}

// Watch returns the events after the given sequence number as soon as there
// are any; none when ctx ends, or when the job is done and all are told.
func (e *Executor) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	for {
		changed, live := e.watch(id)
		events, err := e.o.Store.Events(ctx, id, after)
		if err != nil {
			return nil, job.Job{}, err
		}
		j, err := e.Job(ctx, id) // read after: never older than its events
		if done := j.Done() && !live; err != nil || len(events) > 0 || done {
			if done || err != nil {
				e.changed(id) // the last time: nobody's channel stays behind
			}
			return events, j, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, j, nil
		}
	}
}

// changed wakes those who watch the job.
func (e *Executor) changed(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.watchers[id]; c != nil {
		close(c)
		delete(e.watchers, id)
	}
}

// watch returns a channel that is closed at the job's next change, and whether
// somebody works on the job.
func (e *Executor) watch(id string) (changed <-chan struct{}, live bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[id] == nil {
		e.watchers[id] = make(chan struct{})
	}
	return e.watchers[id], e.runs[id] != nil
}
