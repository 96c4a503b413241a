package fleet

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// maxShared bounds the jobs that run in one VM at a time or wait for it.
const maxShared = 16

// noVM is the error for a VM that is unknown or does not accept jobs.
func noVM(ref, problem string) *job.FieldError {
	return &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q %s", ref, problem), Remedy: string(job.ListVMs) + " shows the VMs there are", Fault: job.FaultState}
}

// Find returns a VM by its name, its ID or the ID in its marker, if the caller may see it. VMs that
// are left alone come last: their IDs may belong to other VMs now.
func (f *Fleet) Find(ctx context.Context, ref string) (vm.VM, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return vm.VM{}, err
	}
	vms = slices.DeleteFunc(vms, func(v vm.VM) bool {
		return v.Checkpoint != nil || !matchesRef(v, ref) || !job.Visible(ctx, v.OwnedBy())
	})
	if len(vms) == 0 {
		none := noVM(ref, "is not a VM of ours")
		none.Fault = job.FaultUnknown
		return vm.VM{}, none
	}
	at := slices.IndexFunc(vms, func(v vm.VM) bool { return v.State != vm.LeftAlone })
	return vms[max(0, at)], nil
}

// findOpen is Find for a VM that accepts other jobs.
func (f *Fleet) findOpen(ctx context.Context, ref string) (vm.VM, error) {
	v, err := f.Find(ctx, ref)
	if err == nil {
		err = takesJobs(v, ref)
	}
	return v, err
}

// takesJobs returns an error if a VM does not accept other jobs.
func takesJobs(v vm.VM, ref string) error {
	switch {
	case v.Member != nil:
		return noVM(ref, "is a VM of pool "+v.OfPool()+": only persistent VMs take others")
	case v.Lifecycle != vm.Persistent:
		return noVM(ref, "goes with its job: only persistent VMs take others")
	case v.State == vm.LeftAlone:
		return noVM(ref, "is left alone: "+v.Reason)
	case v.Unwanted:
		return noVM(ref, "is being destroyed")
	case v.State != vm.Created || v.BeingMade():
		return noVM(ref, "is not ready yet: it is "+string(vm.Provisioning))
	}
	return nil
}

// Decide waits for the right to decide who may have what; end releases it. There is one decision at
// a time among all engines, from the first read of the store until its result is stored.
func (f *Fleet) Decide(ctx context.Context) (end func(), err error) {
	d, err := f.access.decide(ctx)
	return d.end, err
}

// Enter returns the persistent VM that a job is to share, if it accepts one more. The caller holds
// the decision until the job is stored.
func (f *Fleet) Enter(ctx context.Context, ref string) (vm.VM, error) {
	v, err := f.findOpen(ctx, ref)
	if err == nil {
		err = f.access.usable(ctx, v)
	}
	if err != nil {
		return v, err
	}
	jobs, err := f.inside(ctx, v)
	if err == nil && len(jobs) >= maxShared {
		err = &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("%q has %d jobs, which is the limit", v.Name, len(jobs)),
			Remedy: "wait for one to end, or use another VM", Fault: job.FaultState,
		}
	}
	return v, err
}

// openVM returns a persistent VM that accepts jobs and that is not being worked on. The caller
// holds the decision until it has entered the VM or begun work on it.
func (f *Fleet) openVM(ctx context.Context, ref string) (vm.VM, error) {
	v, err := f.findOpen(ctx, ref)
	if err != nil {
		return v, err
	}
	if !v.Forking.Begun { // from then on it is like any other VM to those who work in it
		if err := f.checkNotForking(v); err != nil {
			return v, err
		}
	}
	return v, f.access.free(ctx, v)
}

// free returns an error if work on the VM is in progress.
func (a *access) free(ctx context.Context, v vm.VM) error {
	done, err := a.workOn(ctx, v.Job)
	if err == nil && done != "" {
		err = &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q is being %s", v.Name, done), Remedy: "try again when it is done", Fault: job.FaultState}
	}
	return err
}

// usable is free for callers that wait until an idle VM is suspended or resumed.
func (a *access) usable(ctx context.Context, v vm.VM) error {
	if done, err := a.workOn(ctx, v.Job); err != nil || done == napping || done == waking {
		return err
	}
	return a.free(ctx, v)
}

// idle returns an error if jobs run in a VM. done is what was to be done to the VM.
func (f *Fleet) idle(ctx context.Context, v vm.VM, done string) error {
	jobs, err := f.inside(ctx, v)
	if err == nil && len(jobs) > 0 {
		err = &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("VM %d cannot be %s: jobs run in it: %s", v.ID, done, strings.Join(jobs, ", ")),
			Remedy: "wait for them, or cancel them first", Fault: job.FaultState,
		}
	}
	return err
}

// inside returns the IDs of the unfinished jobs that are in a VM or wait for it, including the job
// that makes it.
func (f *Fleet) inside(ctx context.Context, v vm.VM) ([]string, error) {
	begun, err := f.o.Jobs.InProgress(ctx)
	return insideOf(begun, v), err
}

func insideOf(begun []job.Job, v vm.VM) []string {
	var ids []string
	for _, j := range begun {
		inside := j.VM != nil && j.VM.Job == v.Job
		waits := j.VM == nil && j.SharedVM == v.Job
		if (inside || waits) && !j.Status.Terminal() { // a job that only cleans up does not count
			ids = append(ids, j.ID)
		}
	}
	return ids
}

// matchesRef reports whether ref is the VM's name or ID, the ID in its marker, or the ID of a port
// that it exposes.
func matchesRef(v vm.VM, ref string) bool {
	if id, ok := strings.CutPrefix(ref, job.PortRef); ok {
		return v.Exposes(id)
	}
	return v.Job == ref || hasName(v, ref)
}

func hasName(v vm.VM, ref string) bool {
	id, _ := strconv.Atoi(ref)
	return strings.EqualFold(v.Name, ref) || id != 0 && v.ID == id
}
