package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"linus/internal/job"
)

// orphanAge is how old a job's directory without a row must be to be removed: a
// restored database is younger than its files.
const orphanAge = time.Hour

// Forget removes the jobs that ended before the given time, their events and
// their files, and returns how many. A job stays as long as its VM does, even
// one that is left alone. Directories left by an interrupted Forget are
// removed as well.
func (s *Store) Forget(ctx context.Context, before time.Time) (int, error) {
	ids, err := query(ctx, s.read, func(row scanner) (id string, err error) {
		err = row.Scan(&id)
		return id, err
	}, `SELECT id FROM jobs WHERE done = 1 AND completed_at < ? AND vm_state NOT IN ('created', 'left_alone')`, timeText(before))
	if err != nil {
		return 0, fmt.Errorf("find jobs that ended before %s: %w", timeText(before), err)
	}
	for n, id := range ids {
		err := s.transaction(ctx, func(tx *tx) error {
			_, err := tx.ExecContext(ctx, `DELETE FROM jobs WHERE id = ?`, id)
			return err
		})
		if err == nil {
			err = os.RemoveAll(s.jobDir(id))
		}
		if err != nil {
			return n, fmt.Errorf("remove job %s: %w", id, err)
		}
	}
	return len(ids), s.removeOrphans(ctx)
}

// removeOrphans removes job directories without a row.
func (s *Store) removeOrphans(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, jobsDir))
	if err != nil {
		return fmt.Errorf("find directories without a job: %w", err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !isID(entry.Name()) || time.Since(info.ModTime()) < orphanAge {
			continue
		}
		if _, err := s.TokenHash(ctx, entry.Name()); errors.Is(err, job.ErrNotFound) {
			if err := os.RemoveAll(s.jobDir(entry.Name())); err != nil {
				return fmt.Errorf("remove directory %s, which belongs to no job: %w", entry.Name(), err)
			}
		}
	}
	return nil
}
