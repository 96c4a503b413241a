package executor

import (
	"cmp"
	"context"
	"time"

	"linus/internal/job"
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
		book{e, r}.Tell(ctx, job.Progress{Step: "connect", Text: "connecting to the VM"})
	}
	timed, end := context.WithTimeout(ctx, warmPatience)
	defer end()
	if err := e.o.Guest.Warm(timed, j); err != nil {
		e.o.Log.Debug("the VM is not prepared in advance", "job_id", r.id, "err", err)
	}
	return nil
}

// obtain creates the job's VM, or finds the one it shares or gets from a pool.
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
	order := job.VMOrder{Planned: e.planned(j), Adopted: r.adopted, TTL: seconds(j.Manifest.TTL), Book: book{e, r}}
	if order.Spec, err = e.vmSpecOf(j, order.Planned); err != nil {
		return err
	}
	if order.Spec.PublicKey, err = e.loginKey(j); err != nil {
		return err
	}
	_, r.unmade, err = e.o.Fleet.Make(ctx, order)
	j.VM = &order.Planned
	return e.unnamed(ctx, j, err)
}

// planned returns the VM of the job's own, as it is or as it is to be.
func (e *Executor) planned(j job.Job) vm.VM {
	if j.VM != nil {
		return *j.VM
	}
	return vm.VM{Name: cmp.Or(j.Manifest.VMName, vm.DefaultName(j.ID)), Job: j.ID, Owner: e.o.Owner, Source: vm.Cold, Made: madeAs(j)}
}

// vmSpecOf returns what a VM of the job's own is made by.
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
