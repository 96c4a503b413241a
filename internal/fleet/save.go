package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// SaveVM makes a template of a persistent VM: of a copy, or in place of the VM itself, which is
// then gone. Jobs in it must have ended. The host continues without this engine; once complete, the
// result is listed as a template. In place, the same call made again finds it.
func (f *Fleet) SaveVM(ctx context.Context, ref, name string, inPlace bool) (saved job.SavedTemplate, err error) {
	if err := job.CheckTemplateName(name); err != nil {
		return saved, err
	}
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return saved, err
	}
	if slices.ContainsFunc(vms, func(v vm.VM) bool { return v.State != vm.LeftAlone && hasName(v, name) }) {
		return saved, templateTaken(name)
	}
	caller := job.CallerFrom(ctx)
	spec := job.SaveSpec{Name: name, InPlace: inPlace, By: cmp.Or(caller.Principal, caller.Client)}
	_, err = f.exclusive(ctx, ref, "saved", true, func(ctx context.Context, v vm.VM) (err error) {
		free, err := f.claimName(ctx, name)
		if err != nil {
			return err
		}
		defer free()
		saved, err = f.saveAs(ctx, v, spec)
		return err
	})
	switch {
	case job.IsClass(err, job.HostExists):
		return job.SavedTemplate{}, templateTaken(name)
	case err != nil:
		return job.SavedTemplate{}, err
	}
	return saved, nil
}

// claimName keeps others, on all engines, from saving a VM as the same template until free is
// called. In place, nothing on the host has the name until the VM is the template.
func (f *Fleet) claimName(ctx context.Context, name string) (free func(), err error) {
	d, err := f.access.decide(ctx)
	if err != nil {
		return nil, err
	}
	defer d.end()
	of := "template " + name // no VM has such an ID
	switch work, err := f.access.workOn(ctx, of); {
	case err != nil:
		return nil, err
	case work != "":
		return nil, &job.FieldError{Field: "name", Problem: fmt.Sprintf("a VM is being saved as %q already", name), Remedy: "choose another, or wait until it is done", Fault: job.FaultState}
	}
	return d.begin(ctx, of, "saved")
}

// saveAs saves a VM as a template that counts as its client's: a copy from its beginning, a VM in
// place once it has become the template.
func (f *Fleet) saveAs(ctx context.Context, v vm.VM, spec job.SaveSpec) (saved job.SavedTemplate, err error) {
	var row vm.SavedTemplate
	if spec.InPlace {
		p, _ := job.PrincipalFrom(ctx)
		row = vm.SavedTemplate{ID: v.Job, Name: spec.Name, DiskMB: job.SizeMB(v.Resources.Disk), Principal: p.Owner(), Client: job.ClientFrom(ctx), At: now()}
	} else if row, err = f.reserveSaved(ctx, v, spec.Name); err != nil {
		return saved, err
	}
	var warnings []job.Event
	saved, err = f.o.Provider.SaveVM(ctx, v, spec, func(p job.Progress) {
		if p.Warning != "" {
			warnings = append(warnings, p.Event())
		}
	})
	ctx = context.WithoutCancel(ctx)
	untold := f.Tell(ctx, v.Job, warnings)
	switch {
	case err == nil:
		row.VMID = saved.VMID
		err = errors.Join(f.o.Store.UpdateSaved(ctx, row), f.noteTemplate(ctx, v, saved))
	case !spec.InPlace && !errors.Is(err, job.ErrDetach): // else the host continues
		err = errors.Join(err, f.o.Store.DeleteSaved(ctx, row.ID))
	}
	return saved, errors.Join(err, untold)
}

func templateTaken(name string) error {
	return &job.FieldError{Field: "name", Problem: fmt.Sprintf("a VM or a template is called %q already", name), Remedy: "choose another", Fault: job.FaultState}
}

// noteTemplate records what a VM was saved as. A VM that has become the template is gone.
func (f *Fleet) noteTemplate(ctx context.Context, saved vm.VM, t job.SavedTemplate) error {
	text, phase := fmt.Sprintf("a copy was saved as template %s (VM %d)", t.Name, t.VMID), job.PhaseProvision
	if t.InPlace {
		phase = job.PhaseDestroy
		text = fmt.Sprintf("VM %d is now template %s, and no longer a VM", t.VMID, t.Name)
		f.o.Guest.Forget(asJob(saved))
	}
	if len(t.Left) > 0 {
		text += "; left in it: " + strings.Join(t.Left, ", ")
	}
	_, err := f.update(ctx, saved.Job, func(v *vm.VM) ([]job.Event, error) {
		if t.InPlace {
			v.State, v.Reason, v.Remedy = vm.Destroyed, "", ""
		}
		return []job.Event{{Kind: job.EventProgress, Phase: phase, Text: job.Bounded(text)}}, nil
	})
	if err == nil && t.InPlace {
		f.dropKey(ctx, saved.Job)
		f.MadeRoom()
	}
	return err
}
