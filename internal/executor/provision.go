package executor

import (
	"context"
	"fmt"
	"time"

	"linus/internal/job"
)

// warmPatience bounds how long a new VM is prepared for its task in advance. Push goes
// on from there.
const warmPatience = 10 * time.Second

// provision gets the job a VM, and prepares that for its task.
func (e *Executor) provision(ctx context.Context, r *run) error {
	if err := e.obtain(ctx, r); err != nil {
		return err
	}
	j, err := e.o.Store.Job(ctx, r.id)
	if err != nil || j.Kind == job.KindVM || !j.StartedAt.IsZero() {
		return err
	}
	if pinned(*j.VM) != nil {
		return nil // push says whether the job may go there at all
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
func (e *Executor) obtain(ctx context.Context, r *run) error {
	j, err := e.o.Store.Job(ctx, r.id)
	if err == nil && j.Shares() {
		return e.join(ctx, r, j)
	}
	if err == nil {
		var has bool
		if j, has, err = e.fromPool(ctx, r, j); has {
			return nil
		}
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
	if err != nil || j.VM.State == job.VMCreated {
		return err
	}
	spec, err := e.vmSpec(j)
	if err != nil {
		return err
	}
	spec.PublicKey = key
	told, err := e.told(ctx, r)
	if err != nil {
		return err
	}
	create := func() (job.VM, error) {
		return e.o.Provider.Create(ctx, spec, func(p job.Progress) { e.progress(ctx, r, p, told) })
	}
	vm, err := create()
	if job.IsClass(err, job.HostExists) {
		told = nil
		// It may be from an unrecorded earlier attempt. If not, it stays.
		if j, err = e.o.Store.Job(ctx, r.id); err != nil {
			return err
		}
		if err := e.removeVM(ctx, j); err != nil {
			return fmt.Errorf("remove what an earlier attempt left: %w", err)
		}
		vm, err = create()
	}
	if err != nil {
		return err
	}
	vm.State, vm.Source = job.VMCreated, job.SourceCold
	if j.Manifest.TTL > 0 {
		vm.ExpiresAt = now().Add(time.Duration(j.Manifest.TTL) * time.Second)
	}
	_, err = e.claim(ctx, r.id, vm, func(j *job.Job) ([]job.Event, error) {
		vm.Unwanted = j.Outcome != nil && j.Manifest.Lifecycle != job.Ephemeral // the job was ended meanwhile: nobody wants the VM
		j.VM = &vm
		return nil, nil
	})
	return err
}

// told returns the steps and warnings of the job's create that are already recorded, by
// kind, phase and text: a create that is joined reports all of them again.
func (e *Executor) told(ctx context.Context, r *run) (map[job.Event]bool, error) {
	if !r.adopted {
		return nil, nil
	}
	events, err := e.o.Store.Events(ctx, r.id, 0)
	told := map[job.Event]bool{}
	for _, event := range events {
		told[job.Event{Kind: event.Kind, Phase: event.Phase, Text: event.Text}] = true
	}
	return told, err
}

// progress records a provider's steps and warnings that are not recorded yet, and the
// VM's ID as soon as there is one.
func (e *Executor) progress(ctx context.Context, r *run, p job.Progress, told map[job.Event]bool) {
	_, err := e.update(context.WithoutCancel(ctx), r.id, func(j *job.Job) ([]job.Event, error) {
		if p.VMID != 0 {
			j.VM.ID = p.VMID
		}
		var event job.Event
		switch {
		case p.Warning != "":
			event = job.Event{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: p.Warning}
		case p.Step != "":
			j.Progress = fmt.Sprintf("%d/%d %s", p.N, p.Of, p.Text)
			event = job.Event{Kind: job.EventProgress, Phase: p.Step, Text: p.Text}
		default:
			return nil, nil
		}
		if told[event] {
			return nil, nil
		}
		return []job.Event{event}, nil
	})
	if err != nil {
		e.o.Log.Error("record progress failed", "job_id", r.id, "err", err)
	}
}

// vmName returns the name of the job's VM: a DNS label. The end of the job's ID is its
// random part.
func vmName(id string) string { return "linus-job-" + id[len(id)-12:] }

func (e *Executor) vmSpec(j job.Job) (job.VMSpec, error) {
	memory, err := job.ParseSize(j.Manifest.Resources.Memory)
	if err != nil {
		return job.VMSpec{}, err
	}
	disk, err := job.ParseSize(j.Manifest.Resources.Disk)
	if err != nil {
		return job.VMSpec{}, err
	}
	const mib, gib = 1 << 20, 1 << 30
	var lease time.Duration
	switch {
	case j.Member != nil:
		lease = e.memberLease()
	case e.o.Lease > 0 && j.Manifest.Lifecycle == job.Ephemeral:
		lease = time.Duration(j.Manifest.Timeout)*time.Second + e.o.Lease
	case e.o.Lease > 0 && j.Manifest.TTL > 0:
		lease = time.Duration(j.Manifest.TTL)*time.Second + e.o.Lease
	}
	return job.VMSpec{
		Lease: lease,
		Node:  j.VM.Node,
		Name:  j.VM.Name, Job: j.VM.Job, Owner: j.VM.Owner,
		CPU:      j.Manifest.Resources.CPU,
		MemoryMB: int((memory + mib - 1) / mib),
		DiskGB:   int((disk + gib - 1) / gib),
		Template: j.Manifest.VMTemplate,
		OS:       j.Manifest.OS,
		Network:  j.Manifest.Network,
	}, nil
}
