package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
)

// Several engines may share a database. Each has a row in engines while it is a member, with a
// lease that it renews. Others may evict an engine whose lease has ended: its row is deleted and
// with it, by foreign keys, its hold on jobs and its locks.
//
// The row is the fence: a member's transaction writes only if its row exists, and keeps the row
// from being deleted until the transaction has ended. So nothing that an evicted engine still
// writes takes effect, wherever it was held up, and no write needs a condition of its own. An ID is
// never used twice.

// EngineID returns the ID under which this engine last joined; empty if it never joined.
func (s *Store) EngineID() string {
	if id := s.engine.Load(); id != nil {
		return *id
	}
	return ""
}

// Join makes this engine a member with a new ID, which it returns, and a lease. It frees the jobs
// and locks of the engine's earlier membership.
func (s *Store) Join(ctx context.Context, about job.EngineInfo, lease time.Duration) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("create an engine's ID: %w", err)
	}
	before := s.EngineID()
	about.ID = id.String()
	doc, err := json.Marshal(about)
	if err != nil {
		return "", err
	}
	err = s.unfenced(ctx, func(tx *tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM engines WHERE id = ?`, before); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO engines (id, doc, lease_until) VALUES (?, ?, `+s.dialect.clock()+` + ?) ON CONFLICT DO NOTHING`,
			about.ID, string(doc), lease.Seconds())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("join the engines of %s: %w", s.name, err)
	}
	s.engine.Store(&about.ID)
	return about.ID, nil
}

// Renew extends this engine's lease; job.ErrDetach if the engine is no longer a member.
func (s *Store) Renew(ctx context.Context, lease time.Duration) error {
	n, err := execCounted(ctx, s.unfenced, "", `UPDATE engines SET lease_until = `+s.dialect.clock()+` + ? WHERE id = ?`, lease.Seconds(), s.EngineID())
	if err == nil && n == 0 {
		err = errBuried
	}
	return tried(err, "renew this engine's lease in %s", s.name)
}

// errBuried is the error of all writes of an engine that is no longer a member.
var errBuried = fmt.Errorf("the others have taken this engine for dead: %w", job.ErrDetach)

// Leave ends the membership, and frees the jobs this engine works on for others.
func (s *Store) Leave(ctx context.Context) error {
	_, err := execCounted(ctx, s.unfenced, job.NoticeFree, `DELETE FROM engines WHERE id = ?`, s.EngineID())
	return tried(err, "leave the engines of %s", s.name)
}

// Drain notes that this engine takes no more jobs.
func (s *Store) Drain(ctx context.Context) error {
	_, err := execCounted(ctx, s.unfenced, "", `UPDATE engines SET draining = 1 WHERE id = ?`, s.EngineID())
	return tried(err, "drain this engine in %s", s.name)
}

// Evict removes an engine whose lease has ended, or that is known to be dead, and reports whether
// it did. The jobs of that engine are then free for others. Evict waits for a transaction that the
// engine has under way.
func (s *Store) Evict(ctx context.Context, id string, dead bool) (bool, error) {
	n, err := execCounted(ctx, s.unfenced, job.NoticeFree, `DELETE FROM engines WHERE id = ? AND (lease_until < `+s.dialect.clock()+` OR 1 = ?)`, id, truth(dead))
	return err == nil && n > 0, tried(err, "remove engine %s from %s", id, s.name)
}

// Engines returns all members, oldest first. The leader is the first member with a valid lease that
// is not draining; if all drain, the first with a valid lease.
func (s *Store) Engines(ctx context.Context) ([]job.EngineInfo, error) {
	engines, err := query(ctx, s.read, func(row scanner) (e job.EngineInfo, err error) {
		var doc string
		var left float64
		var draining, jobs int
		if err := row.Scan(&doc, &left, &draining, &jobs); err != nil {
			return e, err
		}
		err = json.Unmarshal([]byte(doc), &e)
		e.Lease, e.Draining, e.Jobs = time.Duration(left*float64(time.Second)), draining != 0, jobs
		return e, err
	}, `SELECT doc, lease_until - `+s.dialect.clock()+`, draining, (SELECT count(*) FROM jobs WHERE jobs.engine = engines.id) FROM engines ORDER BY id`)
	leader := -1
	for i := range engines {
		engines[i].Self = engines[i].ID == s.EngineID()
		if engines[i].Lease > 0 && (leader < 0 || engines[leader].Draining && !engines[i].Draining) {
			leader = i
		}
	}
	if leader >= 0 {
		engines[leader].Leads = true
	}
	return engines, tried(err, "read the engines")
}

