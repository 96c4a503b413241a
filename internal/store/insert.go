package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
)

// Insert adds a new job with its whole manifest, and a parent's children, unless its principal
// would exceed its limits; see executor.JobStore.
func (s *Store) Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error) {
	family := make([]rows, 0, 1+len(children))
	for i, member := range append([]job.Job{j}, children...) {
		if !isID(member.ID) {
			return job.Job{}, false, fmt.Errorf("insert job %q: the ID is not a UUID", member.ID)
		}
		r, err := newRows(member, map[bool]string{true: key}[i == 0])
		if err != nil {
			return job.Job{}, false, fmt.Errorf("encode job %s: %w", member.ID, err)
		}
		if i > 0 {
			r.files = "" // the children use the parent's
		}
		family = append(family, r)
	}
	var first []job.Job // the job of the key, if there is one
	err := s.transaction(ctx, func(tx *tx) (err error) {
		if first, err = s.ofKey(ctx, tx, key); err != nil || len(first) > 0 {
			return err
		}
		for i := range family {
			rows := &family[i]
			if err = s.within(ctx, tx, rows.asks(), within); err != nil {
				return err
			}
			if err = rows.insert(ctx, tx); errors.Is(err, errKeyTaken) {
				if first, err = s.ofKey(ctx, tx, key); err == nil && len(first) == 0 {
					err = rows.served(ctx, tx)
				}
				return err
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return job.Job{}, false, tried(err, "write job %s to %s", j.ID, s.name)
	case len(first) > 0:
		return first[0], false, nil
	}
	return family[0].job, true, nil
}

// rows are a new job's rows, encoded before the writer's turn.
type rows struct {
	job           job.Job // as it is stored
	doc, manifest string
	files         string // "": the manifest has no files
	idempotency   string
}

func newRows(j job.Job, key string) (rows, error) {
	var contents []string
	for _, f := range j.Manifest.Files {
		contents = append(contents, f.Content)
	}
	j.Manifest = withoutContents(j.Manifest)
	j.Stdout, j.Stderr = job.OutputInfo{}, job.OutputInfo{}
	doc, err := encode(j)
	if err != nil {
		return rows{}, err
	}
	manifest, err := json.Marshal(j.Manifest)
	if err != nil {
		return rows{}, err
	}
	r := rows{job: j, doc: doc, manifest: string(manifest), idempotency: key}
	if len(contents) > 0 {
		files, err := json.Marshal(contents)
		if err != nil {
			return rows{}, err
		}
		r.files = string(files)
	}
	return r, nil
}

func (r *rows) asks() asks {
	return asks{shares: !r.job.WantsVM(), principal: r.job.Principal, at: r.job.CreatedAt, size: r.size(), resources: r.job.Manifest.Resources}
}

// size is how many bytes the job takes until it is done, besides what it writes.
func (r *rows) size() int64 { return int64(len(r.manifest) + len(r.files)) }

// session returns the columns of the job's session: queue, dispatcher and work.
func (r *rows) session() []any {
	s := r.job.Session
	if s == nil {
		return []any{"", "", ""}
	}
	return []any{job.QueueID(s.Kind, s.Queue), s.Dispatcher, s.Work.ID}
}

// errKeyTaken means that another engine has just inserted a job with the idempotency key, or that a
// job for the same piece of work exists.
var errKeyTaken = errors.New("the idempotency key is taken")

// served returns a *job.FieldError that names the job that serves the work.
func (r *rows) served(ctx context.Context, tx *tx) error {
	of := r.session()
	id, err := first[string](ctx, tx, `SELECT id FROM jobs WHERE principal = ? AND queue = ? AND work = ? AND queue <> '' AND status IN ('pending', 'provisioning', 'running')`,
		r.job.Principal, of[0], of[2])
	if err == nil {
		err = &job.FieldError{Field: "session.work", Problem: "is served by job " + id, Remedy: "wait until it ends", Fault: job.FaultState}
	}
	return err
}

func (r *rows) insert(ctx context.Context, tx *tx) error {
	if waits(r.job) {
		tx.tell(job.NoticeWaiting, r.job.ID)
	}
	n, err := tx.ExecContext(ctx, `INSERT INTO jobs
		(id, created_at, task_head, client, principal, idempotency_key, token_hash, status, done, waiting, vm_id, vm_state, completed_at, reason, started_at, doc, stored, parent, queue, dispatcher, work)
		VALUES (?, ?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		append([]any{
			r.job.ID, timeText(r.job.CreatedAt), job.TaskHead(r.job.Manifest.Task), r.job.Client, r.job.Principal,
			sql.NullString{String: r.idempotency, Valid: r.idempotency != ""},
		}, append(append(columns(r.job), r.doc, r.size(), r.job.Parent), r.session()...)...)...)
	if err == nil && n == 0 {
		err = errKeyTaken
	}
	if err != nil {
		return err
	}
	if err := updateVM(tx, nil, r.job); err != nil {
		return err
	}
	tx.post(`INSERT INTO job_manifests (job_id, manifest) VALUES (?, ?)`, r.job.ID, r.manifest)
	if r.files != "" {
		tx.post(`INSERT INTO job_files (job_id, contents) VALUES (?, ?)`, r.job.ID, r.files)
	}
	return nil
}

// withoutContents returns m with its files' names and modes, but not their contents.
func withoutContents(m job.Manifest) job.Manifest {
	m.Files = slices.Clone(m.Files)
	for i := range m.Files {
		m.Files[i].Content = ""
	}
	return m
}

// Manifest returns the whole manifest, including the files' contents. They are deleted once the job
// is done; then Manifest returns a *job.FieldError if the job has files.
func (s *Store) Manifest(ctx context.Context, id string) (m job.Manifest, err error) {
	defer func() { err = tried(err, "read manifest of job %s", id) }()
	type texts struct {
		manifest string
		contents sql.NullString
	}
	found, err := only(query(ctx, s.read, func(row scanner) (t texts, err error) {
		err = row.Scan(&t.manifest, &t.contents)
		return t, err
	}, `SELECT m.manifest, f.contents FROM job_manifests m JOIN jobs ON jobs.id = m.job_id
		LEFT JOIN job_files f ON f.job_id = CASE WHEN jobs.parent <> '' AND NOT EXISTS (SELECT 1 FROM job_files WHERE job_id = jobs.id) THEN jobs.parent ELSE jobs.id END WHERE m.job_id = ?`, id))
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal([]byte(found.manifest), &m); err != nil || len(m.Files) == 0 {
		return m, err
	}
	if !found.contents.Valid {
		return m, &job.FieldError{
			Field: "manifest.files", Problem: "the contents of the job's files were removed when it was done",
			Remedy: "give the files again",
		}
	}
	var contents []string
	if err := json.Unmarshal([]byte(found.contents.String), &contents); err != nil {
		return m, err
	}
	if len(contents) != len(m.Files) {
		return m, fmt.Errorf("%d files, but the contents of %d", len(m.Files), len(contents))
	}
	for i := range m.Files {
		m.Files[i].Content = contents[i]
	}
	return m, nil
}
