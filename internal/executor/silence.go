package executor

import (
	"context"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
)

// Silence is counted in steps of at most maxStep: an engine or machine that was suspended did not
// listen meanwhile.
const (
	countEvery = time.Second
	maxStep    = 2 * countEvery
	// lookGrace is how long a check may take beyond the heartbeat threshold, if its engine runs
	// that long: as long as SSH takes to give up.
	lookGrace = 20 * time.Second
	// writeApart is the minimum time between two writes of all silences together: if a whole host
	// falls silent, its jobs share the database.
	writeApart = 20 * time.Millisecond
)

// contactClock counts how long nothing was heard of a job's task, while it runs and while its
// output is collected. Only the time that engines listened counts. It uses the monotonic clock, so
// changes of the date do not matter. The sum is in the job's row, so a killed engine loses only its
// last step. While checks are answered nothing is written.
type contactClock struct {
	e       *Executor
	id      string
	decided bool // the job is decided, which ends one silence and begins another

	saving lock.FairMutex // orders the writes

	mu    sync.Mutex
	now   job.Silence
	saved job.Silence // as stored in the row
	upTo  time.Time   // time up to which now is counted
	deaf  bool        // a check has begun and is unanswered
	begun time.Time   // when the check began
	cut   func()      // ends the check

	stop func()
	done chan struct{}
}

// listen counts the silence of a job, starting from its row, until end.
func (e *Executor) listen(ctx context.Context, j job.Job) *contactClock {
	counting, stop := context.WithCancel(ctx)
	s := &contactClock{e: e, id: j.ID, decided: j.Outcome != nil, now: j.Silence, saved: j.Silence, upTo: time.Now(), stop: stop, done: make(chan struct{})}
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

func (s *contactClock) end() {
	s.stop()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hear(true)
}

// probeStarted records that a check has begun. cut ends the check; it is called if nothing was
// heard for too long by engines that ended before their checks did. probeStarted reports whether an
// earlier check, perhaps another engine's, was not answered.
func (s *contactClock) probeStarted(cut func()) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.deaf || s.saved != job.Silence{}
	s.begun, s.cut = time.Now(), cut
	s.hear(false)
	return before
}

// seen records that SSH has shown the task.
func (s *contactClock) seen(ctx context.Context) {
	s.mu.Lock()
	s.count()
	s.hear(true)
	s.now = job.Silence{}
	save := s.saved != s.now
	s.mu.Unlock()
	if save {
		s.save(ctx)
	}
}

// restart counts from before again and records it: an engine fault says nothing about the VM.
func (s *contactClock) restart(ctx context.Context, before job.Silence) {
	s.mu.Lock()
	s.now, s.upTo = before, time.Now()
	s.mu.Unlock()
	s.save(ctx)
}

// heard records that a callback has arrived.
func (s *contactClock) heard(ctx context.Context) {
	s.mu.Lock()
	s.count()
	s.now.Heard = s.now.Unseen
	save := s.saved.Heard != s.saved.Unseen
	s.mu.Unlock()
	if save {
		s.save(ctx)
	}
}

// lasts returns how long nothing was heard of the task, by callbacks or SSH, and how long SSH has
// not shown it.
func (s *contactClock) lasts() (unheard, unseen time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count()
	return s.now.Unseen - s.now.Heard, s.now.Unseen
}

func (s *contactClock) tick(ctx context.Context) {
	s.mu.Lock()
	s.count()
	apart := max(countEvery, time.Duration(s.e.unanswered.Load())*writeApart)
	save := s.deaf && s.now.Unseen-s.saved.Unseen >= apart
	over := s.deaf && s.now.Unseen-s.now.Heard > s.e.o.HeartbeatThreshold+lookGrace && time.Since(s.begun) >= countEvery
	cut := s.cut
	s.mu.Unlock()
	if save {
		s.save(ctx)
	}
	if over {
		cut()
	}
}

// count adds the time since its last call. The caller of count or hear holds s.mu.
func (s *contactClock) count() {
	now := time.Now()
	s.now.Unseen += min(now.Sub(s.upTo), maxStep)
	s.upTo = now
}

// hear records whether checks are answered.
func (s *contactClock) hear(answered bool) {
	if s.deaf == answered {
		s.deaf = !answered
		s.e.unanswered.Add(map[bool]int64{true: -1, false: 1}[answered])
	}
}

// save writes the row directly in the store, because it is not news for the job's watchers.
func (s *contactClock) save(ctx context.Context) {
	leave, err := s.saving.Enter(ctx)
	if err != nil {
		return
	}
	defer leave()
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	_, err = s.e.o.Jobs.Update(ctx, s.id, func(j *job.Job) (job.Record, error) {
		if s.decided == (j.Outcome != nil) {
			j.Silence = now
		}
		return job.Record{Quiet: true}, nil
	})
	if err == nil {
		s.mu.Lock()
		s.saved = now
		s.mu.Unlock()
	} else if ctx.Err() == nil {
		s.e.o.Log.Warn("record of a silence failed", "job_id", s.id, "err", err)
	}
}
