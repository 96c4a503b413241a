package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
)

// MaxInput bounds what one call sends to a task's stdin, in bytes.
const MaxInput = 1 << 20

// maxChunk bounds what one call of Output answers, in bytes.
const maxChunk = 1 << 20

// Output answers what a stream has from offset, at most limit bytes (1 MiB when
// 0 or more); a negative offset counts from the end as it is now. While the
// task runs that is what it has written by now, whatever the status mode.
func (e *Executor) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	if stream != job.Stdout && stream != job.Stderr {
		return job.Chunk{}, &job.FieldError{Field: "stream", Problem: fmt.Sprintf("%q is unknown", stream), Remedy: "use stdout or stderr"}
	}
	if limit <= 0 || limit > maxChunk {
		limit = maxChunk
	}
	j, err := e.Store.Job(ctx, id)
	if err != nil {
		return job.Chunk{}, err
	}
	if !j.Status.Terminal() {
		if err := e.freshen(ctx, j, stream); err != nil {
			e.Log.Debug("output not fetched", "job_id", id, "stream", stream, "err", err)
		}
		if j, err = e.Store.Job(ctx, id); err != nil {
			return job.Chunk{}, err
		}
	}
	info := j.Stdout
	if stream == job.Stderr {
		info = j.Stderr
	}
	if offset < 0 {
		offset = max(0, info.Held+offset)
	}
	data, err := e.Store.Output(ctx, id, stream, offset, limit)
	if err != nil {
		return job.Chunk{}, fmt.Errorf("read the job's %s: %w", stream, err)
	}
	next := offset + int64(len(data))
	return job.Chunk{Data: data, Offset: offset, Next: next, Complete: j.Status.Terminal() && next >= info.Held}, nil
}

// freshen fetches what a running task has written since.
func (e *Executor) freshen(ctx context.Context, j job.Job, stream string) error {
	if j.StartedAt.IsZero() || j.Outcome != nil || j.VM == nil || j.VM.State != job.VMCreated {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		offset, err := e.Store.AppendOutput(ctx, j.ID, stream, 0, nil)
		if err != nil || offset >= e.MaxOutput {
			return err
		}
		data, err := e.Guest.ReadOutput(ctx, j, stream, offset, outputChunk)
		if err != nil || len(data) == 0 {
			return err
		}
		if _, err := e.Store.AppendOutput(ctx, j.ID, stream, offset, data); err != nil {
			return err
		}
	}
}

// Input sends data to the stdin of a running task, and closes it when closed
// is set.
func (e *Executor) Input(ctx context.Context, id string, data []byte, closed bool) error {
	if len(data) > MaxInput {
		return &job.FieldError{Field: "input", Problem: fmt.Sprintf("is %d bytes, the limit is %d", len(data), MaxInput), Remedy: "send it in parts, or put it into files"}
	}
	unlock := e.lockInput(id)
	defer unlock()
	j, err := e.Store.Job(ctx, id)
	switch {
	case err != nil:
		return err
	case j.Manifest.Stdin != job.StdinOpen:
		return &job.FieldError{Field: "input", Problem: "the job's stdin is closed", Remedy: "submit it with stdin open"}
	case j.Outcome != nil:
		return job.ErrCompleted
	case j.Stdin.Closed:
		return &job.FieldError{Field: "input", Problem: "the job's stdin was closed", Remedy: "submit a new job"}
	case j.Status != job.Running:
		return &job.FieldError{Field: "input", Problem: "the task does not run yet: the job is " + string(j.Status), Remedy: "wait until get_job_status says running"}
	}
	sent := j.Stdin.Bytes
	if len(data) > 0 {
		if sent, err = e.Guest.Input(ctx, j, sent, data); err != nil {
			return err
		}
	}
	if closed {
		if err := e.Guest.CloseInput(ctx, j); err != nil {
			return err
		}
	}
	_, err = e.update(context.WithoutCancel(ctx), id, func(j *job.Job) ([]job.Event, error) {
		j.Stdin = job.InputInfo{Bytes: sent, Closed: closed}
		return nil, nil
	})
	return err
}

// lockInput keeps two inputs of one job apart.
func (e *Executor) lockInput(id string) (unlock func()) {
	for {
		e.mu.Lock()
		busy := e.inputs[id]
		if busy == nil {
			done := make(chan struct{})
			e.inputs[id] = done
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				delete(e.inputs, id)
				close(done)
			}
		}
		e.mu.Unlock()
		<-busy
	}
}

// signals are what a task can be killed with.
var signals = []string{"TERM", "KILL", "INT", "HUP", "QUIT"}

// Kill ends a job's task with its whole process tree; the job is then failed,
// killed. An empty signal is TERM. A job that waits or is being provisioned is
// ended as well.
func (e *Executor) Kill(ctx context.Context, id, signal string) (job.Killed, error) {
	signal = strings.TrimPrefix(strings.ToUpper(signal), "SIG")
	if signal != "" && !slices.Contains(signals, signal) {
		return "", &job.FieldError{Field: "signal", Problem: fmt.Sprintf("%q is unknown", signal), Remedy: "use one of: " + strings.Join(signals, ", ")}
	}
	err := e.end(ctx, id, job.Outcome{Status: job.Failed, Reason: job.ReasonKilled, Error: "Killed by user"}, signal, errKilled)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return job.KillNotFound, nil
	case errors.Is(err, job.ErrCompleted):
		return job.AlreadyTerminated, nil
	case err != nil:
		return "", err
	}
	return job.KilledNow, nil
}

// Cleanup forgets the jobs that ended longer ago than so, with their files. A
// job stays while its VM does.
func (e *Executor) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	if olderThan < 0 {
		return 0, &job.FieldError{Field: "older_than", Problem: "is negative", Remedy: "give 0 or more"}
	}
	return e.Store.Forget(ctx, now().Add(-olderThan))
}

// OpenArtifact answers a file the job left.
func (e *Executor) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	j, err := e.Store.Job(ctx, id)
	if err != nil {
		return nil, job.Artifact{}, err
	}
	i := slices.IndexFunc(j.Artifacts, func(a job.Artifact) bool { return a.Path == path })
	if i < 0 {
		names := make([]string, 0, len(j.Artifacts))
		for _, a := range j.Artifacts {
			names = append(names, a.Path)
		}
		return nil, job.Artifact{}, &job.FieldError{Field: "path", Problem: fmt.Sprintf("the job has no artifact %q", path), Remedy: "it has: " + strings.Join(names, ", ")}
	}
	r, err := e.Store.OpenArtifact(ctx, id, path)
	return r, j.Artifacts[i], err
}
