package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// VolumeStore stores volumes, keyed by the ID in their holder's marker.
type VolumeStore interface {
	// Volumes returns every volume, by name.
	Volumes(ctx context.Context) ([]vm.Volume, error)
	// InsertVolume adds a volume and reports whether its name was free. The transaction counts what
	// its principal has, and fails with a *job.FieldError if that would exceed the limits.
	InsertVolume(ctx context.Context, v vm.Volume, within job.Limits) (added bool, err error)
	// UpdateVolume changes a volume in a transaction; job.ErrNotFound. An error from change is
	// returned unwrapped, and nothing is written.
	UpdateVolume(ctx context.Context, id string, change func(*vm.Volume) error) (vm.Volume, error)
	// DeleteVolume removes a volume's row.
	DeleteVolume(ctx context.Context, id string) error
}

// Volumes returns the volumes that the caller may see, by name. Admins also see volumes that are on
// the host but unknown here.
func (f *Fleet) Volumes(ctx context.Context) ([]job.VolumeInfo, error) {
	rows, err := f.o.Store.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	hurried, end := job.Hurried(ctx)
	defer end()
	holders, hostErr := f.o.Provider.ListVolumes(hurried)
	if hostErr != nil {
		f.o.Log.Warn("list volumes on the host failed", "err", hostErr)
		text := "the host could not be asked: " + hostErr.Error()
		listener(ctx)(job.Progress{Text: text, Warning: text})
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

// Volume returns a volume by name or UUID. For admins, that includes volumes unknown here.
func (f *Fleet) Volume(ctx context.Context, ref string) (job.VolumeInfo, error) {
	v, err := f.findVolume(ctx, "volume", ref, func(principal string) bool { return job.Visible(ctx, principal) })
	if err == nil {
		info := job.VolumeOf(v)
		if v.State == vm.VolumeCreated { // asks for its holder alone, which is not proven a VM where it exists
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

// findVolume returns the row of a visible volume, with only its live uses.
func (f *Fleet) findVolume(ctx context.Context, field, ref string, visible func(principal string) bool) (vm.Volume, error) {
	rows, err := f.o.Store.Volumes(ctx)
	if err != nil {
		return vm.Volume{}, err
	}
	at := slices.IndexFunc(rows, func(v vm.Volume) bool { return v.ID == ref && visible(v.Principal) })
	if at < 0 { // a name never hides another volume's ID
		at = slices.IndexFunc(rows, func(v vm.Volume) bool { return v.Name == ref && visible(v.Principal) })
	}
	if at < 0 {
		return vm.Volume{}, noVolume(field, ref)
	}
	return f.live(ctx, rows[at])
}

// followed updates a volume's node to its holder's: somebody may have migrated it.
func (f *Fleet) followed(ctx context.Context, v vm.Volume, holders []vm.VM) (vm.Volume, error) {
	at := slices.IndexFunc(holders, func(h vm.VM) bool { return h.Job == v.ID })
	if at < 0 || v.State != vm.VolumeCreated || holders[at].Node == v.Node {
		return v, nil
	}
	f.o.Log.Info("volume is on another node now", "volume", v.Name, "node", holders[at].Node)
	return f.o.Store.UpdateVolume(ctx, v.ID, func(v *vm.Volume) error { v.Node = holders[at].Node; return nil })
}

// CreateVolume creates a volume. Its row exists before the volume can.
func (f *Fleet) CreateVolume(ctx context.Context, spec job.VolumeSpec) (job.VolumeInfo, error) {
	gib, err := spec.Check()
	if err == nil && f.o.AllowStorage != nil {
		p, _ := job.PrincipalFrom(ctx)
		err = f.o.AllowStorage(job.ClientFrom(ctx), p, spec.Storage)
	}
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
	release, err := f.volumes.Take(ctx) // an intended volume that is found while nobody holds this was left by a killed engine
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
				Field: "volume", Problem: fmt.Sprintf("%q is orphaned: node %s has it, held by VM %d, but this engine has no record of it", orphan.Name, orphan.Node, orphan.VMID),
				Remedy: fmt.Sprintf("if it belongs to no other engine: qm set %[1]d --protection 0 && qm destroy %[1]d, on that node", orphan.VMID), Fault: job.FaultState,
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

// dropVolume removes a volume from the host, and then its row. If the host leaves the volume alone
// because a VM has it, it returns to the created state: it must not disappear when that VM does.
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

// tendVolumes removes what a killed engine left of volumes that it was making or removing, and
// follows volumes that somebody has moved.
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
