package executor

import (
	"context"

	"linus/internal/job"
)

// holder is a job's run to the fleet: it gets, holds and gives back a VM. See job.Holder.
type holder struct {
	e *Executor
	r *run
}

// Job returns the job as it is stored.
func (h holder) Job(ctx context.Context) (job.Job, error) { return h.e.o.Jobs.Job(ctx, h.r.id) }

// Update changes the job and its VM.
func (h holder) Update(ctx context.Context, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	return h.e.update(ctx, h.r.id, change)
}

// Claimed tells of a change that was stored already.
func (h holder) Claimed(j job.Job, events []job.Event) {
	h.e.o.Changes.Add(job.Change{Job: j, Events: events})
	h.e.o.Changes.Add(job.VMChanged{VM: *j.VM})
}

// Tell shows what is happening, and records it together with what comes until then.
func (h holder) Tell(ctx context.Context, p job.Progress) {
	at := now()
	h.e.step(ctx, h.r, func(j *job.Job) ([]job.Event, error) {
		if p.Warning == "" {
			j.Progress = p.Line()
		}
		event := p.Event()
		event.At = at
		return []job.Event{event}, nil
	})
}

// Wait shows why the job waits.
func (h holder) Wait(ctx context.Context, full *job.NoRoomError) error {
	text := ""
	if full != nil {
		text = full.Waiting()
	}
	h.e.mu.Lock()
	before := h.r.waits
	h.r.waits = text
	h.e.mu.Unlock()
	if text == "" || before == text {
		return nil
	}
	_, err := h.e.update(ctx, h.r.id, func(j *job.Job) ([]job.Event, error) {
		j.Progress = text
		if before != "" {
			return nil, nil
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text}}, nil
	})
	return err
}

// Told returns the events of the job.
func (h holder) Told(ctx context.Context) ([]job.Event, error) {
	return h.e.o.Jobs.Events(ctx, h.r.id, 0)
}

// Removed runs the job again if it was lost and its manifest says so.
func (h holder) Removed(ctx context.Context, j job.Job, gone bool) error {
	return h.e.retry(ctx, j, gone)
}

// step records a change soon, together with others that come until then.
func (e *Executor) step(ctx context.Context, r *run, c change) {
	e.mu.Lock()
	r.steps = append(r.steps, c)
	first := len(r.steps) == 1
	e.mu.Unlock()
	if !first {
		return // it goes with the first one
	}
	var steps []change
	e.updateSoon(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		e.mu.Lock()
		steps, r.steps = append(steps, r.steps...), nil // after a commit that failed there may be more
		e.mu.Unlock()
		return all(steps...)(j)
	})
}
