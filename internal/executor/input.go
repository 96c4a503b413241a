package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
)

// Input sends data to the stdin of a running task, and closes it if closed is set. Inputs arrive in
// the order of the calls. After an error that does not say whether data has arrived, the call can
// be repeated: nothing is delivered twice.
func (e *Executor) Input(ctx context.Context, id string, data []byte, closed bool) error {
	if len(data) > job.MaxInput {
		return &job.FieldError{Field: "input", Problem: fmt.Sprintf("is %d bytes, the limit is %d", len(data), job.MaxInput), Remedy: "send it in parts, or put it into files"}
	}
	r := e.runOf(id)
	j, err := e.takesInput(ctx, id, data, closed)
	if err != nil {
		return err
	}
	if r == nil && e.isOthers(j) {
		return e.elsewhereError(ctx, j)
	}
	if r == nil {
		return errors.New("the job is not being followed at the moment: try again")
	}
	leave, err := r.input.Enter(ctx)
	if err != nil {
		return fmt.Errorf("another input of the job is still in progress: %w", err)
	}
	defer leave()
	j, err = e.takesInput(ctx, id, data, closed)
	if err != nil || j.Stdin.Closed {
		return err
	}
	sent := j.Stdin.Bytes
	if len(data) > 0 {
		sent, err = e.o.Runner.Input(ctx, j, sent, data)
	}
	if err == nil && closed {
		err = e.o.Runner.CloseInput(ctx, j)
	}
	if err != nil {
		if state, probeErr := e.probe(ctx, j); probeErr == nil && state.Exited {
			return job.ErrCompleted
		}
		return r.capture.ShownError(err)
	}
	_, err = e.update(context.WithoutCancel(ctx), id, func(j *job.Job) ([]job.Event, error) {
		j.Stdin = job.InputInfo{Bytes: sent, Closed: closed}
		return nil, nil
	})
	return err
}

// answerInput lets the VM answer pending inputs before its connections are closed: the task may
// have ended because of one of them. A VM that does not answer delays the end only for sshTime.
func (r *run) answerInput(ctx context.Context) {
	timed, end := context.WithTimeout(ctx, sshTime)
	defer end()
	if leave, err := r.input.Enter(timed); err == nil {
		leave()
	}
}

// elsewhereError says which engine takes a job's input: only one engine does, to keep the order.
func (e *Executor) elsewhereError(ctx context.Context, j job.Job) error {
	engines, err := e.o.Engines.Engines(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(engines, func(i job.EngineInfo) bool { return i.ID == j.Engine })
	if at < 0 {
		return errors.New("the job is being taken over from an engine that has ended: try again")
	}
	return &job.FieldError{
		Field: "input", Problem: fmt.Sprintf("the job runs at another engine, on %s (pid %d), which alone can send it input", engines[at].Host, engines[at].PID),
		Remedy: "send it from a client of that engine", Fault: job.FaultState,
	}
}

// takesInput returns the job, and an error if its task does not accept this input.
func (e *Executor) takesInput(ctx context.Context, id string, data []byte, closed bool) (job.Job, error) {
	j, err := e.o.Jobs.Job(ctx, id)
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
		return j, &job.FieldError{Field: "input", Problem: "the task does not run yet: the job is " + string(j.Status), Remedy: "wait until " + string(job.ShowJob) + " says running"}
	}
	return j, nil
}
