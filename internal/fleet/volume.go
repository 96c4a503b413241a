package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// VolumeStore stores volumes, each by the ID in its holder's marker.
type VolumeStore interface {
	// Volumes returns every volume, by name.
	Volumes(ctx context.Context) ([]vm.Volume, error)
	// InsertVolume adds a volume, and reports whether there was none of that name. In its
	// transaction is counted what its principal has; a *job.FieldError if it would be more than
	// the limits allow.
	InsertVolume(ctx context.Context, v vm.Volume, within job.Limits) (added bool, err error)
	// UpdateVolume changes a volume in a transaction; job.ErrNotFound. An error from change is
	// returned unwrapped, and nothing is written.
	UpdateVolume(ctx context.Context, id string, change func(*vm.Volume) error) (vm.Volume, error)
	// DeleteVolume removes a volume's row.
	DeleteVolume(ctx context.Context, id string) error
}

// putBackTime bounds how long a job's volume may take to be unmounted and taken off.
const putBackTime = 2 * time.Minute

// Volumes returns the volumes that the caller may see, by name. An admin is shown also what the
// host has and nobody knows of here.
func (f *Fleet) Volumes(ctx context.Context) ([]job.VolumeInfo, error) {
	rows, err := f.o.Store.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	holders, hostErr := f.o.Provider.ListVolumes(ctx)
	if hostErr != nil {
		f.o.Log.Warn("list volumes on the host failed", "err", hostErr)
	}
	var infos []job.VolumeInfo
	for _, v := range rows {
		if !job.Visible(ctx, v.Principal) {
			continue
		}
		if v, err = f.live(ctx, v); err == nil {
			v, err = f.followed(ctx, v, holders)
		}
		if err != nil {
			return nil, err
		}
		info := job.VolumeOf(v)
		if hostErr == nil && v.State == vm.VolumeCreated && !slices.ContainsFunc(holders, func(h vm.VM) bool { return h.Job == v.ID }) {
			info.Status = job.VolumeMissing
		}
		infos = append(infos, info)
	}
	if p, ok := job.PrincipalFrom(ctx); ok && !p.Admin() {
		return infos, nil
	}
	for _, h := range holders {
		if !slices.ContainsFunc(rows, func(v vm.Volume) bool { return v.ID == h.Job }) {
			infos = append(infos, job.VolumeInfo{ID: h.Job, Name: h.Name, Status: job.VolumeOrphaned, Node: h.Node, VMID: h.ID})
		}
	}
	return infos, nil
}

// Volume returns one, by name or UUID. To an admin it may be one that nobody knows of here.
func (f *Fleet) Volume(ctx context.Context, ref string) (job.VolumeInfo, error) {
	v, err := f.findVolume(ctx, "volume", ref, func(principal string) bool { return job.Visible(ctx, principal) })
	if err == nil {
		info := job.VolumeOf(v)
		if v.State == vm.VolumeCreated { // its holder alone is asked for: not proven a VM where it is there
			if status, unread := f.o.Provider.Status(ctx, v.Holder()); unread == nil && status == vm.Gone {
				info.Status = job.VolumeMissing
			}
		}
		return info, nil
	}
	all, listErr := f.Volumes(ctx)
	if at := slices.IndexFunc(all, func(v job.VolumeInfo) bool { return v.ID == ref || v.Name == ref }); listErr == nil && at >= 0 {
		return all[at], nil
	}
	return job.VolumeInfo{}, err
}

func noVolume(field, ref string) *job.FieldError {
	return &job.FieldError{Field: field, Problem: fmt.Sprintf("%.80q is not a volume of ours", ref), Remedy: string(job.ListVolumes) + " shows them", Fault: job.FaultUnknown}
}

// findVolume returns the row of a volume that may be seen, with those uses alone that are.
func (f *Fleet) findVolume(ctx context.Context, field, ref string, visible func(principal string) bool) (vm.Volume, error) {
	rows, err := f.o.Store.Volumes(ctx)
	if err != nil {
		return vm.Volume{}, err
	}
	at := slices.IndexFunc(rows, func(v vm.Volume) bool { return (v.ID == ref || v.Name == ref) && visible(v.Principal) })
	if at < 0 {
		return vm.Volume{}, noVolume(field, ref)
	}
	return f.live(ctx, rows[at])
}

// live removes the uses by VMs that are gone: they had the volume taken off before.
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

