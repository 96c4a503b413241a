package store

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// The conditions below are written out without parameters, as in the indexes that serve them.

// Waiting returns the IDs of the jobs that wait for a slot, oldest first; see executor.QueueStore.
func (s *Store) Waiting(ctx context.Context) ([]string, error) {
	ids, err := query(ctx, s.read, scanValue[string], `SELECT id FROM jobs WHERE waiting = 1 ORDER BY id`)
	return ids, tried(err, "read waiting jobs")
}

// WaitingOf returns the principals of the jobs that Waiting returns, by job ID, without the
// operator's jobs.
func (s *Store) WaitingOf(ctx context.Context) (map[string]string, error) {
	of := map[string]string{}
	_, err := query(ctx, s.read, func(row scanner) (struct{}, error) {
		var id, principal string
		err := row.Scan(&id, &principal)
		of[id] = principal
		return struct{}{}, err
	}, `SELECT id, principal FROM jobs WHERE waiting = 1 AND principal <> ''`)
	return of, tried(err, "read waiting jobs")
}

// Queue returns how many jobs wait for a slot, and since when the first of them waits.
func (s *Store) Queue(ctx context.Context) (waiting int, since time.Time, err error) {
	waiting, err = first[int](ctx, s.read, `SELECT count(*) FROM jobs WHERE waiting = 1`)
	if err == nil && waiting > 0 {
		var at string
		at, err = first[string](ctx, s.read, `SELECT created_at FROM jobs WHERE waiting = 1 ORDER BY id LIMIT 1`)
		if errors.Is(err, job.ErrNotFound) { // it has started meanwhile
			return 0, time.Time{}, nil
		}
		if err == nil {
			since, err = time.Parse(time.RFC3339Nano, at)
		}
	}
	return waiting, since, tried(err, "count waiting jobs")
}

// InProgress returns all jobs that are not Done, except those that Waiting returns, oldest first.
func (s *Store) InProgress(ctx context.Context) ([]job.Job, error) {
	jobs, err := s.jobs(ctx, s.read, `jobs.done = 0 AND jobs.waiting = 0 ORDER BY jobs.id`)
	return jobs, tried(err, "read unfinished jobs")
}

// Children returns the jobs that a parent has made, and those that rerun lost ones, oldest first.
func (s *Store) Children(ctx context.Context, parent string) ([]job.Job, error) {
	jobs, err := s.jobs(ctx, s.read, `jobs.parent <> '' AND jobs.parent = ? ORDER BY jobs.id`, parent)
	return jobs, tried(err, "read the children of job %s", parent)
}

// OfClient returns jobs that are not Done or whose VM is not gone. They belong to one of the
// operator's clients, or to all clients of another principal.
func (s *Store) OfClient(ctx context.Context, owner, client string) ([]job.Job, error) {
	where, of := stillOpen+` AND jobs.principal = '' AND jobs.client = ?`, client
	if owner != "" {
		where, of = `jobs.principal <> '' AND `+stillOpen+` AND jobs.principal = ?`, owner
	}
	jobs, err := s.jobs(ctx, s.read, where, of)
	return jobs, tried(err, "read the jobs of client %q", client)
}

// stillOpen is the condition of the indexes on jobs that take resources: they are not Done, or
// their VM is kept or left alone.
const stillOpen = `(jobs.done = 0 OR jobs.vm_state IN ('created', 'left_alone'))`

// there is the condition of the index on VMs that exist, may exist, or were asked for.
const there = `(vms.state IN ('intended', 'created', 'left_alone') OR vms.state = 'reserved' AND vms.member = 'own')`
