package fleet

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// made is the source of new VMs.
func (f *Fleet) made(ctx context.Context, a *acquisition) (has bool, err error) {
	o, err := f.orderOf(ctx, a)
	if err == nil {
		_, err = f.make(ctx, o)
	}
	return err == nil, err
}

// orderOf returns the request for the job's own VM.
func (f *Fleet) orderOf(ctx context.Context, a *acquisition) (o makeRequest, err error) {
	j := a.job
	if j.VM == nil {
		if err := f.freeName(ctx, j.Manifest.VMName, j.ID, j.Principal); err != nil {
			return o, err
		}
	}
	planned, err := f.pinned(ctx, j)
	if err != nil {
		return o, err
	}
	o = makeRequest{planned: planned, start: j.Manifest.Start, begun: a.begun, ttl: seconds(j.Manifest.TTL), recorder: jobRecorder{f, a}}
	if o.spec, err = f.jobSpec(j, o.planned); err != nil {
		return o, err
	}
	if o.spec.Volumes, err = f.volumesOf(ctx, j.Manifest, j.Principal); err != nil {
		return o, err
	}
	o.spec.PublicKey, err = f.loginKey(j.ID)
	return o, err
}

// planned returns the job's own VM as it is, or as it is to be.
func (f *Fleet) planned(j job.Job) vm.VM {
	if j.VM != nil {
		return *j.VM
	}
	return vm.VM{Name: cmp.Or(j.Manifest.VMName, vm.DefaultName(j.ID)), Job: j.ID, Owner: f.o.Owner, Source: vm.Cold, Made: madeAs(j.Manifest, j.Principal, j.CreatedAt)}
}

// jobSpec returns the spec of the job's own VM, without its key.
func (f *Fleet) jobSpec(j job.Job, v vm.VM) (job.VMSpec, error) {
	spec, err := job.SpecOf(j.Manifest)
	spec.Node, spec.Name, spec.Job, spec.Owner = v.Node, v.Name, v.Job, v.Owner
	switch {
	case f.o.Lease == 0:
	case j.Manifest.Lifecycle == vm.Ephemeral:
		spec.Lease = seconds(j.Manifest.Timeout+j.Manifest.KeepFor) + f.o.Lease
	case j.Manifest.TTL > 0 && j.Manifest.AtEnd != vm.EndSuspend:
		spec.Lease = seconds(j.Manifest.TTL) + f.o.Lease
	}
	return spec, err
}

// freeName refuses a second VM of the same name; id is the ID of the VM that is to have it. The
// host refuses it too, but not while the first VM is still being created.
func (f *Fleet) freeName(ctx context.Context, name, id, owner string) error {
	if name == "" {
		return nil
	}
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	for _, v := range vms {
		if v.Job != id && strings.EqualFold(v.Name, name) {
			if v.Principal != owner {
				return job.NameTaken(name)
			}
			problem, remedy := fmt.Sprintf("VM already exists: %q is VM %d", v.Name, v.ID), "choose another name, or run in it with manifest.vm"
			switch {
			case v.Unwanted:
				problem, remedy = fmt.Sprintf("VM already exists: %q is being destroyed", v.Name), "try again when it is gone, or choose another name"
			case v.ID == 0:
				problem = fmt.Sprintf("VM already exists: %q is being made", v.Name)
			case v.Own == nil:
				problem += ", made by job " + v.Job
			}
			return &job.FieldError{Field: "manifest.vmName", Problem: problem, Remedy: remedy}
		}
	}
	return nil
}

// hideOthersName removes what the host's error says about another owner's VM of the same name.
func (f *Fleet) hideOthersName(ctx context.Context, owner, name string, err error) error {
	if p, ok := job.PrincipalFrom(ctx); !job.IsClass(err, job.HostExists) || owner == "" || ok && p.Admin() {
		return err
	}
	f.o.Log.InfoContext(ctx, "the name of a VM is taken", "vm", name, "err", err)
	return job.NameTaken(name)
}

// jobRecorder records in a job's row what happens to its VM while it is made.
type jobRecorder struct {
	f *Fleet
	*acquisition
}

// Change implements recorder. A job whose VM has a node is provisioning.
func (b jobRecorder) Change(ctx context.Context, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	j, err := b.f.updateJob(ctx, b.job.ID, func(j *job.Job) ([]job.Event, error) {
		v := vm.VM{}
		if j.VM != nil {
			v = *j.VM
		}
		before := v.State
		events, err := change(&v)
		if err != nil {
			return nil, err
		}
		if v.State == vm.Created && before != vm.Created { // a job that has ended meanwhile does not want it
			v.Unwanted = j.Outcome != nil && j.Manifest.Lifecycle != vm.Ephemeral
		}
		j.VM = &v
		return append(j.Reach(job.Provisioning), events...), nil
	})
	if err != nil {
		return vm.VM{}, err
	}
	b.job = j
	return *j.VM, nil
}

// Wait shows what the job waits for.
func (b jobRecorder) Wait(ctx context.Context, full *job.NoRoomError) error {
	before := b.waits
	if b.waits = ""; full != nil {
		b.waits = full.Waiting()
	}
	if b.waits == "" || b.waits == before {
		return nil
	}
	_, err := b.f.updateJob(ctx, b.job.ID, func(j *job.Job) ([]job.Event, error) {
		j.Progress = b.waits
		if before != "" {
			return nil, nil
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: b.waits}}, nil
	})
	return err
}

// Told returns the job's events.
func (b jobRecorder) Told(ctx context.Context) ([]job.Event, error) {
	return b.f.o.Jobs.Events(ctx, b.job.ID, 0)
}
