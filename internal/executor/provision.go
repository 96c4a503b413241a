package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
	"linus/internal/vm"
)

// warmPatience bounds how long a new VM is prepared for its task in advance. Push goes
// on from there.
const warmPatience = 10 * time.Second

// provision gets the job a VM, and prepares that for its task, or for that of the job that
// will claim it from a pool.
func (e *Executor) provision(ctx context.Context, r *run, j job.Job) error {
	if err := e.obtain(ctx, r, j); err != nil {
		return err
	}
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err != nil || j.Kind == job.KindVM && !j.ForPool() || !j.StartedAt.IsZero() {
		return err
	}
	if pinned(*j.VM) != nil {
		return nil // push says whether the job may go there at all
	}
	if !j.Shares() && j.VM.Source == vm.Cold {
		e.progress(ctx, r, job.Progress{Step: "connect", Text: "connecting to the VM"}, nil)
	}
	timed, end := context.WithTimeout(ctx, warmPatience)
	defer end()
	if err := e.o.Guest.Warm(timed, j); err != nil {
		e.o.Log.Debug("the VM is not prepared in advance", "job_id", r.id, "err", err)
	}
	return nil
}

// obtain creates the job's VM, or finds the one it shares or gets from a pool. The row
// says that a VM is intended before one can exist, and has its ID as soon as that is
// reserved.
func (e *Executor) obtain(ctx context.Context, r *run, j job.Job) error {
	if j.Shares() {
		return e.join(ctx, r, j)
	}
	j, has, err := e.fromPool(ctx, r, j)
	if has {
		return nil
	}
	if err == nil && j.VM == nil {
		err = e.freeName(ctx, j)
	}
	if err != nil {
		return err
	}
	key, err := e.loginKey(j)
	if err != nil {
		return err
	}
	j, err = e.intend(ctx, r, j)
	if err != nil || j.VM.State == vm.Created {
		return err
	}
	spec, err := e.vmSpec(j)
	if err != nil {
		return err
	}
	spec.PublicKey = key
	v, err := e.createVM(ctx, r, spec)
	if err != nil {
		return e.unnamed(ctx, j, err)
	}
	v.State, v.Source, v.Made = vm.Created, vm.Cold, j.VM.Made
	if j.Manifest.TTL > 0 {
		v.ExpiresAt = now().Add(time.Duration(j.Manifest.TTL) * time.Second)
	}
	return e.o.Fleet.Accept(ctx, r.id, v, func(ctx context.Context) error {
		_, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
			v.Unwanted = j.Outcome != nil && j.Manifest.Lifecycle != vm.Ephemeral // the job was ended meanwhile: nobody wants the VM
			v.Member = j.VM.Member
			j.VM = &v
			return nil, nil
		})
		return err
	})
}

// createTries is how often the creation of a job's VM is begun: a host may restart in
// the middle of it, and again.
const createTries = 5

// createVM creates the VM of a run's job and records the provider's progress. Where an
// earlier attempt is in the way, it removes what that left and begins again.
func (e *Executor) createVM(ctx context.Context, r *run, spec job.VMSpec) (vm.VM, error) {
	recorded, err := e.recordedSteps(ctx, r)
	if err != nil {
		return vm.VM{}, err
	}
	for tries := 1; ; tries++ {
		v, err := e.o.Provider.Create(ctx, spec, func(p job.Progress) { e.progress(ctx, r, p, recorded) })
		var host *job.HostError
		r.unmade = errors.As(err, &host) && host.NoVM && v.ID == 0 && tries == 1 && !r.adopted
		if tries == createTries || !begunBefore(err) {
			return v, err
		}
		removed, clearErr := e.removeAttempt(ctx, r.id)
		switch {
		case clearErr != nil:
			return vm.VM{}, clearErr
		case !removed && job.IsClass(err, job.HostExists): // it is somebody else's
			return v, err
		}
		e.o.Log.Warn("the VM's creation is begun again", "job_id", r.id, "attempt", tries+1, "err", err)
		recorded = nil
	}
}

// removeAttempt removes what an earlier attempt to create a job's VM may have left
// without recording it, and reports whether there was something. What is not the job's
// stays.
func (e *Executor) removeAttempt(ctx context.Context, id string) (removed bool, err error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if err != nil {
		return false, err
	}
	if removed, err = e.clear(ctx, j); err != nil {
		return false, fmt.Errorf("remove what an earlier attempt left: %w", err)
	}
	// The ID is of what is gone. Until the next one is told, the VM is found by its marker.
	_, err = e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		j.VM.ID = 0
		return nil, nil
	})
	return removed, err
}

