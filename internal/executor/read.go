package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
)

// Job returns a job. While the job waits, Progress says for what.
func (e *Executor) Job(ctx context.Context, id string) (job.Job, error) {
	j, err := e.o.Fleet.Known(ctx, id)
	if err != nil {
		return job.Job{}, err
	}
	if j.Done() {
		j.Phase = ""
	}
	if j, err = e.withFamily(ctx, j); err != nil {
		return job.Job{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ahead, waits := e.queue.ahead(id)
	r := e.runs[id]
	switch {
	case r != nil && r.fault != nil && !j.Status.Terminal():
		j.Progress = "waiting: this engine cannot continue it: " + r.fault.text
	case waits && e.full:
		j.Progress = fmt.Sprintf("waiting: %v, %d jobs ahead", job.ErrNoSlot, ahead)
	case waits && e.slots() >= e.o.MaxJobs:
		j.Progress = fmt.Sprintf("waiting: %d of %d slots in use, %d jobs ahead", e.o.MaxJobs, e.o.MaxJobs, ahead)
	}
	return j, nil
}

// Manifest returns a job's whole manifest, including the files' contents.
func (e *Executor) Manifest(ctx context.Context, id string) (job.Manifest, error) {
	m, err := e.o.Jobs.Manifest(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		j, err := e.o.Fleet.Known(ctx, id)
		return j.Manifest, err
	}
	return m, err
}

// List returns a page of jobs, newest first.
func (e *Executor) List(ctx context.Context, f job.Filter) (job.Page, error) {
	return e.o.Jobs.List(ctx, f)
}

// Result returns the job's outcome and output, or *job.NotCompleteError. If an agent wrote a JSON
// stream, the result's stdout is its final text; Output returns the whole stream.
func (e *Executor) Result(ctx context.Context, id string) (job.Result, error) {
	j, err := e.o.Fleet.Known(ctx, id)
	if err != nil {
		return job.Result{}, err
	}
	if !j.Status.Terminal() {
		return job.Result{}, &job.NotCompleteError{Status: j.Status}
	}
	r := job.Result{
		JobID: j.ID, Status: j.Status, Reason: j.Outcome.Reason, ExitCode: j.Outcome.ExitCode,
		Error: j.ErrorText(), StdoutInfo: j.Stdout, StderrInfo: j.Stderr, SkippedArtifacts: j.SkippedArtifacts,
		Duration: j.Ran(), Repository: j.Repository,
	}
	if j.Kind != job.KindTask {
		return r, nil // there is no output
	}
	if r.Stdout, err = e.o.Captured.Output(ctx, id, job.Stdout, 0, j.Stdout.Held); err != nil {
		return job.Result{}, fmt.Errorf("read the job's stdout: %w", err)
	}
	if text, ok := capture.Answer(j.Manifest, r.Stdout); ok {
		n := int64(len(text))
		r.Stdout, r.StdoutInfo = []byte(text), job.OutputInfo{Held: n, Total: n, Incomplete: j.Stdout.Incomplete, Why: j.Stdout.Why}
	}
	if r.Stderr, err = e.o.Captured.Output(ctx, id, job.Stderr, 0, j.Stderr.Held); err != nil {
		return job.Result{}, fmt.Errorf("read the job's stderr: %w", err)
	}
	return r, nil
}

// Cleanup deletes the jobs that ended longer ago than the given time, with their files. A job is
// kept as long as its VM exists.
func (e *Executor) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	if olderThan < 0 {
		return 0, &job.FieldError{Field: "older_than", Problem: "is negative", Remedy: "give 0 or more"}
	}
	return e.o.Jobs.Forget(ctx, now().Add(-olderThan))
}

// DeleteJob deletes a job that has ended, with its files.
func (e *Executor) DeleteJob(ctx context.Context, id string) error {
	j, err := e.Job(ctx, id)
	if err != nil {
		return err
	}
	if j.Status.Terminal() && len(j.Children) > 0 {
		children, err := e.o.Jobs.Children(ctx, id) // including those that were lost and run again
		if err != nil {
			return err
		}
		for _, c := range children {
			if err := e.DeleteJob(ctx, c.ID); err != nil && !errors.Is(err, job.ErrNotFound) {
				return err
			}
		}
	}
	gone, err := e.o.Jobs.ForgetJob(ctx, id)
	switch {
	case err != nil || gone:
		return err
	case !j.Status.Terminal():
		return &job.FieldError{Field: "id", Problem: "is a job that has not ended: it is " + string(j.Status), Remedy: "cancel it first", Fault: job.FaultState}
	}
	return &job.FieldError{Field: "id", Problem: "is a job whose VM is still there", Remedy: "destroy the VM first, or wait until it is gone", Fault: job.FaultState}
}

// OpenArtifact returns an artifact of a job.
func (e *Executor) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if err != nil {
		return nil, job.Artifact{}, err
	}
	if len(j.Children) > 0 {
		return e.openChilds(ctx, j, path)
	}
	i := slices.IndexFunc(j.Artifacts, func(a job.Artifact) bool { return a.Path == path })
	if i < 0 {
		wrong := &job.FieldError{Field: "path", Problem: fmt.Sprintf("the job has no artifact %q", path), Fault: job.FaultUnknown}
		if at := slices.IndexFunc(j.ArtifactsSkipped, func(s job.SkippedArtifact) bool { return s.Path == path }); at >= 0 {
			wrong.Problem += ": " + j.ArtifactsSkipped[at].Reason
		}
		offered := job.Offered(j).(job.Job).Artifacts
		names := make([]string, 0, len(offered))
		for _, a := range offered {
			names = append(names, a.Path)
		}
		wrong.Remedy = "it has: " + cmp.Or(strings.Join(names, ", "), "none")
		return nil, job.Artifact{}, wrong
	}
	r, err := e.o.Captured.OpenArtifact(ctx, id, path)
	return r, j.Artifacts[i], err
}
