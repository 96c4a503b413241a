package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
)

// errClosed is returned for changes after Close.
var errClosed = errors.New("the store is closed")

// maxBatch bounds how many changes share a commit, and so how long the first of them waits for the
// others.
const maxBatch = 128

// maxLinger is how long a change without a waiting caller waits for others to share a commit with.
const maxLinger = 500 * time.Millisecond

// change is what one caller writes.
type change struct {
	work     func(*tx) error
	unfenced bool            // counts even if this engine is not a member
	soon     time.Time       // when to write it if no other change comes; zero: now
	err      error           // of work, or of the commit
	panicked any             // what work panicked with
	told     []job.Happening // to report to Store.Changes after the commit
	done     chan struct{}
}

// transaction runs work in a transaction of the store's only writer. It returns when the
// transaction is durable, or was rolled back because work failed or panicked. Concurrent calls
// share a commit, but not their failures. ctx ends the wait for the writer, but not work that has
// begun.
//
// work runs in the writer's goroutine and must not call the store. It may run again after a
// transaction that was not committed; only the last run counts.
func (s *Store) transaction(ctx context.Context, work func(*tx) error) error {
	return s.submit(ctx, work, false)
}

// unfenced is transaction for what an engine may write without being a member; see engines.go.
func (s *Store) unfenced(ctx context.Context, work func(*tx) error) error {
	return s.submit(ctx, work, true)
}

func (s *Store) submit(ctx context.Context, work func(*tx) error, unfenced bool) error {
	return s.persist(ctx, func() error {
		return s.submitOnce(ctx, &change{work: work, unfenced: unfenced, done: make(chan struct{})})
	})
}

// lingering is transaction for a change that is written with the next one, or within maxLinger. The
// returned function waits until it is written.
func (s *Store) lingering(work func(*tx) error) (wait func() error) {
	c := &change{work: work, soon: time.Now().Add(maxLinger), done: make(chan struct{})}
	if !s.waiting.add(c) {
		return func() error { return errClosed }
	}
	return func() error {
		<-c.done
		return c.result()
	}
}

func (s *Store) submitOnce(ctx context.Context, c *change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.waiting.add(c) {
		return errClosed
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if s.waiting.remove(c) {
			return ctx.Err()
		}
		<-c.done
	}
	return c.result()
}

// result returns the error of a change that has run, or panics as its work did.
func (c *change) result() error {
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.err
}

// changes are the queue for the writer.
type changes struct {
	mu      sync.Mutex
	waiting []*change
	closed  bool
	news    chan struct{} // changes are waiting, or no more will come
}

// add queues c; false: the store is closed.
func (w *changes) add(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.waiting = append(w.waiting, c)
	w.wake()
	return true
}

// remove takes c out of the queue; false: the writer has already taken it.
func (w *changes) remove(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.Index(w.waiting, c)
	if at >= 0 {
		w.waiting = slices.Delete(w.waiting, at, at+1)
	}
	return at >= 0
}

