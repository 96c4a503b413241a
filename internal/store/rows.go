package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"linus/internal/job"
)

// jobs returns the jobs that a condition selects.
func (s *Store) jobs(ctx context.Context, q querier, where string, args ...any) ([]job.Job, error) {
	return query(ctx, q, s.scanJob, `SELECT jobs.id, jobs.engine, jobs.stdout, jobs.stderr, jobs.doc, m.manifest
		FROM jobs JOIN job_manifests m ON m.job_id = jobs.id WHERE `+where, args...)
}

// one returns the one job that a condition selects; job.ErrNotFound.
func (s *Store) one(ctx context.Context, q querier, where string, args ...any) (job.Job, error) {
	found, err := s.jobs(ctx, q, where, args...)
	if err != nil {
		return job.Job{}, err
	}
	if len(found) == 0 {
		return job.Job{}, job.ErrNotFound
	}
	return found[0], nil
}

// byKey returns the job that was submitted with an idempotency key;
// job.ErrNotFound, always for the empty key.
func (s *Store) byKey(ctx context.Context, q querier, key string) (job.Job, error) {
	if key == "" {
		return job.Job{}, job.ErrNotFound
	}
	return s.one(ctx, q, `jobs.idempotency_key = ?`, key)
}

// scanJob assembles a job from its document, its manifest and its output.
func (s *Store) scanJob(row scanner) (job.Job, error) {
	var id, doc, manifest string
	var engine, stdout, stderr sql.NullString
	if err := row.Scan(&id, &engine, &stdout, &stderr, &doc, &manifest); err != nil {
		return job.Job{}, err
	}
	var d document
	if err := json.Unmarshal([]byte(doc), &d); err != nil {
		return job.Job{}, fmt.Errorf("decode job %s: %w", id, err)
	}
	j := d.Job
	j.Engine = engine.String
	if err := json.Unmarshal([]byte(manifest), &j.Manifest); err != nil {
		return job.Job{}, fmt.Errorf("decode manifest of job %s: %w", id, err)
	}
	var err error
	if j.Stdout, err = s.counts(id, job.Stdout, stdout); err != nil {
		return job.Job{}, err
	}
	if j.Stderr, err = s.counts(id, job.Stderr, stderr); err != nil {
		return job.Job{}, err
	}
	j.Stdout.Incomplete, j.Stdout.Why = d.Stdout.Incomplete, d.Stdout.Why
	j.Stderr.Incomplete, j.Stderr.Why = d.Stderr.Incomplete, d.Stderr.Why
	return j, nil
}
