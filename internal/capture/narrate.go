package capture

import (
	"context"

	"linus/internal/agent"
	"linus/internal/job"
)

// Bounds of the events about an agent's steps: per read of its stream, of which the last steps are
// kept, and per job.
const (
	maxStepsAtOnce = 3
	maxSteps       = 500
)

// story is how far a job's agent has been followed.
type story struct {
	reader agent.Reader
	offset int64 // end of the part already read
	told   int   // number of events recorded
}

// narrates returns the agent whose JSON stream a job's stdout is: its steps and, at the end, its
// answer. It returns false if stdout is no such stream.
func narrates(m job.Manifest) (agent.Agent, bool) {
	a, known := m.AgentType.Agent()
	return a, known && m.StatusMode != job.StatusSimple
}

// Answer returns the agent's final text; ok is false if stdout has none.
func Answer(m job.Manifest, stdout []byte) (text string, ok bool) {
	a, ok := narrates(m)
	if !ok {
		return "", false
	}
	return a.Answer(stdout)
}

// Narrating reports whether the agent's steps are being recorded. Only the job's follower may call it.
func (c *Capture) Narrating() bool { return c.story != nil }

// Narrate records the agent's new steps, as far as its stream is stored. After a restart it records
// the last ones again. Only the job's follower may call it.
func (c *Capture) Narrate(ctx context.Context, j job.Job) {
	a, ok := narrates(c.manifest)
	if !ok || j.Outcome != nil {
		return
	}
	if c.story == nil {
		c.story = &story{reader: a.Reader()}
	}
	s := c.story
	steps, err := s.read(ctx, c.o.Store, c.id)
	if err == nil && len(steps) > 0 {
		steps = steps[max(0, len(steps)-maxStepsAtOnce):]
		var events []job.Event
		for _, step := range steps {
			if s.told++; s.told <= maxSteps {
				events = append(events, job.Event{Kind: job.EventProgress, Phase: job.PhaseRun, Text: step})
			}
		}
		_, err = c.o.Update(ctx, c.id, func(j *job.Job) ([]job.Event, error) {
			j.Progress = steps[len(steps)-1]
			return events, nil
		})
	}
	if err != nil && ctx.Err() == nil {
		c.o.Log.Warn("agent's steps not recorded", "job_id", c.id, "err", err)
	}
}

// read returns the steps in the newly stored output.
func (s *story) read(ctx context.Context, store Store, id string) (steps []string, err error) {
	for {
		data, at, err := store.Written(ctx, id, job.Stdout, s.offset, chunkSize)
		if err != nil || len(data) == 0 {
			return steps, err
		}
		s.offset = at + int64(len(data))
		steps = append(steps, s.reader.Read(data)...)
	}
}
