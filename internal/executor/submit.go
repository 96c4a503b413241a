package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"linus/internal/job"
)

// Submit checks what is asked for, stores the job and answers at once. A key
// used before answers the first job.
func (e *Executor) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	s.Kind = cmp.Or(s.Kind, job.KindTask)
	m, err := e.complete(s)
	if err != nil {
		return job.Job{}, err
	}
	e.deciding.Lock() // what is admitted counts for the next, and is in its VM
	defer e.deciding.Unlock()
	if first, err := e.Store.Submitted(ctx, s.IdempotencyKey); err == nil || !errors.Is(err, job.ErrNotFound) {
		return first, err
	}
	if m.VM != "" {
		if err := e.enterable(ctx, m); err != nil {
			return job.Job{}, err
		}
	}
	if err := e.admit(ctx, s, m); err != nil {
		return job.Job{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return job.Job{}, fmt.Errorf("make a job id: %w", err)
	}
	j := job.Job{ID: id.String(), Kind: s.Kind, Client: s.Client, Manifest: m, Status: job.Pending, CreatedAt: now()}
	j, created, err := e.Store.Insert(ctx, j, "", s.IdempotencyKey)
	if err != nil {
		return job.Job{}, fmt.Errorf("store the job: %w", err)
	}
	if created {
		e.Log.Info("job submitted", "job_id", j.ID, "kind", j.Kind, "client", j.Client)
		e.enqueue(j.ID)
	}
	return j, nil
}

// enterable is the error that the VM a manifest names cannot take its job.
func (e *Executor) enterable(ctx context.Context, m job.Manifest) error {
	kept, err := e.openVM(ctx, m.VM)
	if err != nil {
		return err
	}
	secrets, err := e.secrets(m)
	if err != nil || len(secrets) == 0 {
		return err
	}
	return pinned(*kept.VM)
}

// admit asks whether the client may have a job of this manifest as well.
func (e *Executor) admit(ctx context.Context, s job.Submission, m job.Manifest) error {
	if e.Allow != nil {
		if err := e.Allow(s.Kind, m); err != nil {
			return err
		}
	}
	if e.Admit == nil {
		return nil
	}
	jobs, err := e.Store.OfClient(ctx, s.Client)
	if err != nil {
		return err
	}
	has := make([]job.Manifest, len(jobs))
	for i, j := range jobs {
		has[i] = j.Manifest
	}
	return e.Admit(has, m)
}

// complete checks a submission and answers its manifest with every default.
func (e *Executor) complete(s job.Submission) (job.Manifest, error) {
	m := s.Manifest
	switch s.Kind {
	case job.KindTask:
	case job.KindVM:
		m.Task, m.AgentType, m.Lifecycle = "make VM "+m.VMName, job.AgentScript, job.Persistent
	default:
		return m, &job.FieldError{Field: "kind", Problem: fmt.Sprintf("%q is unknown", s.Kind), Remedy: "use task or vm"}
	}
	if err := m.Validate(); err != nil {
		return m, err
	}
	m = m.WithDefaults(e.Defaults)
	if err := m.Validate(); err != nil {
		return m, fmt.Errorf("a configured default is wrong: %w", err)
	}
	_, err := e.secrets(m)
	return m, err
}
