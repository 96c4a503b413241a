package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"linus/internal/job"
)

// channel is where engines tell each other what they have changed.
const channel = "linus"

// notice is what is sent there. PostgreSQL sends it when its transaction commits.
type notice struct {
	From string `json:"from"` // engine
	job.Notice
}

// tell gives the other engines a notice when the transaction commits.
func (t *tx) tell(kind job.NoticeKind, id string) { t.pass(job.Notice{Kind: kind, Job: id}) }

func (t *tx) pass(n job.Notice) {
	if t.engine != "" {
		t.notices = append(t.notices, notice{t.engine, n})
	}
}

// changed tells the others of a job that was written. What an engine writes about
// its own job without an event is nobody's news.
func (t *tx) changed(j job.Job, events int) {
	if events > 0 || j.Engine != t.engine {
		t.tell(job.NoticeChanged, j.ID)
	}
	if j.Done() {
		t.tell(job.NoticeSlot, "")
	}
}

// Tell gives the other engines a notice.
func (s *Store) Tell(ctx context.Context, n job.Notice) error {
	err := s.transaction(ctx, func(tx *tx) error {
		tx.pass(n)
		return nil
	})
	if err != nil {
		return fmt.Errorf("tell the other engines by %s: %w", s.name, err)
	}
	return nil
}

func (sqlite) send(*tx) error { return nil } // who shares SQLite has to look

func (postgres) send(t *tx) error {
	texts := make([]string, len(t.notices))
	for i, n := range t.notices {
		text, err := json.Marshal(n)
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	_, err := t.ExecContext(t.ctx, `SELECT pg_notify('`+channel+`', text) FROM unnest(CAST(? AS text[])) AS text`, texts)
	return err
}

// Listen calls heard for each notice of another engine, until ctx ends. Its
// connection is its own; whenever it was lost, there may be notices missing, and
// the first one says so.
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
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return err
	}
	heard(job.Notice{Kind: job.NoticeMissed})
	for {
		sent, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		var n notice
		if json.Unmarshal([]byte(sent.Payload), &n) == nil && n.From != s.EngineID() {
			heard(n.Notice)
		}
	}
}