// Take makes this engine the one that works on a job, and returns the job. taken is false if
// another engine works on the job, or there is nothing to do. Take returns job.ErrNoSlot if the job
// needs a slot and all slots are taken. For an engine that does not share its database it only
// reads the job.
func (s *Store) Take(ctx context.Context, id string) (j job.Job, taken bool, err error) {
	engine := s.EngineID()
	if engine == "" {
		j, err = s.Job(ctx, id)
		return j, err == nil, err
	}
	err = s.transaction(ctx, func(tx *tx) error {
		taken = false
		if j, err = s.one(ctx, tx, `jobs.id = ?`+s.dialect.lock("jobs"), id); err != nil {
			return err
		}
		if j.Finished() || j.Engine != "" && j.Engine != engine {
			return nil
		}
		slot := j.WantsVM() && j.Outcome == nil
		if slot && s.maxJobs > 0 && j.Status == job.Pending && j.Engine == "" {
			// Engines take turns to count: the row is locked until the transaction ends.
			if err := setMeta(ctx, tx, "slots_counted", ""); err != nil {
				return err
			}
			n, err := first[int](ctx, tx, `SELECT count(*) FROM jobs WHERE slot = 1 AND done = 0 AND id <> ?`, id)
			if err != nil {
				return err
			}
			if n >= s.maxJobs {
				return job.ErrNoSlot
			}
		}
		taken, j.Engine = true, engine
		text := `UPDATE jobs SET engine = ? WHERE id = ?`
		if slot {
			text = `UPDATE jobs SET engine = ?, slot = 1 WHERE id = ?`
		}
		tx.tell(job.NoticeTaken, id)
		tx.post(text, engine, id)
		return nil
	})
	if err != nil && !errors.Is(err, job.ErrNotFound) && !errors.Is(err, job.ErrNoSlot) {
		err = fmt.Errorf("take job %s in %s: %w", id, s.name, err)
	}
	return j, taken && err == nil, err
}

// Lock takes a lock for this engine, if no other engine has it; otherwise it returns what the
// holder is doing. An engine that is evicted loses its locks, and loose ones already when its lease
// ends.
func (s *Store) Lock(ctx context.Context, name, what string, loose bool) (taken bool, holder string, err error) {
	engine := s.EngineID()
	err = s.transaction(ctx, func(tx *tx) error {
		if loose {
			_, err := tx.ExecContext(ctx, `DELETE FROM locks WHERE name = ? AND engine IN (SELECT id FROM engines WHERE lease_until < `+s.dialect.clock()+`)`, name)
			if err != nil {
				return err
			}
		}
		// An engine may take its own lock again: a commit may have succeeded, and its answer been
		// lost.
		n, err := tx.ExecContext(ctx, `INSERT INTO locks (name, engine, what) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET what = excluded.what WHERE locks.engine = excluded.engine`, name, engine, what)
		taken = n > 0
		return err
	})
	if err == nil && !taken {
		holder, err = s.Locked(ctx, name)
	}
	return taken, holder, tried(err, "take the lock %s in %s", name, s.name)
}

// Locked returns what the holder of a lock is doing; empty if nobody has the lock.
func (s *Store) Locked(ctx context.Context, name string) (string, error) {
	held, err := first[string](ctx, s.read, `SELECT what FROM locks WHERE name = ?`, name)
	if errors.Is(err, job.ErrNotFound) {
		return "", nil
	}
	return held, err
}

// Unlock releases a lock of this engine.
func (s *Store) Unlock(ctx context.Context, name string) error {
	_, err := execCounted(ctx, s.unfenced, "", `DELETE FROM locks WHERE name = ? AND engine = ?`, name, s.EngineID())
	return tried(err, "release the lock %s in %s", name, s.name)
}

// insertDoc inserts a row of a key and a document, and reports whether the key was free.
func (s *Store) insertDoc(ctx context.Context, text, key string, value any) (bool, error) {
	doc, err := json.Marshal(value)
	if err != nil {
		return false, err
	}
	n, err := execCounted(ctx, s.transaction, "", text, key, string(doc))
	return n > 0, err
}

// execCounted runs one statement in a transaction, sends the others a notice of kind told, and
// returns how many rows were changed. in is Store.transaction, for members only, or Store.unfenced.
func execCounted(ctx context.Context, in func(context.Context, func(*tx) error) error, told job.NoticeKind, text string, args ...any) (n int64, err error) {
	err = in(ctx, func(tx *tx) error {
		if told != "" {
			tx.tell(told, "")
		}
		n, err = tx.ExecContext(ctx, text, args...)
		return err
	})
	return n, err
}
