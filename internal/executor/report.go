package executor

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"

	"linus/internal/job"
)

// Report takes what a runner tells. An unknown job and a wrong token are both
// job.ErrNotFound. Late, repeated and contradictory reports are accepted,
// recorded and change nothing.
func (e *Executor) Report(ctx context.Context, id, token string, r job.Report) error {
	if err := e.authorize(ctx, id, token); err != nil {
		return err
	}
	at, narrated := now(), e.isNarrated(id)
	var outcome job.Outcome
	_, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		if r.Kind != job.ReportComplete {
			if j.Outcome == nil {
				j.LastHeartbeat = at
				if !narrated {
					j.Progress = cmp.Or(r.Progress, j.Progress)
				}
			}
			return nil, nil
		}
		outcome = taskOutcome(j.Manifest, RunState{ExitCode: r.ExitCode, Reason: r.Reason, Duration: r.Duration}, r.Error)
		if !j.Decide(outcome) {
			return []job.Event{{Kind: job.EventIgnored, Text: fmt.Sprintf("complete with exit code %d: the job had ended", r.ExitCode)}}, nil
		}
		j.LastHeartbeat = at
		events := []job.Event{decided(outcome)}
		if j.Status == job.Provisioning { // quicker than our own note that it runs
			events = append(become(j, job.Running), events...)
		}
		return events, nil
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if run := e.live[id]; run != nil {
		signal(run.changed)
	}
	return nil
}

// AppendOutput takes output a runner sends and answers the offset to send next,
// which may be before the end of data.
func (e *Executor) AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error) {
	if err := e.authorize(ctx, id, token); err != nil {
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

func (e *Executor) authorize(ctx context.Context, id, token string) error {
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
