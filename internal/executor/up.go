package executor

import (
	"context"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// How long work in a VM may take before the host is asked whether the VM runs, and
// after how long it is asked again: each time costs the host a second of CPU.
const (
	lookAfter = 3 * time.Second
	lookEvery = 10 * time.Second
)

// downError: a job's own VM does not run, as the host reports.
type downError struct{ status vm.Status }

func (e *downError) Error() string {
	remedy := "look in the host's log who stopped it, or whether the host restarted, and submit the job again"
	switch e.status {
	case vm.Gone:
		remedy = "look in the host's log who destroyed it, and submit the job again"
	case vm.Suspended:
		remedy = "look in the host's log who suspended it, and submit the job again"
	}
	return fmt.Sprintf("its VM is %s on the host, and not by us; %s", e.status, remedy)
}

// whileUp calls work, which connects to the job's VM. If work takes long or fails
// because the VM does not run or the host does not respond, whileUp returns the host's
// error early, instead of SSH's error when that gives up.
func (e *Executor) whileUp(ctx context.Context, j job.Job, work func(context.Context) error) error {
	working, end := context.WithCancelCause(ctx)
	looked := make(chan struct{})
	var down error
	go func() {
		defer close(looked)
		t := time.NewTimer(lookAfter)
		defer t.Stop()
		for {
			select {
			case <-working.Done():
				return
			case <-t.C:
				t.Reset(lookEvery)
			}
			if status, err := e.o.Provider.Status(working, *j.VM); err == nil {
				if down = notUp(j, status); down != nil {
					end(down)
					return
				}
			}
		}
	}()
	err := work(working)
	end(nil)
	<-looked
	switch {
	case err == nil:
		return nil
	case down != nil:
		return down
	case ctx.Err() != nil:
		return err
	}
	status, asked := e.o.Provider.Status(ctx, *j.VM)
	if asked != nil {
		if job.IsClass(err, job.HostUnreachable) && job.IsClass(asked, job.HostUnreachable) {
			return asked // it is the host that cannot be reached, not the VM
		}
		return err
	}
	if down := notUp(j, status); down != nil {
		return down
	}
	return err
}

// notUp returns an error if the job's VM does not run, as the host has reported.
func notUp(j job.Job, status vm.Status) error {
	switch {
	case !status.Down():
		return nil
	case !j.Shares():
		return &downError{status}
	case status == vm.Stopped:
		return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q (VM %d) is stopped", j.VM.Name, j.VM.ID), Remedy: "start it first"}
	case status == vm.Suspended:
		return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q (VM %d) is suspended", j.VM.Name, j.VM.ID), Remedy: "resume it first"}
	default:
		return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q (VM %d) is gone from the host, and not by us", j.VM.Name, j.VM.ID), Remedy: "destroy it here too, and create it again"}
	}
}
