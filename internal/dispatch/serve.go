package dispatch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"linus/internal/handover"
	"linus/internal/job"
	"linus/internal/sleep"
)

const (
	idlePause   = 2 * time.Second  // between polls of a queue in which nothing waits
	failedPause = 30 * time.Second // before a session takes the place of one that has failed

	// askTime bounds each call of a queue, so that a queue that does not answer blocks nothing else.
	askTime = time.Minute

	// claimEnd is how long a pending call may still claim work once the dispatcher is ending. Work that
	// is claimed but not served would have to wait until the claim expires.
	claimEnd = 10 * time.Second

	// lateTime is how long a request that a killed dispatcher had sent may still take effect.
	lateTime = 20 * time.Second

	lookPause = 30 * time.Second // between polls of a queue while no place is free

	maxWaiting = 1000 // pieces of work in one answer
	maxRefused = 3    // failed claims in one round
	maxSubmits = 3    // failed submissions that are retried
	maxFailed  = 10 * time.Minute
)

// Serve serves a queue's work until ctx ends, each piece by a job in its own VM, and then waits for the
// sessions. The sessions are marked with kind and name, which identify the queue.
func Serve(ctx context.Context, o Options, kind, name string, q Queue) error {
	o.Every, o.CoolDown = cmp.Or(o.Every, idlePause), cmp.Or(o.CoolDown, failedPause)
	d := &dispatcher{
		Options: o, kind: kind, queue: name, q: q, began: time.Now(),
		slots: make(chan struct{}, o.Sessions), taken: map[string]bool{}, jobs: map[string]bool{}, failed: map[string]failed{}, counts: map[job.Reason]int{}, held: make(chan struct{}),
	}
	return d.run(ctx)
}

// claim resumes earlier sessions, and then claims work until ctx ends.
func (d *dispatcher) claim(ctx, sessions context.Context) error {
	on, ended, err := d.before(ctx)
	if err != nil {
		return err
	}
	d.sessions.Go(func() { // no dispatcher may have been running when they ended
		for _, j := range ended {
			if sessions.Err() != nil {
				return // the next dispatcher releases them
			}
			s := Session{j.Session.Work, j.ID, j.Session.Name}
			switch { // what is repeated does not delay the others
			case !d.released(sessions, s, j.Outcome):
				d.sessions.Go(func() { d.release(sessions, s, j.Outcome) })
			case time.Since(j.CompletedAt) < askTime:
				d.sessions.Go(func() { d.releaseAgain(sessions, s, j.Outcome) })
			}
		}
	})
	for _, j := range on {
		select {
		case d.slots <- struct{}{}: // even while no work may be taken: these sessions have begun
		default:
			if !d.place(ctx) {
				return nil
			}
		}
		s := Session{j.Session.Work, j.ID, j.Session.Name}
		if q, is := d.q.(Continued); is && j.Status == job.Running {
			q.Continue(s)
		}
		d.begin(s.Work.ID, func() {
			log := d.logOf(s)
			log.Info("session continues")
			if j.Status == job.Running { // the previous dispatcher may have died before it handed the work over
				d.sessions.Go(func() { d.noMore(sessions, s) })
				d.toEnd(sessions, s, log)
				return
			}
			d.serve(sessions, s, job.Manifest{}, log)
		})
	}
	select {
	case <-d.held:
	case <-ctx.Done():
		return nil
	}
	asking, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(claimEnd, stop) })()
	var woken <-chan struct{}
	if h, is := d.q.(Hooked); is {
		woken = h.Woken()
	}
	for failures := 0; d.free(ctx); {
		begun, err := d.round(asking, sessions)
		var fatal *Fatal
		wait := d.Every
		switch {
		case errors.As(err, &fatal):
			return err
		case err != nil && asking.Err() == nil:
			failures++
			d.Log.Warn("no work can be claimed at the moment", "err", err)
			wait = backOff(failures)
		case err == nil:
			failures = 0
			if begun > 0 {
				continue // there may be more
			}
		}
		select {
		case <-ctx.Done():
		case <-woken:
		case <-time.After(wait):
		}
	}
	return nil
}

// free takes a place for a session, as place does. While none is free, it polls the queue from time to
// time to report what waits.
func (d *dispatcher) free(ctx context.Context) bool {
	_, takes := d.q.(taking)
	for {
		within, done := context.WithTimeout(ctx, lookPause)
		free := d.place(within)
		done()
		if free || ctx.Err() != nil {
			return free
		}
		if !takes {
			work, err := d.waiting(ctx)
			d.tell(work, err)
		}
	}
}

