package store

import (
	"context"

	"linus/internal/job"
)

// InsertSchedule adds a schedule; see schedule.Store.
func (s *Store) InsertSchedule(ctx context.Context, made job.Schedule) (bool, error) {
	added, err := s.insertDoc(ctx, `INSERT INTO schedules (name, doc) VALUES (?, ?) ON CONFLICT DO NOTHING`, made.Name, made)
	return added, tried(err, "write schedule %s", made.Name)
}

// Schedules returns all schedules, by name.
func (s *Store) Schedules(ctx context.Context) ([]job.Schedule, error) {
	all, err := query(ctx, s.read, scanDoc[job.Schedule], `SELECT doc FROM schedules ORDER BY name`)
	return all, tried(err, "read schedules")
}

// UpdateSchedule changes a schedule in a transaction.
func (s *Store) UpdateSchedule(ctx context.Context, name string, change func(*job.Schedule) error) (is job.Schedule, err error) {
	err = s.transaction(ctx, func(tx *tx) error {
		is, err = changeDoc(ctx, s, tx, "schedules", "name", name, change)
		return err
	})
	return is, tried(err, "write schedule %s", name)
}

// RemoveSchedule removes a schedule, if it exists.
func (s *Store) RemoveSchedule(ctx context.Context, name string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM schedules WHERE name = ?`, name)
	return tried(err, "remove schedule %s", name)
}
