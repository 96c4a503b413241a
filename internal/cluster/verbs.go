package cluster

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// mostMoves bounds how often one call follows a VM to another node.
const mostMoves = 3

// on has work done on the node that a VM is on, and returns the VM with that node. It begins on the
// node that the VM was last known on. A VM that has moved is found by its ID, which is unique in
// the cluster, and proven by its marker there. Work that returns *job.MovedError has done nothing
// to the VM.
func (p *Provider) on(ctx context.Context, v vm.VM, work func(ctx context.Context, n Node, v vm.VM) error) (vm.VM, error) {
	for moves := 0; ; moves++ {
		n, err := p.node(ctx, v.Node)
		if err == nil {
			err = p.whileOnline(ctx, v.Node, func(ctx context.Context) error { return work(ctx, n, v) })
		}
		next := ""
		var moved *job.MovedError
		switch {
		case errors.As(err, &moved):
			next = moved.Node
		case job.IsClass(err, job.HostOffline) && v.ID != 0:
			next = p.known().Locate(v.ID) // the node went down, and the HA manager may have moved the VM
		}
		if next == "" || next == v.Node || moves == mostMoves {
			return v, err
		}
		p.o.Log.InfoContext(ctx, "VM is on a different node than before", "vm_id", v.ID, "job_id", v.Job, "node", next, "before", v.Node)
		v.Node = next
	}
}

// Create creates a VM on the node in its spec. It is patient with entries that do not answer, as it
// is with the node.
func (p *Provider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	p.awaitReport(ctx)
	n, err := p.node(ctx, spec.Node)
	if err != nil {
		return vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner, Node: spec.Node}, job.Uncreated(err)
	}
	var v vm.VM
	err = p.whileOnline(ctx, spec.Node, func(ctx context.Context) (err error) {
		v, err = n.Create(ctx, spec, progress)
		return err
	})
	v.Node = cmp.Or(v.Node, spec.Node)
	return v, err
}

// whileOnline has work done on a node; work is patient with a node that does not answer. If the
// cluster sees the node go down meanwhile, work is abandoned and the error is of class HostOffline:
// what it began there may or may not continue, and is settled when the node is back.
func (p *Provider) whileOnline(ctx context.Context, node string, work func(context.Context) error) error {
	working, end := context.WithCancelCause(ctx)
	watched := make(chan error, 1)
	go func() {
		err := p.awaitDown(working, node)
		if err != nil {
			end(job.ErrDetach)
		}
		watched <- err
	}()
	err := work(working)
	end(nil)
	if down := <-watched; down != nil && err != nil {
		return down
	}
	return err
}

// awaitDown returns an error of class HostOffline when the cluster sees the node down, or nil when
// ctx ends.
func (p *Provider) awaitDown(ctx context.Context, node string) error {
	for sleep.For(ctx, p.watchEvery) == nil {
		if _, err := p.node(ctx, node); job.IsClass(err, job.HostOffline) {
			return err
		}
	}
	return nil
}

// Plan returns what Create would do on the node in its spec or, without one, on a node that can
// take the VM.
func (p *Provider) Plan(ctx context.Context, spec job.VMSpec) ([]string, error) {
	if spec.Node == "" {
		at, err := p.Place(ctx, job.Placement{Spec: spec})
		if err != nil {
			return nil, err
		}
		spec.Node = at.Node
	}
	n, err := p.node(ctx, spec.Node)
	if err != nil {
		return nil, err
	}
	return n.Plan(ctx, spec)
}

// Destroy destroys a VM on the node it is on. An unfinished create is stopped on the node where it
// began.
func (p *Provider) Destroy(ctx context.Context, v vm.VM) error {
	now, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.Destroy(ctx, v) })
	if err == nil && v.ID != 0 {
		p.gone(v.ID)
	}
	if err != nil || now.Node == v.Node {
		return err
	}
	// The first node may still have a lease for the VM, which would otherwise end by itself.
	if n, err := p.node(ctx, v.Node); err == nil {
		if err := n.Destroy(ctx, v); err != nil {
			p.o.Log.WarnContext(ctx, "lease of a destroyed VM stays on the node it was created on", "vm_id", v.ID, "node", v.Node, "err", err)
		}
	}
	return nil
}