// followed returns a volume where the host has its holder: somebody may have migrated it.
func (f *Fleet) followed(ctx context.Context, v vm.Volume, holders []vm.VM) (vm.Volume, error) {
	at := slices.IndexFunc(holders, func(h vm.VM) bool { return h.Job == v.ID })
	if at < 0 || v.State != vm.VolumeCreated || holders[at].Node == v.Node {
		return v, nil
	}
	f.o.Log.Info("volume is on another node now", "volume", v.Name, "node", holders[at].Node)
	return f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error { v.Node = holders[at].Node; return nil })
}

// CreateVolume creates a volume. Its row is there before it can be.
func (f *Fleet) CreateVolume(ctx context.Context, spec job.VolumeSpec) (job.VolumeInfo, error) {
	gib, err := spec.Check()
	if err != nil {
		return job.VolumeInfo{}, err
	}
	id, err := newID()
	if err != nil {
		return job.VolumeInfo{}, err
	}
	v := vm.Volume{
		ID: id, Name: spec.Name, Owner: f.o.Owner, State: vm.VolumeIntended, SizeGB: gib, Node: spec.Node, Storage: spec.Storage,
		Client: job.ClientFrom(ctx), CreatedAt: now(),
	}
	if f.Spread() {
		if err := f.Choose(ctx, job.VMSpec{Volumes: []vm.Volume{v}}, spec.Node, func(at job.Placed) error { v.Node = at.Node; return nil }); err != nil {
			err = neverFits(err)
			if wrong, ok := errors.AsType[*job.FieldError](err); ok {
				wrong.Field, wrong.Remedy = "storage", "give one that the node has, or another node; linus node list shows them"
			}
			return job.VolumeInfo{}, err
		}
	}
	release, err := f.volumes.Take(ctx) // what is intended while nobody has this is left of a killed engine
	if err != nil {
		return job.VolumeInfo{}, err
	}
	defer release()
	if v, err = f.insertVolume(ctx, v); err != nil {
		return job.VolumeInfo{}, err
	}
	made, err := f.o.Provider.CreateVolume(ctx, v)
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		v, err = f.o.Store.UpdateVolume(ctx, id, func(v *vm.Volume) error {
			v.State, v.Node, v.VMID, v.Shared = vm.VolumeCreated, made.Node, made.VMID, made.Shared
			return nil
		})
	}
	if err != nil && !errors.Is(err, job.ErrDetach) { // an engine that stops leaves it to the next
		return job.VolumeInfo{}, errors.Join(err, f.dropVolume(ctx, v))
	}
	f.o.Log.Info("volume is created", "volume", v.Name, "vm_id", v.VMID, "node", v.Node)
	return job.VolumeOf(v), err
}

// insertVolume stores a volume, if its client may have it.
func (f *Fleet) insertVolume(ctx context.Context, v vm.Volume) (vm.Volume, error) {
	end, err := f.Decide(ctx)
	if err != nil {
		return v, err
	}
	defer end()
	s, err := f.admitDisk(ctx, v.SizeGB<<10)
	if err != nil {
		return v, err
	}
	v.Principal = s.Principal.Owner()
	added, err := f.o.Store.InsertVolume(ctx, v, s.Principal.Limits)
	if err == nil && !added {
		err = &job.FieldError{Field: "name", Problem: fmt.Sprintf("the name %q is taken", v.Name), Remedy: "choose another", Fault: job.FaultState}
	}
	return v, err
}

// RemoveVolume removes a volume that no VM has.
func (f *Fleet) RemoveVolume(ctx context.Context, ref string) (job.VolumeInfo, error) {
	v, err := f.findVolume(ctx, "volume", ref, func(principal string) bool { return job.Visible(ctx, principal) })
	if err != nil {
		if orphan, found := f.Volume(ctx, ref); found == nil && orphan.Status == job.VolumeOrphaned {
			err = &job.FieldError{
				Field: "volume", Problem: fmt.Sprintf("%q is orphaned: node %s has it, held by VM %d, and nothing is known of it here", orphan.Name, orphan.Node, orphan.VMID),
				Remedy: fmt.Sprintf("if it is no other engine's: qm set %[1]d --protection 0 && qm destroy %[1]d, on that node", orphan.VMID), Fault: job.FaultState,
			}
		}
		return job.VolumeInfo{}, err
	}
	release, err := f.volumes.Take(ctx)
	if err != nil {
		return job.VolumeInfo{}, err
	}
	defer release()
	v, err = f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error {
		if len(v.Uses) > 0 {
			return inUse(*v, v.Uses[0])
		}
		v.State = vm.VolumeUnwanted
		return nil
	})
	if err == nil {
		err = f.dropVolume(context.WithoutCancel(ctx), v)
	}
	return job.VolumeOf(v), err
}

