package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// A volume is used by one VM that writes, or any number that read. A use is recorded before the VM
// can have the volume, and until the VM was seen without it.

func inUse(v vm.Volume, by vm.VolumeUse) *job.FieldError {
	how, remedy := "writes to it", "end that, or detach the volume from it"
	if by.ReadOnly {
		how, remedy = "reads it", "mount it ro there as well, or detach the volume from it"
	}
	return &job.FieldError{Field: "volume", Problem: fmt.Sprintf("volume %q is in use: VM %d %s", v.Name, by.VMID, how), Remedy: remedy, Fault: job.FaultState}
}

// attach records that a VM has a volume, and gives it to the VM. An earlier attempt is continued;
// if that fails, the VM keeps what it had.
func (f *Fleet) attach(ctx context.Context, v vm.Volume, to vm.VM, m vm.Mount) (job.VolumeInfo, error) {
	use := vm.VolumeUse{VM: to.Job, VMID: to.ID, Path: m.Path, ReadOnly: m.Mode == vm.MountRO}
	if to.Node != "" && v.Node != "" && to.Node != v.Node && !v.Shared {
		return job.VolumeInfo{}, &job.FieldError{
			Field: "volume", Problem: fmt.Sprintf("volume %q is on node %s, and VM %d on node %s", v.Name, v.Node, to.ID, to.Node),
			Remedy: "use a VM of that node, or a volume on a storage that the nodes share", Fault: job.FaultState,
		}
	}
	var had *vm.VolumeUse
	v, err := f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error {
		if v.State != vm.VolumeCreated {
			return noVolume("volume", v.Name)
		}
		if other := v.Conflict(use); other != nil {
			return inUse(*v, *other)
		}
		if had = v.UsedBy(use.VM); had != nil && *had != use {
			return inUse(*v, *had)
		}
		v.Unused(use.VM)
		v.Uses = append(v.Uses, use)
		return nil
	})
	if err != nil {
		return job.VolumeInfo{}, err
	}
	err = f.o.Provider.AttachVolume(ctx, v, to, use)
	switch {
	case err == nil && !v.Formatted:
		v, err = f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error { v.Formatted = true; return nil })
	case err != nil && had == nil && ctx.Err() == nil: // else whoever continues or ends it has the row
		err = errors.Join(err, f.detach(ctx, v, to))
	}
	return job.VolumeOf(v), err
}

// detach takes a volume off a VM, and records that.
func (f *Fleet) detach(ctx context.Context, v vm.Volume, from vm.VM) error {
	if err := f.o.Provider.DetachVolume(ctx, v, from); err != nil {
		return err
	}
	_, err := f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error { v.Unused(from.Job); return nil })
	return err
}

// remount has a started VM mount the volumes that it has. Usually it already did so at boot.
func (f *Fleet) remount(ctx context.Context, v vm.VM) error {
	rows, err := f.o.Store.Volumes(ctx)
	for _, has := range rows {
		if use := has.UsedBy(v.Job); use != nil {
			if failed := f.o.Provider.AttachVolume(ctx, has, v, *use); failed != nil {
				err = errors.Join(err, fmt.Errorf("VM %d runs, and volume %s is not mounted in it: %w", v.ID, has.Name, failed))
			}
		}
	}
	return err
}

// AttachVolume mounts a volume in a persistent VM.
func (f *Fleet) AttachVolume(ctx context.Context, a job.VolumeAttach) (info job.VolumeInfo, err error) {
	if err := a.Check(); err != nil {
		return info, err
	}
	v, err := f.findVolume(ctx, "volume", a.Volume, func(principal string) bool { return job.Visible(ctx, principal) })
	if err != nil {
		return info, err
	}
	_, err = f.runExclusive(ctx, a.VM, "given a volume", false, func(ctx context.Context, to vm.VM) (err error) {
		info, err = f.attach(ctx, v, to, vm.Mount{Name: v.Name, Path: a.Path, Mode: a.Mode})
		return err
	})
	return info, err
}

// DetachVolume takes a volume off a persistent VM.
func (f *Fleet) DetachVolume(ctx context.Context, ref, of string) (info job.VolumeInfo, err error) {
	v, err := f.findVolume(ctx, "volume", ref, func(principal string) bool { return job.Visible(ctx, principal) })
	if err != nil {
		return info, err
	}
	if _, err = f.runExclusive(ctx, of, "rid of a volume", true, func(ctx context.Context, from vm.VM) error { return f.detach(ctx, v, from) }); err != nil {
		return info, err
	}
	v, err = f.findVolume(ctx, "volume", v.ID, func(string) bool { return true })
	return job.VolumeOf(v), err
}

// live removes the uses by VMs that are gone: their volumes were detached before.
func (f *Fleet) live(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	var gone []string
	for _, u := range v.Uses {
		of, err := f.o.Store.VM(ctx, u.VM)
		switch {
		case errors.Is(err, job.ErrNotFound) || err == nil && (of.State == vm.Destroyed || of.State == vm.Forgotten):
			gone = append(gone, u.VM)
		case err != nil:
			return v, err
		}
	}
	if len(gone) == 0 {
		return v, nil
	}
	return f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error {
		for _, id := range gone {
			v.Unused(id)
		}
		return nil
	})
}