// gone removes a destroyed VM from the known state of the cluster: its memory is free.
func (p *Provider) gone(id int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv.Nodes = slices.Clone(p.inv.Nodes) // callers have the old one
	for i, n := range p.inv.Nodes {
		p.inv.Nodes[i].VMs = slices.DeleteFunc(slices.Clone(n.VMs), func(vm job.NodeVM) bool { return vm.ID == id })
	}
}

// ForgetVM gives up what the VM's node stores about the VM.
func (p *Provider) ForgetVM(ctx context.Context, v vm.VM) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.ForgetVM(ctx, v) })
	return err
}

// Status returns the VM's status on the node it is on.
func (p *Provider) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	seen, err := p.see(ctx, v, func(ctx context.Context, n Node, v vm.VM) (job.Seen, error) {
		status, err := n.Status(ctx, v)
		return job.Seen{Status: status}, err
	})
	return seen.Status, err
}

// Look is Status, and also asks the guest of a running VM.
func (p *Provider) Look(ctx context.Context, v vm.VM) (job.Seen, error) {
	return p.see(ctx, v, func(ctx context.Context, n Node, v vm.VM) (job.Seen, error) { return n.Look(ctx, v) })
}

// NetworkRules returns what the VM's node does with its packets.
func (p *Provider) NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (rules job.NetworkRules, decided []string, err error) {
	_, err = p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) (err error) {
		rules, decided, err = n.NetworkRules(ctx, v, to)
		return err
	})
	return rules, decided, err
}

// ask is on for work that returns a value.
func ask[T any](ctx context.Context, p *Provider, v vm.VM, work func(ctx context.Context, n Node, v vm.VM) (T, error)) (out T, err error) {
	_, err = p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) (err error) {
		out, err = work(ctx, n, v)
		return err
	})
	return out, err
}

// see returns what is seen of a VM, and its node.
func (p *Provider) see(ctx context.Context, v vm.VM, look func(ctx context.Context, n Node, v vm.VM) (job.Seen, error)) (job.Seen, error) {
	seen := job.Seen{Status: vm.Unknown}
	now, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) (err error) {
		seen, err = look(ctx, n, v)
		return err
	})
	var moved *job.MovedError
	switch {
	case errors.As(err, &moved): // the VM moves as fast as it is followed
		return job.Seen{Status: vm.Unproven, Node: moved.Node}, nil
	case err != nil:
		return job.Seen{Status: vm.Unknown}, err
	}
	seen.Node = now.Node
	return seen, nil
}

// boot does work after which a VM runs.
func (p *Provider) boot(ctx context.Context, v vm.VM, work func(ctx context.Context, n Node, v vm.VM) (vm.VM, error)) (vm.VM, error) {
	now, err := p.on(ctx, v, func(ctx context.Context, n Node, at vm.VM) (err error) {
		v, err = work(ctx, n, at)
		return err
	})
	v.Node = cmp.Or(v.Node, now.Node)
	return v, err
}

// SetNetwork changes where a VM's packets may go.
func (p *Provider) SetNetwork(ctx context.Context, v vm.VM, to vm.Network) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.SetNetwork(ctx, v, to) })
	return err
}

// StartVM starts a VM on the node it is on.
func (p *Provider) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, v, func(ctx context.Context, n Node, v vm.VM) (vm.VM, error) { return n.StartVM(ctx, v, progress) })
}

// StopVM stops a VM.
func (p *Provider) StopVM(ctx context.Context, v vm.VM) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.StopVM(ctx, v) })
	return err
}

// SuspendVM writes a VM's memory to its storage and turns it off.
func (p *Provider) SuspendVM(ctx context.Context, v vm.VM) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.SuspendVM(ctx, v) })
	return err
}

// ResumeVM continues a suspended VM.
func (p *Provider) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, v, func(ctx context.Context, n Node, v vm.VM) (vm.VM, error) { return n.ResumeVM(ctx, v, progress) })
}

// SaveCheckpoint makes a checkpoint of a VM on the node it is on.
func (p *Provider) SaveCheckpoint(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.Checkpoint, error) {
	return ask(ctx, p, v, func(ctx context.Context, n Node, v vm.VM) (vm.Checkpoint, error) {
		return n.SaveCheckpoint(ctx, v, progress)
	})
}

