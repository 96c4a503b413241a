package dispatch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
)

// taking is a queue that is polled only while a place is free, because polling it claims the work.
type taking interface{ takes() }

const reportPause = 10 * time.Second

// tell records what waits, or why that is unknown, for the next report.
func (d *dispatcher) tell(work []Work, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told.Waiting, d.told.Oldest, d.told.Problem = 0, time.Time{}, ""
	if err != nil {
		d.told.Problem = Work{Title: err.Error()}.Presentable().Title
	}
	for _, w := range work {
		if d.taken[w.ID] {
			continue
		}
		d.told.Waiting++
		if !w.Since.IsZero() && (d.told.Oldest.IsZero() || w.Since.Before(d.told.Oldest)) {
			d.told.Oldest = w.Since
		}
	}
}

func (d *dispatcher) counted(o *job.Outcome) {
	reason := job.ReasonInternal
	if o != nil && o.Reason != "" {
		reason = o.Reason
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts[reason]++
}

// reports tells the engine the dispatcher's state until last is called, which reports its end. It calls
// drain when the engine stops the dispatcher from taking work. The dispatcher is held until the engine
// allows it to take work.
func (d *dispatcher) reports(ctx context.Context, drain func()) (last func(error)) {
	waits, warn := true, sync.OnceFunc(func() {
		d.Log.Warn("this dispatcher is drained: it takes no work until linus dispatch undrain", "name", d.Name)
	})
	d.told.Queue, d.told.Name, d.told.StartedAt, d.told.Places = job.QueueID(d.kind, d.queue), d.Name, time.Now().UTC(), d.Sessions
	say := func(ctx context.Context, with func(*job.Dispatcher)) {
		d.mu.Lock()
		now := d.told
		for _, reason := range slices.Sorted(maps.Keys(d.counts)) {
			now.Failed = append(now.Failed, job.Failing{Reason: reason, Count: d.counts[reason]})
		}
		now.Sessions = len(d.taken)
		d.mu.Unlock()
		with(&now)
		within, done := context.WithTimeout(ctx, cleanUpTime)
		defer done()
		got, err := d.Engine.ReportDispatcher(within, now)
		switch {
		case ctx.Err() != nil:
		case err != nil && waits:
			d.Log.Warn("the engine does not say yet whether this dispatcher is drained: it takes no work until then", "err", err)
		case err != nil:
			d.Log.Debug("this dispatcher's state could not be reported to the engine", "err", err)
		case got.Draining && waits:
			warn()
		case got.Draining:
			drain()
		case waits:
			waits = false
			close(d.held)
		}
	}
	telling, stop := context.WithCancel(context.WithoutCancel(ctx))
	told := make(chan struct{})
	go func() {
		defer close(told)
		for telling.Err() == nil {
			say(telling, func(now *job.Dispatcher) { now.Draining = ctx.Err() != nil })
			select {
			case <-telling.Done():
			case <-time.After(reportPause):
			}
		}
	}()
	return func(err error) {
		stop()
		<-told
		var stay *StayError
		say(context.WithoutCancel(ctx), func(now *job.Dispatcher) {
			now.Ended, now.Stopped = err == nil, err != nil && !errors.As(err, &stay)
			if now.Stopped {
				now.Problem = Work{Title: err.Error()}.Presentable().Title
			}
		})
	}
}
