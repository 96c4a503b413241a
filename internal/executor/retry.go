package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"linus/internal/job"
)

// retry runs a lost job again, as a new job, if its manifest says so. gone means that its VM is
// proven gone; otherwise its VM's node is offline. It may be called again: each job gets one new
// job. It must be called before the job's row says that the VM is gone.
func (e *Executor) retry(ctx context.Context, j job.Job, gone bool) error {
	m := j.Manifest
	if j.Outcome == nil || j.Outcome.Reason != job.ReasonLost || j.RetriedAs != "" || j.Attempt >= m.Retries { // Retries is 0 without m.Retry
		return nil
	}
	if !gone && m.Retry != job.RetryOffline {
		return nil
	}
	if e.siblingsEnd(ctx, j) {
		return nil
	}
	whole, err := e.o.Jobs.Manifest(ctx, j.ID)
	if err != nil {
		return err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("create a job ID: %w", err)
	}
	next := job.Job{ID: id.String(), Kind: j.Kind, Client: j.Client, Principal: j.Principal, TokenID: j.TokenID, Manifest: whole, Status: job.Pending, CreatedAt: now(), Attempt: j.Attempt + 1, RetryOf: j.ID, Parent: j.Parent, Variant: j.Variant}
	next, created, err := e.o.Jobs.Insert(ctx, next, "\x1eretry of "+j.ID, job.Limits{}) // no client has such a key
	if err != nil {
		e.recheckStore() // it may be stored nevertheless
		return fmt.Errorf("run the job again: %w", err)
	}
	_, err = e.update(ctx, j.ID, func(j *job.Job) ([]job.Event, error) {
		j.RetriedAs = next.ID
		return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("run again as job %s, attempt %d of %d", next.ID, next.Attempt+1, m.Retries+1)}}, nil
	})
	if created {
		e.o.Log.Info("lost job is run again", "job_id", j.ID, "next", next.ID, "attempt", next.Attempt)
		e.enqueue(next)
	}
	if err == nil && e.siblingsEnd(ctx, j) { // since the check above: whoever ends the siblings may not have seen the new job
		if err = e.Cancel(ctx, next.ID); errors.Is(err, job.ErrCompleted) {
			err = nil
		}
	}
	return err
}

// siblingsEnd reports whether the siblings of a parent's child are being ended before their own ends.
func (e *Executor) siblingsEnd(ctx context.Context, j job.Job) bool {
	if j.Parent == "" {
		return false
	}
	parent, err := e.o.Jobs.Job(ctx, j.Parent)
	return err == nil && (parent.Outcome != nil || parent.Manifest.FailFast && oneFailed(parent))
}
