package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// Volumes named by a job bind the job to nodes, are mounted before its task starts, and are put
// back before its result is reported.

// putBackTime bounds how long unmounting and detaching a job's volume may take.
const putBackTime = 2 * time.Minute

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

// fitsVolumes returns the volumes of a manifest, or an error if its job cannot have them because
// one does not exist or a VM that stays has it.
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

// nodesFor returns on which nodes an existing VM can be given to a job, considering the job's volumes.
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

// pinned is planned on the node of the job's unshared volumes, if there are any.
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

// mount mounts the volumes that a job asks for in its VM, before the job's task starts.
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
		if v, err = f.leftByOthers(ctx, v, vm.VolumeUse{VM: j.VM.Job, ReadOnly: j.Manifest.Volumes[i].Mode == vm.MountRO}); err != nil {
			return err
		}
		if _, err := f.attach(ctx, v, *j.VM, j.Manifest.Volumes[i]); err != nil {
			return err
		}
		names = append(names, v.Name+" at "+j.Manifest.Volumes[i].Path)
	}
	a.job, err = f.updateJob(ctx, j.ID, func(*job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: "volumes mounted: " + strings.Join(names, ", ")}}, nil
	})
	return err
}

// leftByOthers waits until no VM that is about to be gone has a volume, and returns the volume. It
// does not wait for other VMs.
func (f *Fleet) leftByOthers(ctx context.Context, v vm.Volume, next vm.VolumeUse) (vm.Volume, error) {
	for began, told := time.Now(), false; time.Since(began) < f.o.Patience; told = true {
		by := v.Conflict(next)
		if by == nil {
			break
		}
		if goes, err := f.goes(ctx, by.VM); err != nil || !goes {
			return v, err
		}
		if !told {
			job.Tell(ctx, job.Progress{Step: job.PhaseProvision, Text: fmt.Sprintf("waiting for volume %s: VM %d, which has it, is being destroyed", v.Name, by.VMID)})
		}
		if sleep.For(ctx, reachAgain) != nil {
			return v, context.Cause(ctx)
		}
		var err error
		if v, err = f.findVolume(ctx, "volume", v.ID, func(string) bool { return true }); err != nil {
			return v, err
		}
	}
	return v, nil
}

// goes reports whether a VM is about to be gone: it is unwanted, or the job that had it has ended.
func (f *Fleet) goes(ctx context.Context, id string) (bool, error) {
	v, err := f.o.Store.VM(ctx, id)
	switch {
	case errors.Is(err, job.ErrNotFound):
		return true, nil
	case err != nil || v.State != vm.Created:
		return false, err
	case v.Unwanted:
		return true, nil
	}
	holder := v.Job
	if v.Member != nil {
		holder = v.Member.Claimer
	}
	j, err := f.Known(ctx, holder)
	return v.Lifecycle != vm.Persistent && j.Status.Terminal(), err
}

// PutBack unmounts and detaches the volumes of a job whose VM goes away.
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
	return []job.Event{{Kind: job.EventWarning, Text: err.Error() + "; it is detached when the VM is stopped, and unwritten data is lost"}}
}
