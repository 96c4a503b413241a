package executor

import (
	"context"
	"errors"

	"linus/internal/job"
)

// update changes a job in the store and wakes its watchers. The job's texts are stored
// as they may be shown: without secrets, and bounded.
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
	if errors.Is(err, job.ErrDetach) {
		signal(e.suspect)
	}
	if err != nil {
		return j, err
	}
	if len(events) > 0 {
		e.o.Observer.Changed(j, events)
	}
	e.changed(id)
	return j, nil
}

// telling is a change that only records events.
func telling(events ...job.Event) func(*job.Job) ([]job.Event, error) {
	return func(*job.Job) ([]job.Event, error) { return events, nil }
}

// Watch returns the events after the given sequence number as soon as there are any;
// none when ctx ends, or when the job is done and there are no more.
func (e *Executor) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	for {
		changed, live := e.watch(id)
		events, err := e.o.Store.Events(ctx, id, after)
		if err != nil {
			return nil, job.Job{}, err
		}
		j, err := e.Job(ctx, id) // read after its events, so never older than they are
		if done := j.Done() && !live; err != nil || len(events) > 0 || done {
			if done || err != nil {
				e.changed(id) // the last time, so that no channel is left behind
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

// changed wakes the job's watchers.
func (e *Executor) changed(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.watchers[id]; c != nil {
		close(c)
		delete(e.watchers, id)
	}
}

// watch returns a channel that is closed at the job's next change, and whether the job
// has a run.
func (e *Executor) watch(id string) (changed <-chan struct{}, live bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[id] == nil {
		e.watchers[id] = make(chan struct{})
	}
	return e.watchers[id], e.runs[id] != nil
}