// dropVolume removes a volume from the host, and then its row. One that the host leaves alone,
// as a VM has it, stays what it was: it must not go when that VM does.
func (f *Fleet) dropVolume(ctx context.Context, v vm.Volume) error {
	err := f.o.Provider.RemoveVolume(ctx, v)
	if job.IsClass(err, job.HostLeftAlone) && v.State == vm.VolumeUnwanted {
		_, backErr := f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error { v.State = vm.VolumeCreated; return nil })
		return errors.Join(err, backErr)
	} else if err != nil {
		return err
	}
	return f.o.Store.DeleteVolume(ctx, v.ID)
}

// tendVolumes removes what a killed engine has left of volumes that it was making or removing, and
// follows those that somebody has moved.
func (f *Fleet) tendVolumes(ctx context.Context) {
	release, err := f.volumes.Take(ctx)
	if err != nil {
		return
	}
	defer release()
	rows, err := f.o.Store.Volumes(ctx)
	for _, v := range rows {
		if v.State != vm.VolumeCreated {
			err = errors.Join(err, f.dropVolume(ctx, v))
		}
	}
	if len(rows) > 0 && f.Spread() {
		holders, listErr := f.o.Provider.ListVolumes(ctx)
		err = errors.Join(err, listErr)
		for _, v := range rows {
			_, followErr := f.followed(ctx, v, holders)
			err = errors.Join(err, followErr)
		}
	}
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("look after volumes failed", "err", err)
	}
}

func inUse(v vm.Volume, by vm.VolumeUse) *job.FieldError {
	how, remedy := "writes to it", "end that, or take the volume off it"
	if by.ReadOnly {
		how, remedy = "reads it", "mount it ro there, too, or take the volume off it"
	}
	return &job.FieldError{Field: "volume", Problem: fmt.Sprintf("volume %q is in use: VM %d %s", v.Name, by.VMID, how), Remedy: remedy, Fault: job.FaultState}
}

