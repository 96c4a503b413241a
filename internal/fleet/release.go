package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// Release ends a job's hold on its VM: one that is to outlive the job is kept, one that it
// shares goes on, and any other is destroyed. The change is to be recorded of the job; call Freed
// when that says that the VM is gone. A VM that is left alone is no error: it remains listed.
func (f *Fleet) Release(ctx context.Context, j job.Job, h job.Holder) (_ func(*job.Job) ([]job.Event, error), err error) {
	if j.VM == nil || j.VM.State.Settled() {
		return nil, nil
	}
	f.o.Guest.Forget(j)
	switch {
	case j.Shares():
		f.touch(ctx, j.VM.Job)
		return becomes(vm.Released), nil
	case j.Keeps():
		return func(j *job.Job) ([]job.Event, error) {
			j.VM.Kept = j.Keeps() // else somebody does not want it any more, and it is destroyed when the job is adopted
			return nil, nil
		}, nil
	case j.Claims():
		return f.destroyClaimed(ctx, j, h)
	}
	var left error
	if j.VM.State.Planned() { // nothing is to be destroyed, on a host that may not respond; what the script left may be removed
		f.removeScraps(ctx, *j.VM)
		err = h.Removed(ctx, j, true)
	} else {
		left, err = f.removeFor(ctx, *j.VM, j, h)
	}
	switch {
	case err != nil:
		return nil, err
	case left == nil:
		return becomes(vm.Destroyed), nil
	}
	if err = f.Settle(ctx, j.ID, left); job.IsClass(err, job.HostLeftAlone) {
		err = nil
	}
	return nil, err
}

// becomes is the change of a job's VM to a state, with what is to be told of it.
func becomes(s vm.State, told ...job.Event) func(*job.Job) ([]job.Event, error) {
	return func(j *job.Job) ([]job.Event, error) {
		j.VM.State = s
		return told, nil
	}
}

// Freed notes that the VM of a job is recorded as gone: there is room, and its key has no use.
func (f *Fleet) Freed(ctx context.Context, id string) {
	f.MadeRoom()
	f.dropKey(ctx, id)
}

// removeScraps removes what a script may have left of a create that was refused.
func (f *Fleet) removeScraps(ctx context.Context, v vm.VM) {
	if err := f.o.Provider.Destroy(ctx, v); err != nil {
		f.o.Log.Debug("a refused create is not cleaned up", "job_id", v.Job, "err", err)
	}
}

// removeFor destroys a VM at the end of job j. left is why the host has left the VM alone;
// nil: it is gone. An error, of which j's row tells, means that this is to be tried again.
func (f *Fleet) removeFor(ctx context.Context, v vm.VM, j job.Job, h job.Holder) (left, err error) {
	_, err = f.Remove(job.WithCaller(ctx, j.Ender()), v)
	if err == nil || job.IsClass(err, job.HostOffline) {
		if removedErr := h.Removed(ctx, j, err == nil); removedErr != nil {
			return nil, errors.Join(err, removedErr)
		}
	}
	if err == nil || job.IsClass(err, job.HostLeftAlone) {
		return err, nil
	}
	_, noteErr := h.Update(ctx, func(*job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventWarning, Text: "VM not destroyed, will be tried again: " + err.Error()}}, nil
	})
	return nil, errors.Join(err, noteErr)
}

// destroyClaimed destroys the pool's VM that job j had, by its own proof, and records in its row
// what became of it, which the change says of the job.
func (f *Fleet) destroyClaimed(ctx context.Context, j job.Job, h job.Holder) (func(*job.Job) ([]job.Event, error), error) {
	v, err := f.o.Store.VM(ctx, j.VM.Job)
	if err != nil {
		return nil, err
	}
	f.o.Guest.Forget(asJob(v)) // the connections that the pool has opened
	if !v.State.Settled() {
		left, err := f.removeFor(ctx, v, j, h)
		if err != nil {
			return nil, err
		}
		if err = f.Settle(ctx, v.Job, left); err != nil && !job.IsClass(err, job.HostLeftAlone) {
			return nil, err
		}
		f.o.Guest.Forget(asJob(v)) // the pool may have asked it meanwhile
		if v, err = f.o.Store.VM(ctx, v.Job); err != nil {
			return nil, err
		}
	}
	f.dropKey(ctx, v.Job)
	f.TendSoon()
	switch v.State { // which an engine may have recorded that died before it was here
	case vm.Destroyed:
		return becomes(vm.Destroyed), nil
	case vm.Forgotten:
		return becomes(vm.Released, job.Event{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is forgotten by request, and stays on the host", v.ID)}), nil
	} // its own row tells of it until it is gone
	return becomes(vm.Released, job.Event{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is left alone: %s; %s", v.ID, v.Reason, v.Remedy)}), nil
}
