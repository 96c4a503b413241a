package store

import (
	"context"
	"encoding/json"

	"linus/internal/job"
)

// InsertSchedule adds a schedule; see schedule.Store.
func (s *Store) InsertSchedule(ctx context.Context, made job.Schedule) (bool, error) {
	doc, err := json.Marshal(made)
	if err != nil {
		return false, err
	}
	isNew := false
	err = s.transaction(ctx, func(tx *tx) error {
		result, err := tx.ExecContext(ctx, `INSERT INTO schedules (name, doc) VALUES (?, ?) ON CONFLICT DO NOTHING`, made.Name, string(doc))
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		isNew = n > 0
		return err
	})
	return isNew, tried(err, "write schedule %s", made.Name)
}

// Schedules returns all, by name.
func (s *Store) Schedules(ctx context.Context) ([]job.Schedule, error) {
	all, err := query(ctx, s.read, scanDoc[job.Schedule], `SELECT doc FROM schedules ORDER BY name`)
	return all, tried(err, "read schedules")
}

// UpdateSchedule changes one in a transaction.
func (s *Store) UpdateSchedule(ctx context.Context, name string, change func(*job.Schedule) error) (job.Schedule, error) {
	var is job.Schedule
	err := s.transaction(ctx, func(tx *tx) (err error) {
		if is, err = only(query(ctx, tx, scanDoc[job.Schedule], `SELECT doc FROM schedules WHERE name = ?`+s.dialect.lock("schedules"), name)); err != nil {
			return err
		}
		if err := change(&is); err != nil {
			return err
		}
		doc, err := json.Marshal(is)
		if err == nil {
			tx.post(`UPDATE schedules SET doc = ? WHERE name = ?`, string(doc), name)
		}
		return err
	})
	return is, tried(err, "write schedule %s", name)
}

// RemoveSchedule removes one, if it is there.
func (s *Store) RemoveSchedule(ctx context.Context, name string) error {
	return tried(s.transaction(ctx, func(tx *tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM schedules WHERE name = ?`, name)
		return err
	}), "remove schedule %s", name)
}
