package executor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"time"

	"linus/internal/job"
)

// Report takes what a runner tells. An unknown job and a wrong token are both
// job.ErrNotFound. That a task has ended is noted and looked after over SSH,
// which decides: who listens on the VMs' network can send reports, too. Late,
// repeated and contradictory reports are accepted and change nothing.
func (e *Executor) Report(ctx context.Context, id, token string, r job.Report) error {
	if err := e.Authorize(ctx, id, token); err != nil {
		return err
	}
	at, narrated, complete := now(), e.isNarrated(id), r.Kind == job.ReportComplete
	_, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		switch {
		case complete:
			return completion(j, r, at), nil
		case j.Outcome == nil:
			j.LastHeartbeat = at
			if !narrated {
				j.Progress = cmp.Or(r.Progress, j.Progress)
			}
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if run := e.live[id]; run != nil {
		signal(run.changed)
		if complete {
			signal(run.reported)
		}
	}
	return nil
}

// completion notes that a task's end was reported.
func completion(j *job.Job, r job.Report, at time.Time) []job.Event {
	if j.Outcome != nil {
		return []job.Event{{Kind: job.EventIgnored, Text: fmt.Sprintf("complete with exit code %d: the job had ended", r.ExitCode)}}
	}
	j.LastHeartbeat = at
	j.Reported = fmt.Sprintf("exit code %d", r.ExitCode)
	return nil
}

// AppendOutput takes output a runner sends and answers the offset to send next,
// which may be before the end of data.
func (e *Executor) AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error) {
	if err := e.Authorize(ctx, id, token); err != nil {
		return 0, err
	}
	j, err := e.Store.Job(ctx, id)
	if err != nil {
		return 0, err
	}
	next, err := e.keep(ctx, j, stream, offset, data, false)
	if err == nil && stream == job.Stdout {
		e.narrate(ctx, j)
	}
	return next, err
}

// Authorize answers job.ErrNotFound unless the token is that of a job that has
// not ended.
func (e *Executor) Authorize(ctx context.Context, id, token string) error {
	want, err := e.Store.TokenHash(ctx, id)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(tokenHash(token))) != 1 {
		return job.ErrNotFound
	}
	return nil
}

func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
