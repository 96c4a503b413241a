package telemetry

import (
	"cmp"
	"context"
	"net/netip"

	"linus/internal/job"
	"linus/internal/vm"
)

// Provider writes an audit log of the changes made through another Provider.
// Every method is written out, including those that change nothing: so a new
// method of the port does not compile until it is decided whether it is
// recorded.
type Provider struct {
	to    job.Provider
	audit *Audit
}

var _ job.Provider = (*Provider)(nil)

// Provider wraps p in a layer that records every change.
func (a *Audit) Provider(p job.Provider) *Provider { return &Provider{to: p, audit: a} }

// Create creates a VM.
func (p *Provider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	var v vm.VM
	r := recordOf(ActionCreate, vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner})
	r.Detail = cmp.Or(spec.Template, spec.OS)
	err := p.audit.Do(ctx, r, func(r *Record) (err error) {
		v, err = p.to.Create(ctx, spec, func(told job.Progress) {
			r.VMID = cmp.Or(told.VMID, r.VMID)
			progress(told)
		})
		r.VMID, r.Node = cmp.Or(v.ID, r.VMID), v.Node
		return err
	})
	return v, err
}

// Destroy destroys a VM.
func (p *Provider) Destroy(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionDestroy, v), func(*Record) error { return p.to.Destroy(ctx, v) })
}

// ForgetVM gives up a VM that is left alone.
func (p *Provider) ForgetVM(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionForget, v), func(*Record) error { return p.to.ForgetVM(ctx, v) })
}

// StartVM starts a VM.
func (p *Provider) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	var now vm.VM
	err := p.audit.Do(ctx, recordOf(ActionStart, v), func(*Record) (err error) {
		now, err = p.to.StartVM(ctx, v, progress)
		return err
	})
	return now, err
}

// StopVM shuts a VM down.
func (p *Provider) StopVM(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionStop, v), func(*Record) error { return p.to.StopVM(ctx, v) })
}

// SuspendVM writes a VM's memory to disk and turns it off.
func (p *Provider) SuspendVM(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionSuspend, v), func(*Record) error { return p.to.SuspendVM(ctx, v) })
}

// ResumeVM continues a suspended VM.
func (p *Provider) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	var now vm.VM
	err := p.audit.Do(ctx, recordOf(ActionResume, v), func(*Record) (err error) {
		now, err = p.to.ResumeVM(ctx, v, progress)
		return err
	})
	return now, err
}

// SnapshotVM takes a snapshot of a VM's disk, perhaps with its memory.
func (p *Provider) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	r := recordOf(ActionSnapshot, v)
	r.Detail = name
	if memory {
		r.Detail += " with memory"
	}
	return p.audit.Do(ctx, r, func(*Record) error { return p.to.SnapshotVM(ctx, v, name, memory) })
}

// RevertVM reverts a VM to a snapshot.
func (p *Provider) RevertVM(ctx context.Context, v vm.VM, name string, progress func(job.Progress)) (vm.VM, error) {
	var now vm.VM
	r := recordOf(ActionRevert, v)
	r.Detail = name
	err := p.audit.Do(ctx, r, func(*Record) (err error) {
		now, err = p.to.RevertVM(ctx, v, name, progress)
		return err
	})
	return now, err
}

// Check changes nothing.
func (p *Provider) Check(ctx context.Context) (job.HostReport, error) { return p.to.Check(ctx) }

// List changes nothing.
func (p *Provider) List(ctx context.Context) ([]vm.VM, error) { return p.to.List(ctx) }

// Status changes nothing.
func (p *Provider) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	return p.to.Status(ctx, v)
}

// Look changes nothing.
func (p *Provider) Look(ctx context.Context, v vm.VM) (job.Seen, error) { return p.to.Look(ctx, v) }

// NetworkRules changes nothing.
func (p *Provider) NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (job.NetworkRules, []string, error) {
	return p.to.NetworkRules(ctx, v, to)
}

// Plan changes nothing.
func (p *Provider) Plan(ctx context.Context, spec job.VMSpec) ([]string, error) {
	return p.to.Plan(ctx, spec)
}

// Room renews leases of VMs of ours, which changes none of them.
func (p *Provider) Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error) {
	return p.to.Room(ctx, origins, vms)
}

// Nodes changes nothing.
func (p *Provider) Nodes(ctx context.Context) (job.Inventory, error) { return p.to.Nodes(ctx) }

// CallbackHost changes nothing.
func (p *Provider) CallbackHost(ctx context.Context) (string, error) { return p.to.CallbackHost(ctx) }

func recordOf(action string, v vm.VM) Record {
	return Record{
		Action: action, Job: v.Job, VMID: v.ID, VMName: v.Name, Node: v.Node,
		Proof: &Proof{Name: v.Name, Job: v.Job, Owner: v.Owner},
	}
}
