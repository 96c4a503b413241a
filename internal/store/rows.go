package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"linus/internal/job"
)

// jobs returns the jobs that a condition selects. While a job's output is open, its counts are
// current.
func (s *Store) jobs(ctx context.Context, q querier, where string, args ...any) ([]job.Job, error) {
	stored, err := jobRows(ctx, q, s.files.counts(), where, args...)
	if err != nil {
		return nil, err
	}
	jobs := make([]job.Job, len(stored))
	var streams []streamOf
	var counts []*job.OutputInfo // of streams
	for i, of := range stored {
		jobs[i] = of.job
		for stream, to := range map[string]*job.OutputInfo{job.Stdout: &jobs[i].Stdout, job.Stderr: &jobs[i].Stderr} {
			switch open, is := of.open[stream]; {
			case is && of.counted:
				open.set(to)
			case is:
				streams, counts = append(streams, streamOf{jobs[i].ID, stream}), append(counts, to)
			}
		}
	}
	if len(streams) == 0 {
		return jobs, nil
	}
	open, err := s.files.open(ctx, q, streams...)
	if err != nil {
		return nil, err
	}
	for i, c := range open {
		c.set(counts[i])
	}
	return jobs, nil
}

// jobRows returns the rows of the jobs that a condition selects. counts is the expression for the
// counts of their open streams, or empty.
func jobRows(ctx context.Context, q querier, counts, where string, args ...any) ([]storedJob, error) {
	return query(ctx, q, scanJob, `SELECT jobs.id, jobs.engine, jobs.stdout, jobs.stderr, jobs.doc, m.manifest, vms.doc, `+cmp.Or(counts, "NULL")+`
		FROM jobs JOIN job_manifests m ON m.job_id = jobs.id LEFT JOIN vms ON vms.id = jobs.vm_id WHERE `+where, args...)
}

// one returns the one job that a condition selects; job.ErrNotFound.
func (s *Store) one(ctx context.Context, q querier, where string, args ...any) (job.Job, error) {
	return only(s.jobs(ctx, q, where, args...))
}

// ofKey returns the job that was submitted with an idempotency key, if there is one; none for the
// empty key.
func (s *Store) ofKey(ctx context.Context, q querier, key string) ([]job.Job, error) {
	if key == "" {
		return nil, nil
	}
	return s.jobs(ctx, q, `jobs.idempotency_key = ?`, key)
}

// storedJob is a job with the final counts of its output, and the streams that are still open.
// counted means that open has their counts.
type storedJob struct {
	job     job.Job
	open    map[string]openCounts
	counted bool
}

// scanJob assembles a job from its document, its manifest and its output's final counts.
func scanJob(row scanner) (storedJob, error) {
	var id, doc, manifest string
	var engine, stdout, stderr, machine, counts sql.NullString
	if err := row.Scan(&id, &engine, &stdout, &stderr, &doc, &manifest, &machine, &counts); err != nil {
		return storedJob{}, err
	}
	var d document
	if err := json.Unmarshal([]byte(doc), &d); err != nil {
		return storedJob{}, fmt.Errorf("decode job %s: %w", id, err)
	}
	j := d.Job
	j.Engine = engine.String
	if err := json.Unmarshal([]byte(manifest), &j.Manifest); err != nil {
		return storedJob{}, fmt.Errorf("decode manifest of job %s: %w", id, err)
	}
	var err error
	if j.VM, err = heldVM(id, machine, d.Hold); err != nil {
		return storedJob{}, fmt.Errorf("decode the VM of job %s: %w", id, err)
	}
	err = errors.Join(sealedCounts(id, &j.Stdout, stdout), sealedCounts(id, &j.Stderr, stderr))
	of := storedJob{job: j, open: map[string]openCounts{}, counted: counts.Valid}
	var out, errs openCounts
	if of.counted && err == nil {
		_, err = fmt.Sscan(counts.String, &out.held, &out.seen, &errs.held, &errs.seen)
	}
	if !stdout.Valid {
		of.open[job.Stdout] = out
	}
	if !stderr.Valid {
		of.open[job.Stderr] = errs
	}
	return of, err
}

// sealedCounts sets the counts of a stream to its sealed ones, or to zero. Incomplete and Why stay.
func sealedCounts(id string, info *job.OutputInfo, sealed sql.NullString) (err error) {
	var counts job.OutputInfo
	if sealed.Valid {
		counts, err = decodeCounts(id, sealed.String)
	}
	counts.Incomplete, counts.Why = info.Incomplete, info.Why
	*info = counts
	return err
}
