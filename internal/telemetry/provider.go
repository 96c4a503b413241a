package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"linus/internal/job"
	"linus/internal/vm"
)

// Provider writes an audit log of the changes made through another Provider. A new method of the
// port does not compile until it is decided whether it is recorded.
type Provider struct {
	unchanging
	to    job.Provider
	audit *Audit
}

// unchanging are the port's methods that are passed on unrecorded: they change no VM and no template.
type unchanging interface {
	Check(ctx context.Context) (job.HostReport, error)
	List(ctx context.Context) ([]vm.VM, error)
	Status(ctx context.Context, v vm.VM) (vm.Status, error)
	Look(ctx context.Context, v vm.VM) (job.Seen, error)
	NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (job.NetworkRules, []string, error)
	Snapshots(ctx context.Context, v vm.VM) ([]job.Snapshot, error)
	ListVolumes(ctx context.Context) ([]vm.VM, error)
	Templates(ctx context.Context) ([]vm.VM, error)
	Plan(ctx context.Context, spec job.VMSpec) ([]string, error)
	Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error) // renews leases of our own VMs
	Nodes(ctx context.Context) (job.Inventory, error)
	CallbackHost(ctx context.Context) (string, error)
}

var _ job.Provider = (*Provider)(nil)

// Provider wraps p in a layer that records every change.
func (a *Audit) Provider(p job.Provider) *Provider { return &Provider{unchanging: p, to: p, audit: a} }

// Create creates a VM.
func (p *Provider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	r := recordOf(ActionCreate, vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner})
	r.Detail = cmp.Or(spec.Template, spec.OS)
	if spec.Fork.VM != 0 {
		r.Detail = fmt.Sprintf("copy of VM %d", spec.Fork.VM)
	}
	return Change(ctx, p.audit, r, func(r *Record) (vm.VM, error) {
		v, err := p.to.Create(ctx, spec, func(told job.Progress) {
			r.VMID = cmp.Or(told.VMID, r.VMID)
			progress(told)
		})
		r.VMID, r.Node = cmp.Or(v.ID, r.VMID), v.Node
		return v, err
	})
}

// Destroy destroys a VM.
func (p *Provider) Destroy(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionDestroy, v), func(*Record) error { return p.to.Destroy(ctx, v) })
}

// ForgetVM gives up a VM that was left alone.
func (p *Provider) ForgetVM(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionForget, v), func(*Record) error { return p.to.ForgetVM(ctx, v) })
}

// SetNetwork changes where a VM's packets may go.
func (p *Provider) SetNetwork(ctx context.Context, v vm.VM, n vm.Network) error {
	r := recordOf(ActionNetwork, v)
	r.Detail = string(n.Mode())
	return p.audit.Do(ctx, r, func(*Record) error { return p.to.SetNetwork(ctx, v, n) })
}

// StartVM starts a VM.
func (p *Provider) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return Change(ctx, p.audit, recordOf(ActionStart, v), func(*Record) (vm.VM, error) { return p.to.StartVM(ctx, v, progress) })
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
	return Change(ctx, p.audit, recordOf(ActionResume, v), func(*Record) (vm.VM, error) { return p.to.ResumeVM(ctx, v, progress) })
}

// SaveCheckpoint makes a checkpoint of a VM.
func (p *Provider) SaveCheckpoint(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.Checkpoint, error) {
	return Change(ctx, p.audit, recordOf(ActionCheckpoint, v), func(*Record) (vm.Checkpoint, error) { return p.to.SaveCheckpoint(ctx, v, progress) })
}

// SaveVM makes a template of a VM.
func (p *Provider) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (job.SavedTemplate, error) {
	r := recordOf(ActionSave, v)
	r.Detail = spec.Name
	if spec.InPlace {
		r.Detail += " in place"
	}
	return Change(ctx, p.audit, r, func(*Record) (job.SavedTemplate, error) { return p.to.SaveVM(ctx, v, spec, progress) })
}

// ForkVM prepares a VM for copying.
func (p *Provider) ForkVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (job.ForkPoint, error) {
	return Change(ctx, p.audit, recordOf(ActionFork, v), func(*Record) (job.ForkPoint, error) { return p.to.ForkVM(ctx, v, progress) })
}

// EndFork removes what ForkVM left behind.
func (p *Provider) EndFork(ctx context.Context, v vm.VM) error {
	return p.audit.Do(ctx, recordOf(ActionEndFork, v), func(*Record) error { return p.to.EndFork(ctx, v) })
}

// SnapshotVM takes a snapshot of a VM's disk, optionally with its memory.
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
	r := recordOf(ActionRevert, v)
	r.Detail = name
	return Change(ctx, p.audit, r, func(*Record) (vm.VM, error) { return p.to.RevertVM(ctx, v, name, progress) })
}

// DeleteSnapshot removes a snapshot of a VM.
func (p *Provider) DeleteSnapshot(ctx context.Context, v vm.VM, name string) error {
	r := recordOf(ActionDeleteSnapshot, v)
	r.Detail = name
	return p.audit.Do(ctx, r, func(*Record) error { return p.to.DeleteSnapshot(ctx, v, name) })
}

// CreateVolume creates a volume.
func (p *Provider) CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	return Change(ctx, p.audit, volumeRecord(ActionCreateVolume, v, v.Holder()), func(r *Record) (vm.Volume, error) {
		made, err := p.to.CreateVolume(ctx, v)
		r.VMID, r.Node = made.VMID, made.Node
		return made, err
	})
}

// RemoveVolume removes a volume.
func (p *Provider) RemoveVolume(ctx context.Context, v vm.Volume) error {
	return p.audit.Do(ctx, volumeRecord(ActionRemoveVolume, v, v.Holder()), func(*Record) error { return p.to.RemoveVolume(ctx, v) })
}

// AttachVolume attaches a volume to a VM.
func (p *Provider) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	return p.audit.Do(ctx, volumeRecord(ActionAttachVolume, v, to), func(*Record) error { return p.to.AttachVolume(ctx, v, to, use) })
}

// DetachVolume detaches a volume from a VM.
func (p *Provider) DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error {
	return p.audit.Do(ctx, volumeRecord(ActionDetachVolume, v, from), func(*Record) error { return p.to.DetachVolume(ctx, v, from) })
}

func volumeRecord(action string, v vm.Volume, of vm.VM) Record {
	r := recordOf(action, of)
	r.Detail = v.Name
	return r
}

func recordOf(action string, v vm.VM) Record {
	return Record{
		Action: action, Job: v.Job, VMID: v.ID, VMName: v.Name, Node: v.Node,
		Proof: &Proof{Name: v.Name, Job: v.Job, Owner: v.Owner},
	}
}
