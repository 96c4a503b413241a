package executor

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// made is the source of new VMs.
func (e *Executor) made(ctx context.Context, r *run, j job.Job) (_ job.Job, has bool, err error) {
	if j.VM == nil {
		if err := e.freeName(ctx, j); err != nil {
			return j, false, err
		}
	}
	order := job.VMOrder{Planned: e.planned(j), Adopted: r.adopted, TTL: seconds(j.Manifest.TTL), Book: book{e, r}}
	if order.Spec, err = e.vmSpecOf(j, order.Planned); err != nil {
		return j, false, err
	}
	if order.Spec.PublicKey, err = e.LoginKey(j.ID); err != nil {
		return j, false, err
	}
	_, r.unmade, err = e.o.Fleet.Make(ctx, order)
	j.VM = &order.Planned
	return j, err == nil, e.unnamed(ctx, j, err)
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
	case j.Manifest.Lifecycle == vm.Ephemeral:
		spec.Lease = seconds(j.Manifest.Timeout) + e.o.Lease
	case j.Manifest.TTL > 0:
		spec.Lease = seconds(j.Manifest.TTL) + e.o.Lease
	}
	return spec, err
}

// madeAs returns what a job's own VM is made as.
func madeAs(j job.Job) vm.Made {
	return vm.Made{
		Lifecycle: j.Manifest.Lifecycle, Template: j.Manifest.VMTemplate, OS: j.Manifest.OS, Resources: j.Manifest.Resources,
		Network: j.Manifest.Network, Principal: j.Principal, CreatedAt: j.CreatedAt,
	}
}

// freeName refuses a second VM of the same name. The host does too, but not while the
// first is still being created.
func (e *Executor) freeName(ctx context.Context, j job.Job) error {
	if j.Manifest.VMName == "" {
		return nil
	}
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return err
	}
	for _, v := range vms {
		if v.Job != j.ID && strings.EqualFold(v.Name, j.Manifest.VMName) {
			if v.Principal != j.Principal {
				return nameTaken(j.Manifest.VMName)
			}
			return fmt.Errorf("VM already exists: %q is VM %d, made by job %s; choose another name, or run in it with manifest.vm", v.Name, v.ID, v.Job)
		}
	}
	return nil
}

// nameTaken says no more of the VM than that: it is not the caller's.
func nameTaken(name string) error {
	return &job.FieldError{Field: "manifest.vmName", Problem: fmt.Sprintf("VM already exists: the name %q is taken", name), Remedy: "choose another"}
}

// unnamed returns the host's error for a job's VM without what it says of another's VM that
// has the name.
func (e *Executor) unnamed(ctx context.Context, j job.Job, err error) error {
	if p, ok := job.PrincipalFrom(ctx); !job.IsClass(err, job.HostExists) || j.Principal == "" || ok && p.Admin() {
		return err
	}
	e.o.Log.InfoContext(ctx, "the name of a VM is taken", "job_id", j.ID, "err", err)
	return nameTaken(cmp.Or(j.Manifest.VMName, j.VM.Name))
}
