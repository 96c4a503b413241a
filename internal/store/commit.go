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

// errClosed is returned for a change after Close.
var errClosed = errors.New("the store is closed")

// maxBatch bounds how many changes share a commit, and so how long the first of
// them waits for the others.
const maxBatch = 128

// maxLinger is how long a change for which nobody waits waits for others to share a
// commit with.
const maxLinger = 500 * time.Millisecond

// change is what one caller writes.
type change struct {
	work     func(*tx) error
	unfenced bool            // it counts even if this engine is no member
	soon     time.Time       // when it is to be written if no other change comes; zero: now
	err      error           // of work, or of the commit
	panicked any             // what work panicked with
	told     []job.Happening // when it is committed
	done     chan struct{}
}

// transaction runs work in a transaction of the store's only writer and returns
// when it is durable, or has been rolled back because work failed or panicked.
// Calls at the same time share a commit, but not their failures. ctx ends the
// wait for the writer, and not what it has begun.
//
// work runs in the writer's goroutine. It must not call the store, and it may
// run again after a transaction that was not committed: what it did in the last
// one counts.
func (s *Store) transaction(ctx context.Context, work func(*tx) error) error {
	return s.submit(ctx, work, false)
}

// unfenced is transaction for what an engine may write that is no member: see
// engines.go.
func (s *Store) unfenced(ctx context.Context, work func(*tx) error) error {
	return s.submit(ctx, work, true)
}

func (s *Store) submit(ctx context.Context, work func(*tx) error, unfenced bool) error {
	return s.persist(ctx, func() error {
		return s.submitOnce(ctx, &change{work: work, unfenced: unfenced, done: make(chan struct{})})
	})
}

// lingering is transaction for what is written with the next change, or soon. It returns
// a function that waits until it is.
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

// result is the error of a change that was run.
func (c *change) result() error {
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.err
}

// changes wait for the writer.
type changes struct {
	mu      sync.Mutex
	waiting []*change
	closed  bool
	news    chan struct{} // there are some, or no more will come
}

// add puts c in line; false: the store is closed.
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

// remove takes c out of the line; false: its turn has come.
func (w *changes) remove(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := slices.Index(w.waiting, c)
	if at >= 0 {
		w.waiting = slices.Delete(w.waiting, at, at+1)
	}
	return at >= 0
}

// take waits for changes that are due, and takes all that wait; none when the store is
// closed.
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

// ready takes the changes that wait if one of them is due or the store is closed.
// Otherwise it returns after what time to ask again.
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

// close lets no more changes in.
func (w *changes) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.wake()
}

// wake tells take. w.mu is held.
func (w *changes) wake() {
	select {
	case w.news <- struct{}{}:
	default:
	}
}

// writeAll commits what callers want to write, until the store is closed.
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

// commit writes a batch and tells its callers. If the transaction fails as a
// whole, each change gets one of its own, so that only those fail that have to;
// but not if there is no connection, which all callers may wait for.
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
		case err != nil && lost: // what it found was never written
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

// attempt runs a batch in one transaction. lost: with an error, there is no
// connection to the database, and nothing was written.
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
	_, _ = s.write.ExecContext(ctx, `ROLLBACK`) // the database may have done so already
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

// commitOutcome returns nil if a transaction was committed whose connection was lost in
// its COMMIT, with err. Nobody is told that a change failed which was written,
// and none that was written runs again: the database remembers how its
// transactions ended, and is asked as soon as it can be reached. Only if it
// cannot be within patience, the error says that this is unknown.
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

// unknownError is returned for a change that may have been written or not.
type unknownError struct{ lost, ask error }

func (e *unknownError) Error() string {
	return fmt.Sprintf("the connection was lost in the commit (%v), and whether it was written is unknown: %v", e.lost, e.ask)
}

// run runs the work of a batch, and undoes what failed. An error is the whole
// transaction's, which is that of a batch of one.
func (s *Store) run(ctx context.Context, batch []*change) error {
	s.write.engine, s.write.notices, s.write.soon = s.EngineID(), nil, nil
	inside := slices.ContainsFunc(batch, func(c *change) bool { return !c.unfenced })
	if inside && s.write.engine != "" { // with errBuried each gets a transaction of its own
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

// runChange runs one change. shared: others are in its transaction, which goes on if this
// one fails by itself.
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

// run does the work, and keeps its error or its panic.
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
