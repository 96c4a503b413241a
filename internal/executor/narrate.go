package executor

import (
	"context"
	"sync"

	"linus/internal/claude"
	"linus/internal/job"
)

// Bounds of the events that tell what an agent does: of one look at its
// stream, the last ones, and of a job.
const (
	maxStepsAtOnce = 3
	maxSteps       = 500
)

// story is how far we know what a job's agent does.
type story struct {
	mu     sync.Mutex
	reader claude.Reader
	offset int64 // read up to here
	told   int   // events
}

// narrates reports whether a job's stdout is the agent's stream of JSON, in
// which it tells what it does and, in the end, its answer.
func narrates(m job.Manifest) bool {
	return m.AgentType == job.AgentClaude && m.Agent.Command == "" && m.StatusMode != job.StatusSimple
}

// narrate tells what the job's agent has begun to do, as far as the store has
// its stream. After a restart it tells the last of it again.
func (e *Executor) narrate(ctx context.Context, j job.Job) {
	if !narrates(j.Manifest) || j.Outcome != nil {
		return
	}
	e.mu.Lock()
	r := e.runs[j.ID]
	if r == nil {
		e.mu.Unlock()
		return
	}
	if r.story == nil {
		r.story = &story{}
	}
	s := r.story
	e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	steps, err := s.read(ctx, e.o.Store, j.ID)
	if err == nil && len(steps) > 0 {
		steps = steps[max(0, len(steps)-maxStepsAtOnce):]
		_, err = e.update(ctx, j.ID, func(j *job.Job) (events []job.Event, err error) {
			j.Progress = steps[len(steps)-1]
			for _, step := range steps {
				if s.told++; s.told <= maxSteps {
					events = append(events, job.Event{Kind: job.EventProgress, Phase: "run", Text: step})
				}
			}
			return events, nil
		})
	}
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("what the agent does is not told", "job_id", j.ID, "err", err)
	}
}

// read returns the steps in what the store has got since.
func (s *story) read(ctx context.Context, store Store, id string) (steps []string, err error) {
	for {
		data, at, err := store.Written(ctx, id, job.Stdout, s.offset, outputChunk)
		if err != nil || len(data) == 0 {
			return steps, err
		}
		s.offset = at + int64(len(data))
		steps = append(steps, s.reader.Read(data)...)
	}
}

// isNarrated reports whether what the job's agent does is being told.
func (e *Executor) isNarrated(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[id]
	return r != nil && r.story != nil
}
