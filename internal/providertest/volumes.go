package providertest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// fakeVolume is a volume with the VMs that have it.
type fakeVolume struct {
	vm.Volume
	has     map[string]vm.VolumeUse // by the ID in the VM's marker
	mounted map[string]bool         // likewise; until the VM is off
}

// Volumes returns the existing volumes, each with the VMs that have it.
func (f *Fake) Volumes() []vm.Volume {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []vm.Volume
	for _, id := range slices.Sorted(maps.Keys(f.volumes)) {
		v := f.volumes[id].Volume
		v.Uses = nil
		for _, marker := range slices.Sorted(maps.Keys(f.volumes[id].has)) {
			v.Uses = append(v.Uses, f.volumes[id].has[marker])
		}
		list = append(list, v)
	}
	return list
}

// LoseVolumes removes the volumes, as by hand on the host.
func (f *Fake) LoseVolumes() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.volumes)
}

// MoveVolumes migrates the volumes' holders to a node, as by hand.
func (f *Fake) MoveVolumes(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.volumes {
		v.Node = node
	}
}

// CreateVolume creates a volume.
func (f *Fake) CreateVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := asked(ctx, "create volume "+v.Name, &f.behaviour.Volumes); err != nil {
		return v, err
	}
	v.VMID, v.Shared = f.nextID, v.Storage == "shared"
	if v.Node == "" {
		v.Node = "pve"
	}
	f.nextID++
	f.volumes[v.ID] = &fakeVolume{Volume: v, has: map[string]vm.VolumeUse{}, mounted: map[string]bool{}}
	return v, nil
}

// RemoveVolume removes a volume that no VM has.
func (f *Fake) RemoveVolume(ctx context.Context, v vm.Volume) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	op := "remove volume " + v.Name
	if err := asked(ctx, op, &f.behaviour.Volumes); err != nil {
		return err
	}
	if there := f.volumes[v.ID]; there != nil && len(there.has) > 0 {
		return fault(op, job.HostLeftAlone, "the volume is attached", "take it off")
	}
	delete(f.volumes, v.ID)
	return nil
}

// ListVolumes returns the volumes' holders.
func (f *Fake) ListVolumes(context.Context) ([]vm.VM, error) {
	var holders []vm.VM
	for _, v := range f.Volumes() {
		holders = append(holders, v.Holder())
	}
	return holders, nil
}

// AttachVolume gives a VM a volume.
func (f *Fake) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	op := fmt.Sprintf("attach volume %s to VM %d", v.Name, to.ID)
	if err := asked(ctx, op, &f.behaviour.Volumes); err != nil {
		return err
	}
	there, in := f.volumes[v.ID], f.vms[to.ID]
	switch {
	case there == nil:
		return fault(op, job.HostVM, "it has lost its disk", "")
	case in == nil || !in.is(to):
		return fault(op, job.HostVM, fmt.Sprintf("VM %d is not proven ours", to.ID), "")
	}
	for marker, other := range there.has {
		if marker != to.Job && !(other.ReadOnly && use.ReadOnly) {
			return fault(op, job.HostVM, "another VM has it", "take it off")
		}
	}
	there.has[to.Job] = use
	there.mounted[to.Job] = true
	return nil
}

// Mounted reports whether the VM with this ID in its marker has the volume mounted.
func (f *Fake) Mounted(volume, in string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.volumes[volume] != nil && f.volumes[volume].mounted[in]
}

// unmount does what the end of a VM's boot does. The caller holds f.mu.
func (f *Fake) unmount(marker string) {
	for _, v := range f.volumes {
		delete(v.mounted, marker)
	}
}

// DetachVolume removes a volume from a VM.
func (f *Fake) DetachVolume(ctx context.Context, v vm.Volume, from vm.VM) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := asked(ctx, fmt.Sprintf("take volume %s off VM %d", v.Name, from.ID), &f.behaviour.Volumes); err != nil {
		return err
	}
	if there := f.volumes[v.ID]; there != nil {
		delete(there.has, from.Job)
		delete(there.mounted, from.Job)
	}
	return nil
}
