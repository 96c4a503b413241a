package executor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// maxShared bounds the jobs that run in one VM at a time or wait for it.
const maxShared = 16

// release cleans up after a job in a persistent VM and releases the VM. A VM that is
// gone or does not respond delays nothing.
func (e *Executor) release(ctx context.Context, r *run, j job.Job) error {
	v, err := e.o.VMs.VM(ctx, j.VM.Job)
	if err == nil && v.State == vm.Created && j.Outcome.Reason != job.ReasonLost {
		timed, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := e.o.Runner.Clean(timed, j); err != nil {
			if ctx.Err() != nil {
				return err
			}
			e.o.Log.Warn("could not clean up after a job in its VM", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		}
	}
	e.o.Guest.Forget(j)
	_, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.VM.State = vm.Released
		return nil, nil
	})
	return err
}

// noVM is the error for a VM that is unknown or does not accept jobs.
func noVM(ref, problem string) error {
	return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q %s", ref, problem), Remedy: string(job.ListVMs) + " shows the VMs there are"}
}

// find returns a VM by its name or ID, or by that in its marker, if the caller may see it.
// One that is left alone comes last: its ID may belong to another by now.
func (e *Executor) find(ctx context.Context, ref string) (vm.VM, error) {
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return vm.VM{}, err
	}
	vms = slices.DeleteFunc(vms, func(v vm.VM) bool { return v.Job != ref && !hasName(v, ref) || !visible(ctx, ownerOf(v)) })
	if len(vms) == 0 {
		return vm.VM{}, noVM(ref, "is not a VM of ours")
	}
	at := slices.IndexFunc(vms, func(v vm.VM) bool { return v.State != vm.LeftAlone })
	return vms[max(0, at)], nil
}

// takesJobs returns an error if a VM does not accept jobs of others.
func takesJobs(v vm.VM, ref string) error {
	switch {
	case v.Member != nil:
		return noVM(ref, "is a VM of pool "+v.Member.Pool+": only persistent VMs take others")
	case v.Lifecycle != vm.Persistent:
		return noVM(ref, "goes with its job: only persistent VMs take others")
	case v.State == vm.LeftAlone:
		return noVM(ref, "is left alone: "+v.Reason)
	case v.Unwanted:
		return noVM(ref, "is being destroyed")
	case v.State != vm.Created:
		return noVM(ref, "is not ready yet: it is "+string(vm.Provisioning))
	}
	return nil
}

// openVM returns a persistent VM that accepts jobs and on which no work is in progress. The
// caller holds the decision until it has entered the VM or begun work on it.
func (e *Executor) openVM(ctx context.Context, d decision, ref string) (vm.VM, error) {
	v, err := e.find(ctx, ref)
	if err == nil {
		err = takesJobs(v, ref)
	}
	if err != nil {
		return v, err
	}
	return v, d.a.free(ctx, v)
}

// free returns an error if work on the VM is in progress.
func (a *access) free(ctx context.Context, v vm.VM) error {
	done, err := a.workOn(ctx, v.Job)
	if err == nil && done != "" {
		err = &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q is being %s", v.Name, done), Remedy: "try again when it is done"}
	}
	return err
}

// idle returns an error if jobs run in a VM. done is what was to be done to it.
func (e *Executor) idle(ctx context.Context, _ decision, v vm.VM, done string) error {
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return err
	}
	if jobs := sharers(begun, v); len(jobs) > 0 {
		return &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("VM %d cannot be %s: jobs run in it: %s", v.ID, done, strings.Join(jobs, ", ")),
			Remedy: "wait for them, or cancel them first",
		}
	}
	return nil
}

// sharers returns the IDs of the unfinished jobs that are in a VM or wait for it, including
// the one that creates it.
func sharers(begun []job.Job, v vm.VM) []string {
	var ids []string
	for _, j := range begun {
		inside := j.VM != nil && j.VM.Job == v.Job && (j.Kind != job.KindVM || j.Outcome == nil)
		waits := j.VM == nil && j.SharedVM == v.Job
		if (inside || waits) && !j.Status.Terminal() { // one that only cleans up does not count
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// hasName reports whether ref is the VM's name or ID.
func hasName(v vm.VM, ref string) bool {
	id, _ := strconv.Atoi(ref)
	return strings.EqualFold(v.Name, ref) || id != 0 && v.ID == id
}
