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

// noteEvery is the shortest interval at which a job's reports are recorded, so that a guest's
// reports do not slow other jobs down.
const noteEvery = time.Second

// heard is what a job's runner has reported since the last record.
type heard struct {
	at       time.Time // time of the last report; zero: none
	progress string
	end      string // the task's end as last reported; empty: none
	ends     int    // number of reports of the end
}

// Report accepts a runner's report. An unknown job and a wrong token are both job.ErrNotFound. A
// reported end of the task only triggers a check over SSH, which decides: anybody who listens on the
// VMs' network can send reports, too. Late, repeated and contradictory reports are accepted and change
// nothing. The job's follower records them, so that a flood of reports costs one write a second.
func (e *Executor) Report(ctx context.Context, id, token string, r job.Report) error {
	if err := e.Authorize(ctx, id, token); err != nil {
		return err
	}
	end := ""
	if r.Kind == job.ReportComplete {
		end = fmt.Sprintf("exit code %d", r.ExitCode)
	}
	if !e.hear(id, r.Progress, end) {
		e.passOn(ctx, id, r.Progress, end)
	}
	return nil
}

// hear passes a runner's report to the job's follower, and reports whether there is one here. Without
// a follower on any engine the report is dropped: the engine that adopts the job checks it first.
func (e *Executor) hear(id, progress, end string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	run := e.runs[id]
	if run == nil {
		return false
	}
	run.heard.at = now()
	run.heard.progress = cmp.Or(progress, run.heard.progress)
	if end != "" {
		run.heard.end = end
		run.heard.ends++
		signal(run.reported)
	}
	signal(run.changed)
	return true
}

func (e *Executor) takeHeard(r *run) heard {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := r.heard
	r.heard = heard{}
	return h
}

// note records what was heard of a job, and its agent's steps.
func (e *Executor) note(ctx context.Context, r *run) {
	h := e.takeHeard(r)
	if h.at.IsZero() {
		return
	}
	j, err := e.update(ctx, r.id, h.noting(r.capture.Narrating()))
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("report not recorded", "job_id", r.id, "err", err)
	}
	if err == nil {
		r.capture.Narrate(ctx, j)
	}
}

// noting returns the change that records what was heard. narrated says that the job's progress
// comes from its agent's steps.
func (h heard) noting(narrated bool) change {
	return func(j *job.Job) ([]job.Event, error) {
		if j.Outcome != nil || h.at.IsZero() {
			return h.late(), nil
		}
		j.LastHeartbeat = h.at
		if !narrated {
			j.Progress = cmp.Or(h.progress, j.Progress)
		}
		j.Reported = cmp.Or(h.end, j.Reported)
		return nil, nil
	}
}

// late returns the event for ends that were reported after the job had ended.
func (h heard) late() []job.Event {
	switch h.ends {
	case 0:
		return nil
	case 1:
		return []job.Event{{Kind: job.EventIgnored, Text: "complete with " + h.end + ": the job had ended"}}
	}
	return []job.Event{{Kind: job.EventIgnored, Text: fmt.Sprintf("%d times complete, the last with %s: the job had ended", h.ends, h.end)}}
}

// AppendOutput stores output that a runner sends and returns the offset to send next, which may be
// before the end of data. Nothing is stored while the job has no run or its output is being collected.
func (e *Executor) AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error) {
	if err := e.Authorize(ctx, id, token); err != nil {
		return 0, err
	}
	r := e.runOf(id)
	if r == nil {
		return e.o.Captured.AppendOutput(ctx, id, stream, 0, nil)
	}
	next, err := r.capture.Append(ctx, stream, offset, data)
	if err == nil {
		e.hear(id, "", "")
	}
	return next, err
}

// Authorize returns job.ErrNotFound unless the token is that of a job that has not ended.
func (e *Executor) Authorize(ctx context.Context, id, token string) error {
	want, err := e.o.Jobs.TokenHash(ctx, id)
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
