package executor

import (
	"cmp"
	"context"
	"errors"

	"linus/internal/job"
	"linus/internal/vm"
)

// maxSide bounds a terminal's rows and columns, as of job.Manifest's TTYSize.
const maxSide = 9999

// DialVM connects to a port of a VM's loopback.
func (e *Executor) DialVM(ctx context.Context, ref string, port int) (t job.Tunnel, err error) {
	if err := within("port", int64(port), 1, 65535); err != nil {
		return nil, err
	}
	err = e.inFiles(ctx, ref, func(ctx context.Context, v vm.VM) error {
		t, err = e.o.Guest.Dial(ctx, v, port)
		return err
	})
	if err != nil && t != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, err
}

// Resize gives the terminal of a running task another size.
func (e *Executor) Resize(ctx context.Context, id string, rows, columns int) error {
	if err := cmp.Or(within("rows", int64(rows), 1, maxSide), within("columns", int64(columns), 1, maxSide)); err != nil {
		return err
	}
	j, err := e.o.Jobs.Job(ctx, id)
	switch {
	case err != nil:
		return err
	case !j.Manifest.TTY:
		return &job.FieldError{Field: "id", Problem: "is a job without a terminal", Remedy: "submit it with tty"}
	case j.Outcome != nil:
		return job.ErrCompleted
	case j.Status != job.Running:
		return &job.FieldError{Field: "id", Problem: "is a job whose task does not run yet: it is " + string(j.Status), Remedy: "wait until " + string(job.ShowJob) + " says running"}
	}
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.captureOf(j).ShownError(e.o.Runner.Resize(ctx, j, rows, columns))
}
