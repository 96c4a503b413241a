package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// orphanAge is how old a job's directory without a row must be to be removed: a
// restored database is younger than its files.
const orphanAge = time.Hour

// Forget removes the jobs that ended before the given time, their events and
// their files, and returns how many, of those that List returns. A job stays as long as its VM does, even
// one that is left alone. Directories left by an interrupted Forget are
// removed as well.
func (s *Store) Forget(ctx context.Context, before time.Time) (int, error) {
	type ended struct {
		id     string
		listed bool
	}
	all, err := query(ctx, s.read, func(row scanner) (j ended, err error) {
		err = row.Scan(&j.id, &j.listed)
		return j, err
	}, `SELECT id, member IS NULL FROM jobs WHERE done = 1 AND completed_at < ? AND vm_state NOT IN ('created', 'left_alone')`, timeText(before))
	if err != nil {
		return 0, fmt.Errorf("find jobs that ended before %s: %w", timeText(before), err)
	}
	n := 0
	for some := range slices.Chunk(all, forgottenAtOnce) {
		err := s.transaction(ctx, func(tx *tx) error {
			for _, j := range some {
				if _, err := tx.ExecContext(ctx, `DELETE FROM jobs WHERE id = ?`, j.id); err != nil {
					return err
				}
			}
			return nil
		})
		for _, j := range some {
			if err == nil {
				err = os.RemoveAll(s.jobDir(j.id))
			}
			if err != nil {
				return n, fmt.Errorf("remove job %s: %w", j.id, err)
			}
			if j.listed {
				n++
			}
		}
	}
	return n, s.removeOrphans(ctx)
}

// forgottenAtOnce bounds the jobs that are removed in one transaction, and the
// directories that are compared with the database at once.
const forgottenAtOnce = 500

// removeOrphans removes job directories without a row.
func (s *Store) removeOrphans(ctx context.Context) (err error) {
	dir, err := os.Open(filepath.Join(s.dir, jobsDir))
	if err != nil {
		return fmt.Errorf("find directories without a job: %w", err)
	}
	defer dir.Close() //nolint:errcheck // only read
	for {
		names, err := dir.Readdirnames(forgottenAtOnce) // there may be a million
		orphans, queryErr := s.unknown(ctx, names)
		if err := errors.Join(queryErr, removeOld(s.jobDir, orphans)); err != nil {
			return fmt.Errorf("remove directories without a job: %w", err)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("find directories without a job: %w", err)
		}
	}
}

// unknown returns those of the names that are IDs, but not a job's.
func (s *Store) unknown(ctx context.Context, names []string) ([]string, error) {
	ids, err := json.Marshal(slices.DeleteFunc(names, func(name string) bool { return !isID(name) }))
	if err != nil {
		return nil, err
	}
	return query(ctx, s.read, func(row scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, `SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = value)`, string(ids))
}

// removeOld removes the directories of ids that have not changed for orphanAge.
func removeOld(dirOf func(id string) string, ids []string) error {
	for _, id := range ids {
		info, err := os.Stat(dirOf(id))
		if err != nil || time.Since(info.ModTime()) < orphanAge {
			continue
		}
		if err := os.RemoveAll(dirOf(id)); err != nil {
			return err
		}
	}
	return nil
}
