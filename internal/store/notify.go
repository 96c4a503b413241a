package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"linus/internal/job"
)

// channel is the prefix of the name of an engine's channel, which ends with the engine's ID. The
// other engines send their notices there, so that no engine is woken by its own.
const channel = "linus "

// tell sends the other engines a notice when the transaction commits.
func (t *tx) tell(kind job.NoticeKind, id string) { t.pass(job.Notice{Kind: kind, Job: id}) }

func (t *tx) pass(n job.Notice) {
	if t.engine != "" {
		t.notices = append(t.notices, n)
	}
}

// changed tells the others of a job that was written: at once if its status changed or it is
// another engine's, and soon for other events. Writes of an engine to its own job without an event
// are not announced.
func (t *tx) changed(j job.Job, events []job.Event) {
	status := slices.ContainsFunc(events, func(e job.Event) bool { return e.Kind == job.EventStatus })
	switch {
	case status || j.Finished() || j.Engine != t.engine:
		t.tell(job.NoticeChanged, j.ID)
	case len(events) > 0 && t.engine != "":
		t.soon = append(t.soon, j.ID)
	}
	if j.Finished() {
		t.tell(job.NoticeSlot, "")
	}
}

// gather is how long notices that may wait a little wait for more: each notice wakes all other
// engines, and a job has a dozen.
const gather = 500 * time.Millisecond

// gathered are the jobs that the others are notified of soon. Only writeAll uses it.
type gathered struct {
	jobs map[string]bool
	told time.Time // the last time
	sent bool      // with the current transaction
}

// gather adds the postponed notices to those of a transaction, if it has any others or they are
// due.
func (s *Store) gather(t *tx) {
	for _, id := range t.soon { // harmless if it is not committed: the others learn of no change
		s.gathered.jobs[id] = true
	}
	if s.gathered.sent = len(t.notices) > 0 || time.Since(s.gathered.told) >= gather; !s.gathered.sent {
		return
	}
	for id := range s.gathered.jobs {
		t.tell(job.NoticeChanged, id)
	}
}

// committed notes that a transaction has been committed. What it has not sent goes with the next
// transaction that may send it; if no other comes, an empty one is made.
func (s *Store) committed() {
	if s.gathered.sent {
		clear(s.gathered.jobs)
		s.gathered.told = time.Now()
	}
	if len(s.gathered.jobs) > 0 {
		s.waiting.add(&change{work: func(*tx) error { return nil }, soon: s.gathered.told.Add(gather), done: make(chan struct{})})
	}
}

// Tell sends the other engines a notice.
func (s *Store) Tell(ctx context.Context, n job.Notice) error {
	err := s.transaction(ctx, func(tx *tx) error {
		tx.pass(n)
		return nil
	})
	return tried(err, "tell the other engines by %s", s.name)
}

func (sqlite) send(*tx) error { return nil } // engines that share SQLite have to look

// send has PostgreSQL send the notices when the transaction commits.
func (postgres) send(t *tx) error {
	texts := make([]string, len(t.notices))
	for i, n := range t.notices {
		text, err := json.Marshal(n)
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	t.post(`SELECT pg_notify('`+channel+`' || engines.id, text) FROM engines, unnest(CAST(? AS text[])) WITH ORDINALITY AS sent (text, n)
		WHERE engines.id <> ? ORDER BY n`, texts, t.engine)
	return nil
}

// Listen calls heard for each notice of another engine, until ctx ends. It uses a connection of its
// own. Notices may be missed while that is lost, and the first notice of each connection says so.
func (s *Store) Listen(ctx context.Context, heard func(job.Notice)) error {
	if s.listening == nil {
		<-ctx.Done()
		return nil
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 5*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := s.listen(ctx, func(n job.Notice) {
			wait.Reset()
			heard(n)
		})
		if ctx.Err() == nil {
			s.log.Debug("the connection for other engines' notices is lost, connecting again", "err", err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Store) listen(ctx context.Context, heard func(job.Notice)) error {
	conn, err := pgx.ConnectConfig(ctx, s.listening)
	if err != nil {
		return fmt.Errorf("connect to %s", s.name) // err may contain credentials
	}
	defer func() {
		closing, end := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer end()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+pgx.Identifier{channel + s.EngineID()}.Sanitize()); err != nil {
		return err
	}
	heard(job.Notice{Kind: job.NoticeMissed})
	for {
		sent, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		var n job.Notice
		if json.Unmarshal([]byte(sent.Payload), &n) == nil {
			heard(n)
		}
	}
}