// SaveVM makes a template of a VM on the node it is on.
func (p *Provider) SaveVM(ctx context.Context, v vm.VM, spec job.SaveSpec, progress func(job.Progress)) (job.SavedTemplate, error) {
	return ask(ctx, p, v, func(ctx context.Context, n Node, v vm.VM) (job.SavedTemplate, error) {
		return n.SaveVM(ctx, v, spec, progress)
	})
}

// ForkVM prepares a VM to be copied on the node it is on.
func (p *Provider) ForkVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (job.ForkPoint, error) {
	return ask(ctx, p, v, func(ctx context.Context, n Node, v vm.VM) (job.ForkPoint, error) { return n.ForkVM(ctx, v, progress) })
}

// EndFork removes what ForkVM has left.
func (p *Provider) EndFork(ctx context.Context, v vm.VM) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.EndFork(ctx, v) })
	return err
}

// SnapshotVM takes a snapshot of a VM.
func (p *Provider) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.SnapshotVM(ctx, v, name, memory) })
	return err
}

// RevertVM reverts a VM to a snapshot.
func (p *Provider) RevertVM(ctx context.Context, v vm.VM, name string, progress func(job.Progress)) (vm.VM, error) {
	return p.boot(ctx, v, func(ctx context.Context, n Node, v vm.VM) (vm.VM, error) {
		return n.RevertVM(ctx, v, name, progress)
	})
}

// Snapshots returns the snapshots of a VM.
func (p *Provider) Snapshots(ctx context.Context, v vm.VM) ([]job.Snapshot, error) {
	return ask(ctx, p, v, func(ctx context.Context, n Node, v vm.VM) ([]job.Snapshot, error) { return n.Snapshots(ctx, v) })
}

// DeleteSnapshot removes a snapshot of a VM.
func (p *Provider) DeleteSnapshot(ctx context.Context, v vm.VM, name string) error {
	_, err := p.on(ctx, v, func(ctx context.Context, n Node, v vm.VM) error { return n.DeleteSnapshot(ctx, v, name) })
	return err
}

// CreateVolume creates a volume on its node.
func (p *Provider) CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	err := p.at(ctx, v.Node, func(ctx context.Context, n Node) (err error) {
		v, err = n.CreateVolume(ctx, v)
		return err
	})
	return v, err
}

// RemoveVolume removes a volume from the node that its holder is on.
func (p *Provider) RemoveVolume(ctx context.Context, v vm.Volume) error {
	_, err := p.on(ctx, v.Holder(), func(ctx context.Context, n Node, holder vm.VM) error {
		v.Node = holder.Node
		return n.RemoveVolume(ctx, v)
	})
	return err
}

// AttachVolume attaches a volume to a VM on the VM's node, which is the volume's or shares its
// storage.
func (p *Provider) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	_, err := p.on(ctx, to, func(ctx context.Context, n Node, to vm.VM) error { return n.AttachVolume(ctx, v, to, use) })
	return err
}

// DetachVolume detaches a volume from a VM on the VM's node.
func (p *Provider) DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error {
	_, err := p.on(ctx, from, func(ctx context.Context, n Node, from vm.VM) error { return n.DetachVolume(ctx, v, from) })
	return err
}

// at has work done on a node while the node is online.
func (p *Provider) at(ctx context.Context, node string, work func(ctx context.Context, n Node) error) error {
	n, err := p.node(ctx, node)
	if err != nil {
		return err
	}
	return p.whileOnline(ctx, node, func(ctx context.Context) error { return work(ctx, n) })
}

// CallbackHost returns this machine's address on the route to an entry that answers.
func (p *Provider) CallbackHost(ctx context.Context) (string, error) {
	ip, tried := firstOf(ctx, p, func(ctx context.Context, n Node) (string, error) { return n.CallbackHost(ctx) }, nil)
	return ip.value, p.noEntry(tried)
}

// Fence makes every node refuse an engine's further requests, through an entry that can.
func (p *Provider) Fence(ctx context.Context, engine string) error {
	_, tried := firstOf(ctx, p, func(ctx context.Context, n Node) (struct{}, error) { return struct{}{}, n.Fence(ctx, engine) }, nil)
	return p.noEntry(tried)
}
