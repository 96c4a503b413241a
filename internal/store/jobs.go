package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// ErrForbidden is returned for a change that a job's life cycle does not allow: a job status or VM
// state that may not follow the current one, or a change of a decided outcome.
var ErrForbidden = errors.New("not allowed in the life of a job")

// document is the part of a job that Update rewrites: the job without its manifest, engine and VM,
// which are stored elsewhere. Of its output counts, only Incomplete and Why are valid; SealOutput
// and the files have the others.
type document struct {
	job.Job
	Manifest *struct{} `json:"manifest,omitempty"`
	Engine   *struct{} `json:"engine,omitempty"`
	VM       *struct{} `json:"vm,omitempty"`
	// Labels are the manifest's. They are here because lists are searched for them.
	Labels map[string]string `json:"labels,omitempty"`
	Hold   *heldAs           `json:"hold,omitempty"` // nil: the job has no VM
}

func encode(j job.Job) (string, error) {
	d := document{Job: j, Labels: j.Manifest.Labels}
	if j.VM != nil {
		d.Hold = &heldAs{State: j.VM.State, Source: j.VM.Source}
	}
	doc, err := json.Marshal(d)
	return string(doc), err
}

// Submitted returns the job that was submitted with an idempotency key; job.ErrNotFound.
func (s *Store) Submitted(ctx context.Context, key string) (job.Job, error) {
	j, err := only(s.ofKey(ctx, s.read, key))
	return j, tried(err, "find the job of an idempotency key")
}

// Job returns the job without its files' contents; job.ErrNotFound. While the output is open, its
// counts are current.
func (s *Store) Job(ctx context.Context, id string) (job.Job, error) {
	j, err := s.one(ctx, s.read, `jobs.id = ?`, id)
	return j, tried(err, "read job %s", id)
}

// Update changes one job in a transaction; see executor.JobStore. It returns ErrForbidden for a job
// status or VM state that may not follow the current one, and for any change of a decided outcome.
// Of the output's counts it writes Incomplete and Why; SealOutput writes the rest. The job passed
// to change, and the one returned, have the counts of sealed streams only. change runs in the
// store's only writer: it must not call the store, and may run again, with the job's state at that
// time.
func (s *Store) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	u := s.newUpdate(id, change)
	return u.result(s.transaction(ctx, func(tx *tx) error { return u.run(ctx, tx) }))
}

// UpdateSoon is Update for a change that need not be durable at once: it is written with the next
// change of any job, or within maxLinger. wait waits until it is written, and returns what Update
// does.
func (s *Store) UpdateSoon(id string, change func(*job.Job) (job.Record, error)) (wait func() (job.Job, error)) {
	u := s.newUpdate(id, change)
	written := s.lingering(func(tx *tx) error { return u.run(context.Background(), tx) })
	return func() (job.Job, error) { return u.result(written()) }
}

type updating struct {
	s      *Store
	id     string
	change func(*job.Job) (job.Record, error)
	job    job.Job // after the change
}

func (s *Store) newUpdate(id string, change func(*job.Job) (job.Record, error)) *updating {
	return &updating{s: s, id: id, change: change}
}

func (u *updating) run(ctx context.Context, tx *tx) error {
	u.s.lockVM(tx, u.id)
	found, err := only(jobRows(ctx, tx, "", `jobs.id = ?`+u.s.dialect.lock("jobs"), u.id))
	if err != nil {
		return err
	}
	j := found.job
	status, state, manifest, stdout, stderr, engine, principal := j.Status, j.VMState(), j.Manifest, j.Stdout, j.Stderr, j.Engine, j.Principal
	written, had := columns(j), j.VM
	if had != nil {
		v := had.Clone()
		had = &v
	}
	decided, err := json.Marshal(j.Outcome)
	if err != nil {
		return err
	}
	record, err := u.change(&j)
	if err != nil {
		return refusal{err}
	}
	stdout.Incomplete, stdout.Why = j.Stdout.Incomplete, j.Stdout.Why
	stderr.Incomplete, stderr.Why = j.Stderr.Incomplete, j.Stderr.Why
	j.ID, j.Manifest, j.Stdout, j.Stderr, j.Engine, j.Principal = u.id, manifest, stdout, stderr, engine, principal
	if err := allowed(status, state, decided, j); err != nil {
		return err
	}
	if u.job = j; !record.Quiet {
		tx.told = append(tx.told, job.Change{Job: j, Events: record.Events})
	}
	return errors.Join(updateVM(tx, had, j), updateRow(tx, written, j, record))
}

// result returns what Update does, for the error of its transaction.
func (u *updating) result(err error) (job.Job, error) {
	if err != nil {
		return job.Job{}, tried(err, "write job %s to %s", u.id, u.s.name)
	}
	return u.job, nil
}

// allowed compares a changed job with its previous status, VM state and outcome (as JSON). A
// decided outcome may only gain the exit code and duration of a task that did not end by itself.
func allowed(status job.Status, v vm.State, decided []byte, j job.Job) error {
	if err := follows(status, v, j); err != nil {
		return err
	}
	if string(decided) == "null" {
		return nil
	}
	now, err := json.Marshal(j.Outcome)
	if err != nil {
		return err
	}
	var was job.Outcome
	if err := json.Unmarshal(decided, &was); err != nil {
		return err
	}
	same := bytes.Equal(decided, now)
	if j.Outcome != nil && was.ExitCode == nil {
		learned := *j.Outcome
		learned.ExitCode, learned.Duration = was.ExitCode, was.Duration
		rest, err := json.Marshal(learned)
		if err != nil {
			return err
		}
		same = bytes.Equal(decided, rest)
	}
	if !same {
		return fmt.Errorf("%w: outcome %s is decided, it cannot become %s", ErrForbidden, decided, now)
	}
	return nil
}

