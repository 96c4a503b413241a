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
	return e.o.Store.Forget(ctx, now().Add(-olderThan))
}

// OpenArtifact returns a file the job left.
func (e *Executor) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	j, err := e.o.Store.Job(ctx, id)
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
	r, err := e.o.Store.OpenArtifact(ctx, id, path)
	return r, j.Artifacts[i], err
}
