package executor

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// downError says that a job's own VM does not run, as the host reports.
type downError struct{ status vm.Status }

func (e *downError) Error() string {
	remedy := "check the host's log for who stopped it, or whether the host restarted, and submit the job again"
	switch e.status {
	case vm.Gone:
		remedy = "check the host's log for who destroyed it, and submit the job again"
	case vm.Suspended:
		remedy = "check the host's log for who suspended it, and submit the job again"
	}
	return fmt.Sprintf("its VM is %s on the host, and linus did not do it; %s", e.status, remedy)
}

// whileUp calls work, which connects to the job's VM, and returns early if the VM does not run.
func (e *Executor) whileUp(ctx context.Context, j job.Job, work func(context.Context) error) error {
	notUp := job.NotRunning
	if !j.Shares() {
		notUp = func(_ vm.VM, status vm.Status) error {
			if status.Down() {
				return &downError{status}
			}
			return nil
		}
	}
	return e.o.Fleet.WhileUp(ctx, *j.VM, notUp, work)
}
