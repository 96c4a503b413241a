package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// SavedStore stores whose the templates made from VMs are, and how large. Which of them exist, only
// the host knows.
type SavedStore interface {
	SavedTemplates(ctx context.Context) ([]vm.SavedTemplate, error)
	// InsertSaved adds a template. The transaction counts what its principal has, and fails with a
	// *job.FieldError if that would exceed the limits.
	InsertSaved(ctx context.Context, t vm.SavedTemplate, within job.Limits) error
	// UpdateSaved overwrites a template's row; DeleteSaved removes it.
	UpdateSaved(ctx context.Context, t vm.SavedTemplate) error
	DeleteSaved(ctx context.Context, id string) error
}

// savingTime is how long the host may continue a save whose end this engine does not know.
const savingTime = 8 * time.Hour

// Limited reports whether clients have limits. If so, submissions are admitted one at a time.
func (f *Fleet) Limited() bool { return f.o.Admit != nil }

// Admit returns an error if one more job, VM or separate disk of this manifest would exceed the
// client's limits, given what it has and beside, which is to be stored along with it. It also fails
// if there is no space here to store a job or a VM.
func (f *Fleet) Admit(ctx context.Context, s job.Submission, m job.Manifest, beside ...job.Job) error {
	if f.o.Admit != nil {
		has, err := f.has(ctx, s.Principal.Owner(), s.Client)
		if err == nil {
			err = f.o.Admit(append(has, beside...), m)
		}
		if err != nil {
			return err
		}
	}
	if f.o.Spare != nil && m.AgentType != "" { // else it is a separate disk
		if err := f.o.Spare(); err != nil {
			return fmt.Errorf("no job is accepted: %w", err)
		}
	}
	return nil
}

// has returns the jobs and VMs of one of the operator's clients, or of all clients of another
// owner, and the disks that belong to none of their VMs. A checkpoint that was made automatically
// is nobody's: those have a limit of their own.
func (f *Fleet) has(ctx context.Context, owner, client string) ([]job.Job, error) {
	all, err := f.o.Jobs.OfClient(ctx, owner, client)
	if err != nil {
		return nil, err
	}
	volumes, err := f.o.Store.Volumes(ctx)
	if err != nil {
		return nil, err
	}
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return nil, err
	}
	saved, err := f.o.Store.SavedTemplates(ctx)
	if err != nil {
		return nil, err
	}
	add := func(principal, of string, what job.Job) {
		if principal == owner && (owner != "" || of == client) {
			all = append(all, what)
		}
	}
	for _, v := range volumes {
		add(v.Principal, v.Client, job.Disk(job.KindVolume, v.SizeGB<<10))
	}
	for _, v := range vms {
		switch {
		case v.Checkpoint != nil && v.Checkpoint.Asked:
			add(v.Principal, v.Own.Client, job.Disk(job.KindCheckpoint, job.CheckpointMB(v.Resources)))
		case v.Checkpoint == nil && v.AskedFor():
			add(v.Principal, v.Own.Client, job.StandInJob(v))
		}
	}
	for _, t := range saved {
		add(t.Principal, t.Client, job.Disk(job.KindSaved, t.DiskMB))
	}
	return all, nil
}

// admitDisk returns an error if the caller may not have one more disk.
func (f *Fleet) admitDisk(ctx context.Context, mb int) (job.Submission, error) {
	s := job.Submission{Client: job.ClientFrom(ctx), Manifest: job.DiskAlone(mb)}
	s.Principal, _ = job.PrincipalFrom(ctx)
	return s, f.Admit(ctx, s, s.Manifest)
}

// reserveSaved stores a template that is to be made from a copy of a VM, if its client may have it.
func (f *Fleet) reserveSaved(ctx context.Context, of vm.VM, name string) (vm.SavedTemplate, error) {
	id, err := newID()
	if err != nil {
		return vm.SavedTemplate{}, err
	}
	t := vm.SavedTemplate{ID: id, Name: name, DiskMB: job.SizeMB(of.Resources.Disk), Client: job.ClientFrom(ctx), At: now()}
	if s := of.Sandbox(); s != nil && s.Build {
		t.Build, t.CPU, t.MemoryMB = of.Name, of.Resources.CPU, job.SizeMB(of.Resources.Memory)
	}
	end, err := f.Decide(ctx)
	if err != nil {
		return t, err
	}
	defer end()
	s, err := f.admitDisk(ctx, t.DiskMB)
	if err != nil {
		return t, err
	}
	t.Principal = s.Principal.Owner()
	return t, f.o.Store.InsertSaved(ctx, t, s.Principal.Limits)
}

// tendSaved forgets saved templates that are no longer on the host.
func (f *Fleet) tendSaved(ctx context.Context) {
	rows, err := f.o.Store.SavedTemplates(ctx)
	if err == nil && len(rows) > 0 {
		var there []vm.VM
		if there, err = f.o.Provider.Templates(ctx); err == nil {
			err = f.matchSaved(ctx, rows, there)
		}
	}
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("look for saved templates failed", "err", err)
	}
}

func (f *Fleet) matchSaved(ctx context.Context, rows []vm.SavedTemplate, there []vm.VM) error {
	for _, t := range rows {
		at := slices.IndexFunc(there, func(v vm.VM) bool { return v.Name == t.Name && (t.VMID == 0 || v.ID == t.VMID) })
		var err error
		switch {
		case at >= 0 && t.VMID == 0:
			t.VMID = there[at].ID
			err = f.o.Store.UpdateSaved(ctx, t)
		case at < 0 && (t.VMID != 0 || time.Since(t.At) > savingTime):
			err = f.o.Store.DeleteSaved(ctx, t.ID)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