// round polls the queue and begins sessions: one in the place that the caller has taken, and more while
// others are free.
func (d *dispatcher) round(ctx, sessions context.Context) (begun int, err error) {
	place := true
	defer func() {
		if place {
			<-d.slots
		}
	}()
	work, err := d.waiting(ctx)
	if err != nil {
		d.tell(nil, err)
		return 0, err
	}
	defer func() { d.tell(work, err) }()
	refused := 0
	for i, w := range work {
		select {
		case <-d.ending:
			if i > 0 { // polling may have claimed the first already
				return begun, err
			}
		default:
		}
		m, _ := d.shape(w)
		if d.busy(w) {
			continue
		}
		if !place {
			select {
			case d.slots <- struct{}{}:
				place = true
			default:
				return begun, nil
			}
		}
		within, done := context.WithTimeout(ctx, askTime)
		claimed, failed := d.q.Claim(within, w)
		done()
		if claimed && failed == nil {
			s := Session{Work: w, Name: "linus-dispatch-" + rand.Text()}
			place = false
			begun++
			d.begin(w.ID, func() { d.serve(sessions, s, m, d.logOf(s)) })
		}
		if _, fatal := errors.AsType[*Fatal](failed); fatal {
			return begun, failed
		}
		if failed != nil {
			d.fails(w)
			err = failed
			if refused++; refused == maxRefused {
				break // the next claims would fail as well, and the list may be outdated
			}
		}
	}
	return begun, err
}

// waiting returns the valid work that waits for this dispatcher.
func (d *dispatcher) waiting(ctx context.Context) (work []Work, err error) {
	ctx, done := context.WithTimeout(ctx, askTime)
	defer done()
	all, err := d.q.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	many := len(all) > maxWaiting
	if many && !d.many {
		d.Log.Warn("the queue reports more waiting work than is possible: only the oldest count", "waiting", len(all))
	}
	all, d.many = all[:min(len(all), maxWaiting)], many
	odd, why := 0, error(nil)
	seen := map[string]bool{}
	for _, w := range all {
		w = w.Presentable()
		if err := w.Check(); err != nil {
			odd, why = odd+1, err
		} else if _, ours := d.shape(w); ours && !seen[w.ID] {
			seen[w.ID] = true
			work = append(work, w)
		}
	}
	if odd > 0 && odd != d.odd {
		d.Log.Warn("the queue has invalid work", "pieces", odd, "err", why)
	}
	d.odd = odd
	return work, nil
}

// busy reports whether work has a session, or is not to be retried yet.
func (d *dispatcher) busy(w Work) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.taken[w.ID] || time.Now().Before(d.failed[w.ID].until)
}

// fails records that work could not be served. It is retried with growing pauses, so that it does not
// hold up other work.
func (d *dispatcher) fails(w Work) { d.later(w, 1) }

// later delays work that waits again after a session, longer each time. first counts the cool-downs of
// the first delay: with 0 there is none.
func (d *dispatcher) later(w Work, first int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for id, f := range d.failed {
		if now.Sub(f.until) > maxFailed {
			delete(d.failed, id)
		}
	}
	f := d.failed[w.ID]
	f.until = now
	if n := f.times + first; n > 0 {
		f.until = now.Add(min(d.CoolDown<<min(n-1, 10), maxFailed))
	}
	f.times++
	d.failed[w.ID] = f
}

func (d *dispatcher) logOf(s Session) *slog.Logger {
	log := d.Log.With("work_id", s.Work.ID)
	if s.Work.Title != "" {
		log = log.With("title", s.Work.Title)
	}
	if s.Job != "" {
		log = log.With("job_id", s.Job)
	}
	return log
}

// serve serves claimed work to its end, by a new job or, after a restart, by the job it already has.
func (d *dispatcher) serve(ctx context.Context, s Session, m job.Manifest, log *slog.Logger) {
	err := d.start(ctx, &s, m)
	log = d.logOf(s)
	switch {
	case err == nil:
		log.Info("session is served")
		d.toEnd(ctx, s, log)
		return
	case errors.Is(err, errUnsure):
		log.Warn("it is not known whether the VM received its work; the VM ends if it did not", "err", err)
		d.sessions.Go(func() { d.noMore(ctx, s) })
		d.toEnd(ctx, s, log)
		return
	}
	log.Warn("the session could not be started here", "err", err)
	var o *job.Outcome
	if s.Job != "" {
		d.cancel(ctx, s.Job)
		within, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
		if j, err := d.watch(within, s.Job, job.OnlyEnd, func(j job.Job) bool { return j.Status.Terminal() }); err == nil {
			o = j.Outcome
		}
		done()
	}
	d.sessions.Go(func() { d.release(ctx, s, o) })
	switch {
	case errors.Is(err, errServed): // by another dispatcher, until that session ends
		d.fails(s.Work)
	case !errors.Is(err, ErrLost):
		// The queue gives the work out again when the claim expires: a host that is down ends no session.
		d.counted(o)
		d.fails(s.Work)
		d.coolDown(ctx)
	}
}