// take waits until a change is due, and takes the next batch; it is empty when the store is closed.
func (w *changes) take() []*change {
	for {
		batch, due := w.ready()
		if due <= 0 {
			return batch
		}
		timer := time.NewTimer(due)
		select {
		case <-w.news:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// ready takes the next batch if a change is due, the batch is full, or the store is closed.
// Otherwise it returns how long to wait before the next call.
func (w *changes) ready() (batch []*change, due time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	due = time.Hour
	for _, c := range w.waiting {
		due = min(due, time.Until(c.soon))
	}
	if due > 0 && !w.closed && len(w.waiting) < maxBatch {
		return nil, due
	}
	batch = w.waiting[:min(len(w.waiting), maxBatch)]
	w.waiting = slices.Clone(w.waiting[len(batch):])
	return batch, 0
}

// close rejects further changes.
func (w *changes) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wake()
}

// wake wakes take. w.mu is held.
func (w *changes) wake() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// writeAll commits callers' changes until the store is closed.
func (s *Store) writeAll() {
	defer close(s.written)
	for {
		batch := s.waiting.take()
		if len(batch) == 0 {
			return
		}
		s.commit(batch)
	}
}

// commit writes a batch and reports the results to its callers. If the transaction fails as a
// whole, each change gets a transaction of its own, so that only the faulty ones fail. Without a
// connection they all fail together: their callers may wait for one.
func (s *Store) commit(batch []*change) {
	lost, err := s.attempt(batch)
	if err != nil && !lost && len(batch) > 1 {
		for _, c := range batch {
			s.commit([]*change{c})
		}
		return
	}
	for _, c := range batch {
		switch {
		case err != nil && lost: // what work found was never written
			c.err, c.panicked = err, nil
		case err != nil && c.err == nil:
			c.err = err
		}
		if c.err == nil && s.Changes != nil {
			s.Changes.Add(c.told...)
		}
		close(c.done)
	}
}

// attempt runs a batch in one transaction. lost, with an error, means that there is no connection
// to the database and nothing was written.
func (s *Store) attempt(batch []*change) (lost bool, err error) {
	if err := s.connect(); err != nil {
		return true, err
	}
	ctx, end := s.limited(context.Background())
	defer end()
	s.write.ctx = ctx
	s.write.renew()
	id, err := s.dialect.begin(s.write)
	if err != nil {
		return true, err
	}
	if err = s.run(ctx, batch); err == nil {
		if err = s.dialect.commit(s.write); err == nil {
			s.committed()
			return false, nil
		}
		if s.dialect.dead(s.write.conn) {
			return true, s.commitOutcome(id, err)
		}
	}
	if s.dialect.dead(s.write.conn) {
		return true, err
	}
	s.write.renew()
	_, _ = s.write.ExecContext(ctx, `ROLLBACK`) // the database may have rolled back already
	return false, err
}

// connect ensures that the writer has a connection.
func (s *Store) connect() error {
	if s.write != nil {
		if !s.dialect.dead(s.write.conn) {
			return nil
		}
		_ = s.write.conn.Close()
		s.write = nil
	}
	ctx, end := s.limited(context.Background())
	defer end()
	conn, err := s.writer.Conn(ctx)
	if err == nil {
		s.write = newTx(s.dialect, conn)
	}
	return err
}

// commitOutcome returns nil if a transaction whose connection was lost in its COMMIT, with err, was
// committed. A change that was written must not be reported as failed or run again. The database
// remembers how its transactions ended, and is asked as soon as it can be reached. If that takes
// longer than s.patience, the error says that the outcome is unknown.
func (s *Store) commitOutcome(id string, err error) error {
	committed := false
	askErr := s.persist(context.Background(), func() error {
		if err := s.connect(); err != nil {
			return err
		}
		ctx, end := s.limited(context.Background())
		defer end()
		s.write.ctx = ctx
		s.write.renew()
		var err error
		committed, err = s.dialect.commitOutcome(ctx, s.write, id)
		return err
	})
	switch {
	case askErr != nil:
		return &unknownError{lost: err, ask: askErr}
	case committed:
		return nil
	}
	return err
}

// unknownError is returned for a change that may or may not have been written.
type unknownError struct{ lost, ask error }

func (e *unknownError) Error() string {
	return fmt.Sprintf("the connection was lost in the commit (%v), and whether it was written is unknown: %v", e.lost, e.ask)
}

// run runs the work of a batch, and undoes the changes that failed. An error fails the whole
// transaction, which it always does for a batch of one.
func (s *Store) run(ctx context.Context, batch []*change) error {
	s.write.engine, s.write.notices, s.write.soon = s.EngineID(), nil, nil
	inside := slices.ContainsFunc(batch, func(c *change) bool { return !c.unfenced })
	if inside && s.write.engine != "" { // on errBuried, commit gives each change its own transaction
		if err := s.dialect.fence(s.write, s.write.engine); err != nil {
			return err
		}
	}
	for _, c := range batch {
		if err := s.runChange(ctx, c, len(batch) > 1); err != nil {
			return err
		}
	}
	s.gather(s.write)
	if len(s.write.notices) == 0 {
		return nil
	}
	return s.dialect.send(s.write)
}

// runChange runs one change. shared means that the transaction has other changes, too, and
// continues if this one fails by itself.
func (s *Store) runChange(ctx context.Context, c *change, shared bool) error {
	if !shared {
		c.run(s.write)
		return errors.Join(c.err, s.write.broken)
	}
	told := len(s.write.notices)
	s.write.post(`SAVEPOINT change`)
	if c.run(s.write); c.err != nil {
		s.write.notices = s.write.notices[:told]
		if _, err := s.write.ExecContext(ctx, `ROLLBACK TO change`); err != nil {
			return errors.Join(c.err, err)
		}
	}
	s.write.post(`RELEASE change`)
	return s.write.broken
}

// run does the work, and records its error or panic.
func (c *change) run(t *tx) {
	c.err, c.panicked, t.told = nil, nil, nil
	defer func() {
		if c.panicked = recover(); c.panicked != nil {
			c.err = fmt.Errorf("panic: %v", c.panicked)
		}
	}()
	c.err = c.work(t)
	c.told = t.told
}
