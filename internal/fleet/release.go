package fleet

import (
	"context"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// Release ends a job's hold on its VM: a VM that is to outlive the job is kept, a shared one stays, and
// any other is destroyed, which gone reports. The returned change is to be stored in the job's row, even
// with an error; if gone, call Freed after that. A VM that is left alone is no error: it remains listed.
func (f *Fleet) Release(ctx context.Context, j job.Job) (_ func(*job.Job) ([]job.Event, error), gone bool, err error) {
	if j.VM == nil || j.VM.State.Settled() {
		return nil, false, nil
	}
	f.o.Guest.Forget(j)
	switch {
	case j.Shares():
		f.touch(ctx, j.VM.Job)
		return becomes(vm.Released), false, nil
	case j.Keeps():
		return func(j *job.Job) ([]job.Event, error) {
			j.VM.Kept = j.Keeps() // else somebody no longer wants it, and it is destroyed when the job is adopted
			return nil, nil
		}, false, nil
	case j.Claims():
		return f.destroyClaimed(ctx, j)
	case j.VM.State.Planned(): // nothing is to be destroyed, on a host that may not respond; what the script left may be removed
		f.removeScraps(ctx, *j.VM)
	default:
		err = f.removeFor(ctx, *j.VM, j)
	}
	switch {
	case err == nil:
		return becomes(vm.Destroyed), true, nil
	case !job.IsClass(err, job.HostLeftAlone):
		return notDestroyed(err), false, err
	}
	if err = f.Settle(ctx, j.ID, err); job.IsClass(err, job.HostLeftAlone) {
		err = nil
	}
	return nil, false, err
}

// becomes returns a change of a job's VM to a state, with events.
func becomes(s vm.State, told ...job.Event) func(*job.Job) ([]job.Event, error) {
	return func(j *job.Job) ([]job.Event, error) {
		j.VM.State = s
		return told, nil
	}
}

// Freed records that a job's VM is stored as gone: there is room, and its key is of no use.
func (f *Fleet) Freed(ctx context.Context, id string) {
	f.MadeRoom()
	f.dropKey(ctx, id)
}

// removeScraps removes what a script may have left of a refused create.
func (f *Fleet) removeScraps(ctx context.Context, v vm.VM) {
	if err := f.o.Provider.Destroy(ctx, v); err != nil {
		f.o.Log.Debug("a refused create is not cleaned up", "job_id", v.Job, "err", err)
	}
}

// removeFor destroys a VM at the end of job j.
func (f *Fleet) removeFor(ctx context.Context, v vm.VM, j job.Job) error {
	_, err := f.Remove(job.WithCaller(ctx, j.Ender()), v)
	return err
}

// notDestroyed returns a change that reports that a job's VM is still there.
func notDestroyed(err error) func(*job.Job) ([]job.Event, error) {
	return func(*job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventWarning, Text: "VM not destroyed, will be tried again: " + err.Error()}}, nil
	}
}

// destroyClaimed destroys the pool's VM that job j had, by the VM's own proof. It records the
// result in the VM's row, and returns the change for the job.
func (f *Fleet) destroyClaimed(ctx context.Context, j job.Job) (_ func(*job.Job) ([]job.Event, error), gone bool, err error) {
	v, err := f.o.Store.VM(ctx, j.VM.Job)
	if err != nil {
		return nil, false, err
	}
	f.o.Guest.Forget(asJob(v)) // the connections that the pool has opened
	if !v.State.Settled() {
		left := f.removeFor(ctx, v, j)
		if left != nil && !job.IsClass(left, job.HostLeftAlone) {
			return notDestroyed(left), false, left
		}
		if err = f.Settle(ctx, v.Job, left); err != nil && !job.IsClass(err, job.HostLeftAlone) {
			return nil, false, err
		}
		f.o.Guest.Forget(asJob(v)) // the pool may have pinged the VM meanwhile
		if v, err = f.o.Store.VM(ctx, v.Job); err != nil {
			return nil, false, err
		}
	}
	f.dropKey(ctx, v.Job)
	f.TendSoon()
	switch v.State { // a previous engine may have recorded it before it died
	case vm.Destroyed:
		return becomes(vm.Destroyed), true, nil
	case vm.Forgotten:
		return becomes(vm.Released, job.Event{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d was forgotten on request, and stays on the host", v.ID)}), false, nil
	} // the VM's own row reports it until it is gone
	return becomes(vm.Released, job.Event{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is left alone: %s; %s", v.ID, v.Reason, v.Remedy)}), false, nil
}
