package telemetry

import (
	"cmp"
	"context"

	"linus/internal/executor"
	"linus/internal/job"
)

// Provider writes an audit log of what another is told to change.
type Provider struct {
	executor.Provider // what changes nothing passes
	audit             *Audit
}

// Provider makes a layer around p whose every change is on record.
func (a *Audit) Provider(p executor.Provider) *Provider { return &Provider{Provider: p, audit: a} }

// Create makes a VM.
func (p *Provider) Create(ctx context.Context, spec executor.VMSpec, progress func(executor.Progress)) (job.VM, error) {
	var vm job.VM
	r := recordOf(ActionCreate, job.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner})
	r.Detail = cmp.Or(spec.Template, spec.OS)
	err := p.audit.Do(ctx, r, func(r *Record) (err error) {
		vm, err = p.Provider.Create(ctx, spec, func(told executor.Progress) {
			r.VMID = cmp.Or(told.VMID, r.VMID)
			progress(told)
		})
		r.VMID, r.Node = cmp.Or(vm.ID, r.VMID), vm.Node
		return err
	})
	return vm, err
}

// Destroy removes a VM.
func (p *Provider) Destroy(ctx context.Context, vm job.VM) error {
	return p.audit.Do(ctx, recordOf(ActionDestroy, vm), func(*Record) error { return p.Provider.Destroy(ctx, vm) })
}

// ForgetVM lets go of a VM that is left alone.
func (p *Provider) ForgetVM(ctx context.Context, vm job.VM) error {
	return p.audit.Do(ctx, recordOf(ActionForget, vm), func(*Record) error { return p.Provider.ForgetVM(ctx, vm) })
}

// StartVM starts a VM.
func (p *Provider) StartVM(ctx context.Context, vm job.VM, progress func(executor.Progress)) (job.VM, error) {
	var now job.VM
	err := p.audit.Do(ctx, recordOf(ActionStart, vm), func(*Record) (err error) {
		now, err = p.Provider.StartVM(ctx, vm, progress)
		return err
	})
	return now, err
}

// StopVM shuts a VM down.
func (p *Provider) StopVM(ctx context.Context, vm job.VM) error {
	return p.audit.Do(ctx, recordOf(ActionStop, vm), func(*Record) error { return p.Provider.StopVM(ctx, vm) })
}

// SnapshotVM keeps a VM's disk.
func (p *Provider) SnapshotVM(ctx context.Context, vm job.VM, name string) error {
	r := recordOf(ActionSnapshot, vm)
	r.Detail = name
	return p.audit.Do(ctx, r, func(*Record) error { return p.Provider.SnapshotVM(ctx, vm, name) })
}

// RevertVM brings a VM's disk back.
func (p *Provider) RevertVM(ctx context.Context, vm job.VM, name string, progress func(executor.Progress)) (job.VM, error) {
	var now job.VM
	r := recordOf(ActionRevert, vm)
	r.Detail = name
	err := p.audit.Do(ctx, r, func(*Record) (err error) {
		now, err = p.Provider.RevertVM(ctx, vm, name, progress)
		return err
	})
	return now, err
}

func recordOf(action string, vm job.VM) Record {
	return Record{
		Action: action, Job: vm.Job, VMID: vm.ID, VMName: vm.Name, Node: vm.Node,
		Proof: &Proof{Name: vm.Name, Job: vm.Job, Owner: vm.Owner},
	}
}
