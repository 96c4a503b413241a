package executor

import (
	"cmp"
	"context"

	"linus/internal/job"
)

// maxSide bounds a terminal's rows and columns, like job.Manifest's TTYSize.
const maxSide = 9999

// Resize changes the size of a running task's terminal.
func (e *Executor) Resize(ctx context.Context, id string, rows, columns int) error {
	if err := cmp.Or(job.Within("rows", int64(rows), 1, maxSide), job.Within("columns", int64(columns), 1, maxSide)); err != nil {
		return err
	}
	j, err := e.o.Jobs.Job(ctx, id)
	switch {
	case err != nil:
		return err
	case !j.Manifest.TTY:
		return &job.FieldError{Field: "id", Problem: "is a job without a terminal", Remedy: "submit it with tty", Fault: job.FaultState}
	case j.Outcome != nil:
		return job.ErrCompleted
	case j.Status != job.Running:
		return &job.FieldError{Field: "id", Problem: "is a job whose task does not run yet: it is " + string(j.Status), Remedy: "wait until " + string(job.ShowJob) + " says running", Fault: job.FaultState}
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.captureOf(j).ShownError(e.o.Runner.Resize(ctx, j, rows, columns))
}