// attach records that a VM has a volume, and gives it to it. What was begun before is gone on
// with.
func (f *Fleet) attach(ctx context.Context, v vm.Volume, to vm.VM, m vm.Mount) (job.VolumeInfo, error) {
	use := vm.VolumeUse{VM: to.Job, VMID: to.ID, Path: m.Path, ReadOnly: m.Mode == vm.MountRO}
	if to.Node != "" && v.Node != "" && to.Node != v.Node && !v.Shared {
		return job.VolumeInfo{}, &job.FieldError{
			Field: "volume", Problem: fmt.Sprintf("volume %q is on node %s, and VM %d on node %s", v.Name, v.Node, to.ID, to.Node),
			Remedy: "use a VM of that node, or a volume on a storage that the nodes share", Fault: job.FaultState,
		}
	}
	v, err := f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error {
		if v.State != vm.VolumeCreated {
			return noVolume("volume", v.Name)
		}
		if other := v.Conflict(use); other != nil {
			return inUse(*v, *other)
		}
		if had := v.UsedBy(use.VM); had != nil && *had != use {
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
	case err != nil && ctx.Err() == nil: // else whoever goes on with it, or ends it, has the row
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

// remount has a VM that was started mount the volumes that it has. Mostly it has done so while it
// booted.
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

// volumesOf returns the volumes that a job asks for, in that order.
func (f *Fleet) volumesOf(ctx context.Context, m job.Manifest, principal string) ([]vm.Volume, error) {
	var all []vm.Volume
	bound := -1
	for i, mount := range m.Volumes {
		field := fmt.Sprintf("manifest.volumes[%d].name", i)
		v, err := f.findVolume(ctx, field, mount.Name, func(of string) bool { return principal == "" || of == principal })
		if err != nil {
			return nil, err
		}
		switch {
		case v.Shared:
		case bound < 0:
			bound = i
		case v.Node != all[bound].Node:
			return nil, &job.FieldError{Field: field, Problem: fmt.Sprintf("volume %q is on node %s, and %q on node %s", v.Name, v.Node, all[bound].Name, all[bound].Node), Remedy: "use volumes of one node, or on storages that the nodes share"}
		}
		all = append(all, v)
	}
	return all, nil
}

// fitsVolumes returns the volumes of a manifest; an error if its job cannot have them: there are
// no such, or a VM that stays has one.
func (f *Fleet) fitsVolumes(ctx context.Context, m job.Manifest, principal string) ([]vm.Volume, error) {
	all, err := f.volumesOf(ctx, m, principal)
	for i, v := range all {
		for _, u := range v.Uses {
			if u.ReadOnly && m.Volumes[i].Mode == vm.MountRO {
				continue
			}
			if of, err := f.o.Store.VM(ctx, u.VM); err == nil && of.Stays() {
				return nil, inUse(v, u)
			}
		}
	}
	return all, err
}

// nodesFor returns on which nodes a VM that is there already can be a job's, by its volumes.
func (f *Fleet) nodesFor(ctx context.Context, j job.Job) (func(node string) bool, error) {
	planned, err := f.pinned(ctx, j)
	if err != nil || len(j.Manifest.Volumes) == 0 || !f.Spread() {
		return func(node string) bool { return planned.Node == "" || node == planned.Node }, err
	}
	all, err := f.volumesOf(ctx, j.Manifest, j.Principal)
	if err != nil {
		return nil, err
	}
	members, err := f.o.Store.Members(ctx)
	able := map[string]bool{}
	for _, m := range members {
		if planned.Node != "" && m.Node != planned.Node {
			continue
		}
		if _, asked := able[m.Node]; !asked && (m.Member.State == vm.MemberWarm || m.Member.State == vm.MemberHibernated) {
			var none *job.NoRoomError
			able[m.Node] = !errors.As(f.o.Placer.Fits(ctx, job.VMSpec{Node: m.Node, Volumes: all}), &none)
		}
	}
	return func(node string) bool { return able[node] }, err
}

// pinned is planned, on the node that the job's volumes are on alone, if there is one.
func (f *Fleet) pinned(ctx context.Context, j job.Job) (vm.VM, error) {
	planned := f.planned(j)
	if len(j.Manifest.Volumes) == 0 || !f.Spread() || planned.Node != "" {
		return planned, nil
	}
	all, err := f.volumesOf(ctx, j.Manifest, j.Principal)
	for _, v := range all {
		if !v.Shared {
			planned.Node = v.Node
		}
	}
	return planned, err
}

// mount gives a job's VM the volumes that the job asks for, before its task starts.
func (f *Fleet) mount(ctx context.Context, a *acquisition) error {
	j := a.job
	if len(j.Manifest.Volumes) == 0 || !j.StartedAt.IsZero() {
		return nil
	}
	all, err := f.volumesOf(ctx, j.Manifest, j.Principal)
	if err != nil {
		return err
	}
	var names []string
	for i, v := range all {
		if _, err := f.attach(ctx, v, *j.VM, j.Manifest.Volumes[i]); err != nil {
			return err
		}
		names = append(names, v.Name+" at "+j.Manifest.Volumes[i].Path)
	}
	a.job, err = a.Update(ctx, func(*job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: "volumes mounted: " + strings.Join(names, ", ")}}, nil
	})
	return err
}

// PutBack unmounts the volumes of a job whose VM goes, and takes them off.
func (f *Fleet) PutBack(ctx context.Context, j job.Job) (told []job.Event) {
	if len(j.Manifest.Volumes) == 0 || j.VM == nil || j.VM.State != vm.Created || j.Manifest.Lifecycle == vm.Persistent {
		return nil
	}
	rows, err := f.o.Store.Volumes(ctx)
	for _, v := range rows {
		if v.UsedBy(j.VM.Job) == nil {
			continue
		}
		timed, end := context.WithTimeout(ctx, putBackTime)
		if failed := f.detach(timed, v, *j.VM); failed != nil {
			err = errors.Join(err, fmt.Errorf("volume %s was not unmounted: %w", v.Name, failed))
		}
		end()
	}
	if err == nil {
		return nil
	}
	f.o.Log.Warn("volumes of a job stay with its VM until that is stopped", "job_id", j.ID, "err", err)
	return []job.Event{{Kind: job.EventWarning, Text: err.Error() + "; it is taken off when the VM is stopped, and what was not written to it is lost"}}
}
