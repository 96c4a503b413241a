package executor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// update changes a job in the store, which reports the change. The job's texts are stored as they
// may be shown: without secrets, and bounded.
func (e *Executor) update(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	return e.updateWith(ctx, id, job.EventsOnly(change))
}

// updateWith is update for a change that records more than events.
func (e *Executor) updateWith(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	var record job.Record
	j, err := e.o.Jobs.Update(ctx, id, e.maskAndNotify(change, &record))
	return e.updated(j, record, err)
}

// updateSoon is update for changes that need not be durable at once. It does not wait for the write.
func (e *Executor) updateSoon(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) {
	var record job.Record
	wait := e.o.Jobs.UpdateSoon(id, e.maskAndNotify(job.EventsOnly(change), &record))
	e.work.Go(func() {
		j, err := wait()
		if _, err = e.updated(j, record, err); err != nil { // the database may have been unavailable
			_, err = e.update(ctx, id, change)
		}
		if err != nil {
			e.o.Log.Error("record progress failed", "job_id", id, "err", err)
		}
	})
}

// step records a change soon, together with others that arrive until then.
func (e *Executor) step(ctx context.Context, r *run, c change) {
	e.mu.Lock()
	r.steps = append(r.steps, c)
	first := len(r.steps) == 1
	e.mu.Unlock()
	if !first {
		return // the first one takes it along
	}
	var steps []change
	e.updateSoon(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		e.mu.Lock()
		steps, r.steps = append(steps, r.steps...), nil // after a failed commit there may be more
		e.mu.Unlock()
		return all(steps...)(j)
	})
}

// maskAndNotify wraps a change: it makes the job's texts showable, and adds the messages about the
// job's end. It copies what the change records to record.
func (e *Executor) maskAndNotify(change func(*job.Job) (job.Record, error), record *job.Record) func(*job.Job) (job.Record, error) {
	return func(j *job.Job) (job.Record, error) {
		undecided, ended := j.Outcome == nil, j.Status.Terminal()
		made, err := change(j)
		if err != nil {
			return job.Record{}, err
		}
		if !ended && j.Status.Terminal() {
			made.Outbox = e.ending(*j)
		}
		for _, w := range made.Outbox {
			j.SetDelivery(job.Delivery{ID: w.ID, To: w.Host(), State: job.DeliveryPending, At: w.CreatedAt})
		}
		c := e.captureOf(*j)
		for i := range made.Events {
			made.Events[i].Text = c.Shown(made.Events[i].Text)
		}
		j.Progress = c.Shown(j.Progress)
		if undecided && j.Outcome != nil {
			j.Outcome.Error = c.Shown(j.Outcome.Error)
		}
		*record = made
		return made, nil
	}
}

// updated triggers what follows a change of a job.
func (e *Executor) updated(j job.Job, record job.Record, err error) (job.Job, error) {
	if errors.Is(err, job.ErrDetach) {
		signal(e.leaseDoubted)
	}
	if err == nil && len(record.Outbox) > 0 {
		e.undelivered.Store(true)
		signal(e.notices)
	}
	return j, err
}

// heed reports a happening to its watchers and to this engine's observer.
func (e *Executor) heed(h job.Happening) {
	switch h := h.(type) {
	case job.Change:
		if len(h.Events) > 0 {
			e.o.Observer(h)
		}
		status := func(e job.Event) bool { return e.Kind == job.EventStatus }
		if h.Job.Done() || slices.ContainsFunc(h.Events, status) {
			e.changed(h.Job.ID)
		} else {
			e.changedSoon(h.Job.ID)
		}
		if h.Job.VM != nil && h.Job.VM.Job == h.Job.ID {
			e.reopen(*h.Job.VM)
		}
	case job.VMChanged:
		e.vmChanged(h.VM, h.Events)
	default:
		e.o.Observer(h)
	}
}

// reopen has the dispatcher look for the job that made an unwanted VM.
func (e *Executor) reopen(v vm.VM) {
	if v.Own == nil && v.Unwanted && !v.State.Settled() {
		signal(e.reopened)
	}
}

// vmChanged reports a change of a VM to the watchers of the job that made it and of other jobs in
// it, and to the observer.
func (e *Executor) vmChanged(v vm.VM, events []job.Event) {
	if e.o.Webhooks != nil && e.o.Webhooks.Installation {
		e.undelivered.Store(true)
		signal(e.notices)
	}
	made := job.Job{ID: v.Job, Kind: job.KindTask, VM: &v} // made by a job, of which nothing more is known here
	if v.Own != nil {
		made = job.StandInJob(v)
	}
	if len(events) > 0 && (v.Own == nil || v.AskedFor()) {
		e.o.Observer(job.Change{Job: made, Events: events})
	}
	e.reopen(v)
	e.changed(v.Job)
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, w := range e.watchers {
		reads := w.seen == nil && !strings.HasSuffix(key, endKey("")) // it may be reading the state before the change
		if reads || w.seen != nil && w.seen.job.VM != nil && w.seen.job.VM.Job == v.Job {
			e.wakeWatchers(key)
		}
	}
}