// begunBefore reports whether a create failed because of what an earlier one has left,
// or because its host was restarted, and may succeed once that is removed.
func begunBefore(err error) bool {
	return job.IsClass(err, job.HostExists) || job.IsClass(err, job.HostInterrupted)
}

// clear removes what a create has left; it waits for nodes that are away.
func (e *Executor) clear(ctx context.Context, j job.Job) (removed bool, err error) {
	timed, end := context.WithTimeout(ctx, e.o.HeartbeatThreshold)
	defer end()
	_ = patience.Retry(timed, func() error {
		removed, err = e.o.Fleet.Remove(ctx, *j.VM)
		if job.IsClass(err, job.HostUnreachable) || job.IsClass(err, job.HostOffline) {
			return err
		}
		return nil
	})
	return removed, err
}

// recordedSteps returns the steps and warnings of the job's create that are already
// recorded, by kind, phase and text: a create that is joined reports all of them again.
func (e *Executor) recordedSteps(ctx context.Context, r *run) (map[job.Event]bool, error) {
	if !r.adopted {
		return nil, nil
	}
	events, err := e.o.Jobs.Events(ctx, r.id, 0)
	recorded := map[job.Event]bool{}
	for _, event := range events {
		recorded[job.Event{Kind: event.Kind, Phase: event.Phase, Text: event.Text}] = true
	}
	return recorded, err
}

// progress records a provider's steps and warnings that are not recorded yet, and the
// VM's ID at once when there is one.
func (e *Executor) progress(ctx context.Context, r *run, p job.Progress, recorded map[job.Event]bool) {
	ctx = context.WithoutCancel(ctx)
	at := now()
	change := func(j *job.Job) ([]job.Event, error) {
		if p.VMID != 0 {
			j.VM.ID = p.VMID
		}
		var event job.Event
		switch {
		case p.Warning != "":
			event = job.Event{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: p.Warning}
		case p.Step != "":
			j.Progress = p.Text
			if p.Of > 0 {
				j.Progress = fmt.Sprintf("%d/%d %s", p.N, p.Of, p.Text)
			}
			event = job.Event{Kind: job.EventProgress, Phase: p.Step, Text: p.Text}
		default:
			return nil, nil
		}
		if recorded[event] {
			return nil, nil
		}
		event.At = at
		return []job.Event{event}, nil
	}
	if p.VMID == 0 {
		e.step(ctx, r, change)
	} else if _, err := e.update(ctx, r.id, change); err != nil {
		e.o.Log.Error("record progress failed", "job_id", r.id, "err", err)
	}
}

// step records a change soon, together with others that come until then.
func (e *Executor) step(ctx context.Context, r *run, c change) {
	e.mu.Lock()
	r.steps = append(r.steps, c)
	first := len(r.steps) == 1
	e.mu.Unlock()
	if !first {
		return // it goes with the first one
	}
	var steps []change
	e.updateSoon(ctx, r.id, func(j *job.Job) (all []job.Event, err error) {
		e.mu.Lock()
		steps, r.steps = append(steps, r.steps...), nil // after a commit that failed there may be more
		e.mu.Unlock()
		return allOf(steps, j)
	})
}

// vmSpec returns what a job's own VM is made by.
func (e *Executor) vmSpec(j job.Job) (job.VMSpec, error) { return e.vmSpecOf(j, *j.VM) }

// vmSpecOf is vmSpec for a VM that the job does not have yet.
func (e *Executor) vmSpecOf(j job.Job, v vm.VM) (job.VMSpec, error) {
	spec, err := job.SpecOf(j.Manifest)
	spec.Node, spec.Name, spec.Job, spec.Owner = v.Node, v.Name, v.Job, v.Owner
	switch {
	case e.o.Lease == 0:
	case j.ForPool():
		spec.Lease = e.o.Fleet.MemberLease()
	case j.Manifest.Lifecycle == vm.Ephemeral:
		spec.Lease = seconds(j.Manifest.Timeout) + e.o.Lease
	case j.Manifest.TTL > 0:
		spec.Lease = seconds(j.Manifest.TTL) + e.o.Lease
	}
	return spec, err
}