// follows compares a changed job with its previous status and VM state.
func follows(status job.Status, v vm.State, j job.Job) error {
	if j.Status != status && !status.CanBecome(j.Status) {
		return fmt.Errorf("%w: status %s cannot become %q", ErrForbidden, status, string(j.Status))
	}
	if now := j.VMState(); now != v && !v.CanBecome(now) {
		return fmt.Errorf("%w: the state of its VM, %q, cannot become %q", ErrForbidden, string(v), string(now))
	}
	return nil
}

// updateRow writes a job, and what is recorded with it. before are its current columns; nil:
// unknown.
func updateRow(tx *tx, before []any, j job.Job, record job.Record) error {
	doc, err := encode(j)
	if err != nil {
		return err
	}
	tx.changed(j, record.Events)
	now := columns(j)
	switch {
	case j.Finished(): // no engine works on it any more
		kept := j.Stdout.Held + j.Stderr.Held
		for _, a := range j.Artifacts {
			kept += a.Size
		}
		tx.post(`DELETE FROM job_files WHERE job_id = ?`, j.ID)
		tx.post(`UPDATE jobs SET `+setColumns+`, engine = NULL, doc = ?, stored = CAST(? AS bigint) + (SELECT octet_length(manifest) FROM job_manifests WHERE job_id = jobs.id) WHERE id = ?`,
			append(now, doc, kept, j.ID)...)
	case slices.Equal(before, now): // the usual case: no index has to be touched
		tx.post(`UPDATE jobs SET doc = ? WHERE id = ?`, doc, j.ID)
	default:
		tx.post(`UPDATE jobs SET `+setColumns+`, doc = ? WHERE id = ?`, append(now, doc, j.ID)...)
	}
	if record.TokenHash != "" {
		tx.post(`UPDATE jobs SET token_hash = ? WHERE id = ?`, record.TokenHash, j.ID)
	}
	for _, e := range record.Events {
		if e.At.IsZero() {
			e.At = time.Now()
		}
		tx.post(`INSERT INTO job_events (job_id, at, kind, phase, text) VALUES (?, ?, ?, ?, ?)`,
			j.ID, timeText(e.At), e.Kind, e.Phase, job.Bounded(e.Text))
	}
	return changeWebhooks(tx, record)
}

const setColumns = `status = ?, done = ?, waiting = ?, vm_id = ?, vm_state = ?, completed_at = ?, reason = ?, started_at = ?`

// columns returns the values for setColumns: the parts of a job that are not only in its document.
func columns(j job.Job) []any {
	var v vm.VM
	if j.VM != nil {
		v = *j.VM
	}
	var reason job.Reason
	if j.Outcome != nil {
		reason = j.Outcome.Reason
	}
	return []any{
		string(j.Status), truth(j.Finished()), truth(waits(j)), v.Job, string(v.State),
		timeColumn(j.CompletedAt), string(reason), timeColumn(j.StartedAt),
	}
}

// timeColumn returns a time as a column's value; empty if it has not come yet.
func timeColumn(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return timeText(t)
}

// waits reports whether a job waits for a slot.
func waits(j job.Job) bool {
	return j.Status == job.Pending && j.Outcome == nil && j.WantsVM()
}

// truth is a column's value: 0 or 1.
func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Events returns the job's events with Seq > after, in order.
func (s *Store) Events(ctx context.Context, id string, after int64) ([]job.Event, error) {
	events, err := query(ctx, s.read, scanEvent(id), `SELECT seq, at, kind, phase, text FROM job_events WHERE job_id = ? AND seq > ? ORDER BY seq`, id, after)
	if err != nil {
		return nil, fmt.Errorf("read events of job %s: %w", id, err)
	}
	if len(events) == 0 {
		_, err = s.TokenHash(ctx, id) // is there such a job?
	}
	return events, err
}

func scanEvent(id string) func(scanner) (job.Event, error) {
	return func(row scanner) (job.Event, error) {
		e := job.Event{JobID: id}
		var at string
		err := row.Scan(&e.Seq, &at, &e.Kind, &e.Phase, &e.Text)
		if err == nil {
			e.At, err = time.Parse(time.RFC3339Nano, at)
		}
		return e, err
	}
}

// TokenHash returns the hex SHA-256 of the job's callback token; "" once the job has ended, when
// its token is no longer valid.
func (s *Store) TokenHash(ctx context.Context, id string) (string, error) {
	hash, err := first[string](ctx, s.read, `SELECT CASE WHEN status IN (?, ?, ?) THEN '' ELSE token_hash END FROM jobs WHERE id = ?`,
		string(job.Success), string(job.Failed), string(job.Timeout), id)
	return hash, tried(err, "read job %s", id)
}

// isID reports whether id is a UUID in canonical form, the only form used to name a directory.
func isID(id string) bool {
	u, err := uuid.Parse(id)
	return err == nil && u.String() == id
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