func recordEvents(events ...job.Event) func(*job.Job) ([]job.Event, error) {
	return func(*job.Job) ([]job.Event, error) { return events, nil }
}

// Watch returns the events after the given sequence number, soon after there are any. It returns
// none when ctx ends, when the job is done and there are no more, or when an engine fault begins to
// hold the job up. With job.OnlyEnd it waits for a terminal status.
func (e *Executor) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	if after == job.OnlyEnd {
		j, err := e.watchEnd(ctx, id)
		return nil, j, err
	}
	for {
		w, seen, live := e.watch(id)
		if seen == nil || after < seen.last || time.Since(seen.at) > lookAge {
			events, err := e.events(ctx, id, after)
			if err != nil {
				e.changed(id) // so that a job that does not exist leaves no watcher behind
				return nil, job.Job{}, err
			}
			j, err := e.Job(ctx, id) // read after its events, so never older than they are
			if done := j.Done() && !live; err != nil || done {
				if err == nil { // the last events may have arrived between the two reads
					events, err = e.events(ctx, id, after)
				}
				e.changed(id) // so that no watcher is left behind
				return events, j, err
			}
			if len(events) > 0 {
				after = events[len(events)-1].Seq
			}
			seen = &look{last: after, job: j, at: time.Now()}
			e.looked(w, seen)
			if len(events) > 0 {
				return events, j, nil
			}
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return nil, seen.job, nil
		}
		if w.held {
			j, err := e.Job(ctx, id)
			return nil, j, err
		}
	}
}

// events returns the events with Seq > after of a job, or of the VM that Known returns a stand-in for.
func (e *Executor) events(ctx context.Context, id string, after int64) ([]job.Event, error) {
	events, err := e.o.Jobs.Events(ctx, id, after)
	if !errors.Is(err, job.ErrNotFound) {
		return events, err
	}
	told, noVM := e.o.Jobs.VMEvents(ctx, id)
	if noVM != nil || len(told) == 0 {
		if _, err = e.o.Fleet.Known(ctx, id); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(told, func(e job.Event) bool { return e.Seq <= after }), noVM
}

// watchEnd returns the job when its status is terminal, or the current job when ctx ends.
func (e *Executor) watchEnd(ctx context.Context, id string) (job.Job, error) {
	for {
		w, _, _ := e.watch(endKey(id))
		j, err := e.Job(ctx, id)
		if err != nil || j.Status.Terminal() {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.wakeWatchers(endKey(id)) // so that no watcher is left behind
			return j, err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return j, nil
		}
	}
}

// endKey is the key of watchers that only wait for a job's end: changes that changedSoon gathers do
// not wake them.
func endKey(id string) string { return id + " end" }

// gather is how long a change waits for others before the job's watchers are woken, unless the
// job's status changes: each wake costs a request and a read of the store.
const gather = 250 * time.Millisecond

// watched is what the watchers of a job wait for.
type watched struct {
	changed chan struct{} // closed after the job's next change
	held    bool          // changed is closed because an engine fault holds the job up; set before the close

	// Executor.mu guards these.
	soon *time.Timer // closes changed; nil: no change is pending
	seen *look       // as of a look since this was made; nil: none
}

// look is what a watcher has seen. Anything later closes the channel that the watcher got before.
type look struct {
	last int64 // the job's last event, or a later number
	job  job.Job
	at   time.Time
}

// lookAge is how long a look is good for later watchers: what a job waits for can change without a
// change of the job.
const lookAge = time.Second

func (e *Executor) changed(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakeWatchers(id)
	e.wakeWatchers(endKey(id))
}

// wakeWatchers wakes the watchers with a key. The caller holds e.mu.
func (e *Executor) wakeWatchers(key string) {
	w := e.watchers[key]
	if w == nil {
		return
	}
	if w.soon != nil {
		w.soon.Stop()
	}
	close(w.changed)
	delete(e.watchers, key)
}

// changedSoon wakes the job's watchers after gather.
func (e *Executor) changedSoon(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.watchers[id]
	if w == nil || w.soon != nil {
		return
	}
	w.soon = time.AfterFunc(gather, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.watchers[id] == w {
			e.wakeWatchers(id)
		}
	})
}

// watch returns what a watcher of the job waits for, what another watcher has seen since that was
// made, and whether the job has a run.
func (e *Executor) watch(id string) (w *watched, seen *look, live bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[id] == nil {
		e.watchers[id] = &watched{changed: make(chan struct{})}
	}
	w = e.watchers[id]
	return w, w.seen, e.runs[id] != nil
}

func (e *Executor) looked(w *watched, seen *look) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.seen = seen
}
