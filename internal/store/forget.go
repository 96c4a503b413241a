package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
)

// Forget removes the jobs that ended before the given time, with their events and files, and
// returns how many. A job stays as long as its VM does, even a VM that is left alone. Files left by
// an interrupted Forget are removed as well, within a day.
func (s *Store) Forget(ctx context.Context, before time.Time) (int, error) {
	n := 0
	for {
		some, err := query(ctx, s.read, scanForgettable, `SELECT id, vm_id FROM jobs
			WHERE `+over+` AND completed_at < ?`+atMost, timeText(before), forgottenAtOnce)
		if err != nil {
			return n, fmt.Errorf("find jobs that ended before %s: %w", timeText(before), err)
		}
		if len(some) == 0 {
			return n, errors.Join(s.forgetVMs(ctx, before), s.forgetRuns(ctx, before), s.files.forgetOrphans(ctx))
		}
		forgotten, err := s.forget(ctx, some)
		n += forgotten
		if err != nil {
			return n, err
		}
	}
}

// ForgetJob removes a job that Forget would remove, whenever it ended. It returns false if the job
// has not ended, or its VM still exists.
func (s *Store) ForgetJob(ctx context.Context, id string) (bool, error) {
	one, err := query(ctx, s.read, scanForgettable, `SELECT id, vm_id FROM jobs WHERE `+over+` AND id = ?`, id)
	if err != nil {
		return false, fmt.Errorf("find job %s: %w", id, err)
	}
	n, err := s.forget(ctx, one)
	return n > 0, err
}

// over selects jobs that have ended and whose VM does not exist.
const over = `done = 1 AND vm_state NOT IN ('created', 'left_alone')`

// forget removes jobs, with the rows of VMs that nothing else has, and returns how many.
func (s *Store) forget(ctx context.Context, some []forgettable) (int, error) {
	err := s.transaction(ctx, func(tx *tx) error {
		if err := s.keepUsage(ctx, tx, some); err != nil {
			return err
		}
		for _, j := range some {
			if _, err := tx.ExecContext(ctx, `DELETE FROM jobs WHERE id = ?`, j.id); err != nil {
				return err
			}
			tx.post(`DELETE FROM vms WHERE id = ? AND NOT `+there+` AND NOT EXISTS (SELECT 1 FROM jobs WHERE vm_id <> '' AND vm_id = vms.id)`, j.vm)
		}
		return nil
	})
	n := 0
	for _, j := range some {
		if err == nil {
			err = s.files.forget(j.id)
		}
		if err != nil {
			return n, fmt.Errorf("remove job %s: %w", j.id, err)
		}
		n++
	}
	return n, err
}

// forgetVMs removes pool VMs that are gone, that no job has had, and that were made before the
// given time.
func (s *Store) forgetVMs(ctx context.Context, before time.Time) error {
	const gone = `FROM vms WHERE member = 'gone' AND id < ? AND NOT ` + there + ` AND NOT EXISTS (SELECT 1 FROM jobs WHERE vm_id <> '' AND vm_id = vms.id)`
	_, err := first[string](ctx, s.read, `SELECT id `+gone+` LIMIT 1`, idAt(before))
	if errors.Is(err, job.ErrNotFound) {
		return nil
	}
	if err == nil {
		_, err = execCounted(ctx, s.unfenced, "", `DELETE `+gone, idAt(before))
	}
	return tried(err, "remove VMs that are gone")
}

// forgettable is a job that Forget removes.
type forgettable struct {
	id string
	vm string // ID of the VM that the job has had; empty: none
}

func scanForgettable(row scanner) (j forgettable, err error) {
	err = row.Scan(&j.id, &j.vm)
	return j, err
}

// forgottenAtOnce bounds how many jobs are read and removed at once, and how many directories are
// compared with the database at once.
const forgottenAtOnce = 500

// unknown returns the names that are IDs, but not of a job.
func (s *Store) unknown(ctx context.Context, names []string) ([]string, error) {
	ids, err := json.Marshal(slices.DeleteFunc(names, func(name string) bool { return !isID(name) }))
	if err != nil {
		return nil, err
	}
	return query(ctx, s.read, scanValue[string], `SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = value)`, string(ids))
}
