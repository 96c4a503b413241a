package executor

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// book writes down in a job's row what becomes of its VM that is being made.
type book struct {
	e *Executor
	r *run
}

// Change is job.VMBook's. A job that has a node is provisioning.
func (b book) Change(ctx context.Context, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	j, err := b.e.update(ctx, b.r.id, func(j *job.Job) ([]job.Event, error) {
		v := vm.VM{}
		if j.VM != nil {
			v = *j.VM
		}
		before := v.State
		events, err := change(&v)
		if err != nil {
			return nil, err
		}
		if v.State == vm.Created && before != vm.Created { // who was ended meanwhile does not want it
			v.Unwanted = j.Outcome != nil && j.Manifest.Lifecycle != vm.Ephemeral
		}
		j.VM = &v
		return append(become(j, job.Provisioning), events...), nil
	})
	if err != nil {
		return vm.VM{}, err
	}
	return *j.VM, nil
}

// Tell shows what is happening, and records it together with what comes until then.
func (b book) Tell(ctx context.Context, p job.Progress) {
	at := now()
	b.e.step(ctx, b.r, func(j *job.Job) ([]job.Event, error) {
		if p.Warning == "" {
			j.Progress = p.Text
			if p.Of > 0 {
				j.Progress = fmt.Sprintf("%d/%d %s", p.N, p.Of, p.Text)
			}
		}
		event := p.Event()
		event.At = at
		return []job.Event{event}, nil
	})
}

// forNode begins the progress of a job that waits for a node.
const forNode = "waiting: "

// Wait shows why the job waits.
func (b book) Wait(ctx context.Context, full *job.NoRoomError) error {
	text := ""
	if full != nil {
		text = forNode + full.Error()
	}
	b.e.mu.Lock()
	before := b.r.waits
	b.r.waits = text
	b.e.mu.Unlock()
	if text == "" || before == text {
		return nil
	}
	_, err := b.e.update(ctx, b.r.id, func(j *job.Job) ([]job.Event, error) {
		j.Progress = text
		if before != "" {
			return nil, nil
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text}}, nil
	})
	return err
}

// Told returns the events of the job.
func (b book) Told(ctx context.Context) (map[job.Event]bool, error) {
	events, err := b.e.o.Jobs.Events(ctx, b.r.id, 0)
	told := map[job.Event]bool{}
	for _, event := range events {
		told[job.Event{Kind: event.Kind, Phase: event.Phase, Text: event.Text}] = true
	}
	return told, err
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
	e.updateSoon(ctx, r.id, func(j *job.Job) (all []job.Event, err error) {
		e.mu.Lock()
		steps, r.steps = append(steps, r.steps...), nil // after a commit that failed there may be more
		e.mu.Unlock()
		return allOf(steps, j)
	})
}
