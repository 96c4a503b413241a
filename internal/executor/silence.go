package executor

import (
	"context"
	"sync"
	"time"

	"linus/internal/job"
)

// Silence is counted in steps, and a step counts for no more than maxStep: what
// an engine slept, or a machine, it has not listened.
const (
	countEvery = time.Second
	maxStep    = 2 * countEvery
	// lookGrace is what a look may last beyond the heartbeat threshold, where its
	// engine lives so long: as long as SSH takes to give up.
	lookGrace = 20 * time.Second
	// writeApart is what lies between two writes of all silences together: when
	// a whole host falls silent, its jobs share the database.
	writeApart = 20 * time.Millisecond
)

// silence counts how long nothing is heard of a job's task, while it runs and while
// its output is to be collected, in the time that engines have listened. It counts
// by the monotonic clock, so that no change of date moves it, and adds up in the
// job's row, so that an engine that is killed takes only its last step with it.
// What is counted while looks are answered is not worth a row.
type silence struct {
	e       *Executor
	id      string
	decided bool // the job is: one silence ends with that, and another begins

	mu    sync.Mutex
	now   job.Silence
	saved job.Silence // in the row
	upTo  time.Time   // counted
	deaf  bool        // a look has begun and is not answered
	begun time.Time   // when it began
	cut   func()      // ends it

	stop func()
	done chan struct{}
}

// listen counts the silence of a job, on from what its row says, until end.
func (e *Executor) listen(ctx context.Context, j job.Job) *silence {
	counting, stop := context.WithCancel(ctx)
	s := &silence{e: e, id: j.ID, decided: j.Outcome != nil, now: j.Silence, saved: j.Silence, upTo: time.Now(), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		tick := time.NewTicker(countEvery)
		defer tick.Stop()
		for {
			select {
			case <-counting.Done():
				return
			case <-tick.C:
				s.tick(counting)
			}
		}
	}()
	return s
}

// end stops counting.
func (s *silence) end() {
	s.stop()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hear(true)
}

// asked notes that a look has begun. cut ends it, and is called when engines that
// did not live to the end of their looks have heard nothing for too long. It
// reports whether an earlier look, perhaps of another engine, was not answered.
func (s *silence) asked(cut func()) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.deaf || s.saved != job.Silence{}
	s.begun, s.cut = time.Now(), cut
	s.hear(false)
	return before
}

// seen notes that SSH has shown the task.
func (s *silence) seen(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	s.hear(true)
	s.now = job.Silence{}
	if s.saved != s.now {
		s.save(ctx)
	}
}

// heard notes that a callback has come.
func (s *silence) heard(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	s.now.Heard = s.now.Unseen
	if s.saved.Heard != s.saved.Unseen {
		s.save(ctx)
	}
}

// lasts returns how long nothing at all was heard of the task, and how long SSH
// has not shown it.
func (s *silence) lasts() (unheard, unseen time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	return s.now.Unseen - s.now.Heard, s.now.Unseen
}

func (s *silence) tick(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	apart := max(countEvery, time.Duration(s.e.deaf.Load())*writeApart)
	if !s.deaf {
		return
	}
	if s.now.Unseen-s.saved.Unseen >= apart {
		s.save(ctx)
	}
	if s.now.Unseen-s.now.Heard > s.e.o.HeartbeatThreshold+lookGrace && time.Since(s.begun) >= countEvery {
		s.cut()
	}
}

// count adds the time since it was last called. s.mu is held, here and below.
func (s *silence) count() {
	now := time.Now()
	s.now.Unseen += min(now.Sub(s.upTo), maxStep)
	s.upTo = now
}

// hear notes whether looks are answered.
func (s *silence) hear(answered bool) {
	if s.deaf == answered {
		s.deaf = !answered
		s.e.deaf.Add(map[bool]int64{true: -1, false: 1}[answered])
	}
}

// save writes the row, by the store: it is no news for those who watch the job.
func (s *silence) save(ctx context.Context) {
	now := s.now
	_, err := s.e.o.Store.Update(ctx, s.id, func(j *job.Job) ([]job.Event, error) {
		if s.decided == (j.Outcome != nil) {
			j.Silence = now
		}
		return nil, nil
	})
	if err == nil {
		s.saved = now
	} else if ctx.Err() == nil {
		s.e.o.Log.Warn("record of a silence failed", "job_id", s.id, "err", err)
	}
}
