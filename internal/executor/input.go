package executor

import (
	"context"
	"fmt"
	"slices"

	"linus/internal/job"
)

// MaxInput bounds what one call sends to a task's stdin, in bytes.
const MaxInput = 4 << 20

// Input sends data to the stdin of a running task, and closes it when closed
// is set. Inputs arrive in the order of the calls. After an error that leaves
// open whether data has arrived the same call can be made again: what has
// arrived is not sent twice.
func (e *Executor) Input(ctx context.Context, id string, data []byte, closed bool) error {
	if len(data) > MaxInput {
		return &job.FieldError{Field: "input", Problem: fmt.Sprintf("is %d bytes, the limit is %d", len(data), MaxInput), Remedy: "send it in parts, or put it into files"}
	}
	if _, err := e.takesInput(ctx, id, data, closed); err != nil {
		return err
	}
	unlock, err := e.lockInput(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	j, err := e.takesInput(ctx, id, data, closed)
	if err != nil || j.Stdin.Closed {
		return err
	}
	sent := j.Stdin.Bytes
	if len(data) > 0 {
		sent, err = e.Guest.Input(ctx, j, sent, data)
	}
	if err == nil && closed {
		err = e.Guest.CloseInput(ctx, j)
	}
	if err != nil {
		if state, probeErr := e.probe(ctx, j); probeErr == nil && state.Exited {
			return job.ErrCompleted
		}
		return e.hideError(ctx, id, err)
	}
	_, err = e.update(context.WithoutCancel(ctx), id, func(j *job.Job) ([]job.Event, error) {
		j.Stdin = job.InputInfo{Bytes: sent, Closed: closed}
		return nil, nil
	})
	return err
}

// takesInput returns the job when its task can be sent this.
func (e *Executor) takesInput(ctx context.Context, id string, data []byte, closed bool) (job.Job, error) {
	j, err := e.Store.Job(ctx, id)
	switch {
	case err != nil:
		return j, err
	case j.Manifest.Stdin != job.StdinOpen:
		return j, &job.FieldError{Field: "input", Problem: "the job's stdin is closed", Remedy: "submit it with stdin open"}
	case j.Outcome != nil:
		return j, job.ErrCompleted
	case j.Stdin.Closed && (len(data) > 0 || !closed):
		return j, &job.FieldError{Field: "input", Problem: "the job's stdin was closed", Remedy: "submit a new job"}
	case j.Status != job.Running:
		return j, &job.FieldError{Field: "input", Problem: "the task does not run yet: the job is " + string(j.Status), Remedy: "wait until get_job_status says running"}
	}
	return j, nil
}

// lockInput keeps the inputs of one job apart, first come, first served.
func (e *Executor) lockInput(ctx context.Context, id string) (unlock func(), err error) {
	turn := make(chan struct{})
	e.mu.Lock()
	e.inputs[id] = append(e.inputs[id], turn)
	first := len(e.inputs[id]) == 1
	e.mu.Unlock()
	unlock = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		place := slices.Index(e.inputs[id], turn)
		line := slices.Delete(e.inputs[id], place, place+1)
		e.inputs[id] = line
		switch {
		case len(line) == 0:
			delete(e.inputs, id)
		case place == 0:
			close(line[0])
		}
	}
	if first {
		return unlock, nil
	}
	select {
	case <-turn:
		return unlock, nil
	case <-ctx.Done():
		unlock()
		return nil, fmt.Errorf("another input of the job is still under way: %w", ctx.Err())
	}
}