var errServed = errors.New("another session serves the work")

// start has a session's VM made while the claim is held, and then hands the work over to it. If there is
// a job, s.Job is set even if start returns an error.
func (d *dispatcher) start(ctx context.Context, s *Session, m job.Manifest) (err error) {
	making, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	made, held := make(chan struct{}), make(chan struct{})
	holding := *s
	go func() {
		defer close(held)
		if err := d.q.Hold(making, holding, made); err != nil {
			lose(err)
		}
	}()
	err = d.launch(making, s, m)
	close(made)
	late := time.AfterFunc(askTime, func() { lose(ErrLost) })
	<-held
	late.Stop()
	if cause := context.Cause(making); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	within, done := context.WithTimeout(ctx, askTime)
	h, err := d.q.Handover(within, *s)
	done()
	if err != nil {
		return err
	}
	return d.deliver(ctx, *s, h)
}

// launch submits a session's job, unless it has one, and returns once the job's task runs.
func (d *dispatcher) launch(ctx context.Context, s *Session, m job.Manifest) error {
	if s.Job == "" {
		m = d.complete(m, s.Work)
		m.Task = strings.ReplaceAll(awaits, "NAME", s.Name) + d.q.Task()
		j, err := d.submit(ctx, job.Submission{
			Manifest: m, IdempotencyKey: s.Name, Client: "dispatch",
			Session: &job.Session{Kind: d.kind, Queue: d.queue, Dispatcher: d.Name, Name: s.Name, Work: s.Work, Keep: d.Keep},
		})
		if bad, is := errors.AsType[*job.FieldError](err); is && bad.Field == "session.work" && bad.Fault == job.FaultState {
			return fmt.Errorf("%w: %w", errServed, err)
		}
		if err != nil {
			return err
		}
		s.Job = j.ID
	}
	j, err := d.watch(ctx, s.Job, 0, func(j job.Job) bool { return j.Status == job.Running || j.Status.Terminal() })
	if err == nil && j.Outcome != nil {
		err = errors.New("its job has ended: " + j.Outcome.Error)
	}
	return err
}

func (d *dispatcher) toEnd(ctx context.Context, s Session, log *slog.Logger) {
	j, err := d.follow(ctx, s.Job)
	if err != nil && !errors.Is(err, job.ErrNotFound) {
		return // the job keeps running without this dispatcher
	}
	d.sessions.Go(func() { d.release(ctx, s, j.Outcome) })
	switch o := j.Outcome; {
	case o == nil: // it was deleted
	case o.Status == job.Success:
		log.Info("session has ended")
		d.later(s.Work, 0) // the work is done, or another runner had it
	case o.ExitCode != nil && *o.ExitCode == WorkFailed:
		d.counted(o)
		log.Info("session has ended: its work has failed")
		d.later(s.Work, 0)
	case o.ExitCode != nil && *o.ExitCode == handover.LeaseLost:
		log.Warn("the session's lease is lost: the queue may give its work out again", "reason", o.Reason)
		d.fails(s.Work)
	default:
		d.counted(o)
		log.Warn("session has failed", "reason", o.Reason, "err", o.Error)
		d.fails(s.Work)
		d.coolDown(ctx)
	}
}

// release takes back what a session has left in the queue. It retries with growing pauses until that
// succeeds, and once more if the dispatcher ends.
func (d *dispatcher) release(ctx context.Context, s Session, o *job.Outcome) {
	d.tillReleased(ctx, s, o)
	d.releaseAgain(ctx, s, o)
}

// releaseAgain repeats a release that succeeded in the dispatcher's first moments: a request of a killed
// dispatcher, such as for a runner, may have taken effect after it.
func (d *dispatcher) releaseAgain(ctx context.Context, s Session, o *job.Outcome) {
	late := time.Until(d.began.Add(lateTime))
	if late <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-d.ending:
	case <-time.After(late):
	}
	d.tillReleased(ctx, s, o)
}

func (d *dispatcher) tillReleased(ctx context.Context, s Session, o *job.Outcome) {
	for n := 0; !d.released(ctx, s, o) && sleep.For(ctx, backOff(n)) == nil; n++ {
	}
}

// released makes one attempt at that.
func (d *dispatcher) released(ctx context.Context, s Session, o *job.Outcome) bool {
	within, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer done()
	err := d.q.Release(within, s, o)
	if err != nil {
		d.logOf(s).Warn("what the session may have left in the queue could not be taken back yet", "err", err)
	}
	return err == nil
}
