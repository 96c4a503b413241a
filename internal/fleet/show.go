package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// VMs returns every VM that the caller may see, oldest first, with its status on the host, which is
// unknown if the host does not respond.
func (f *Fleet) VMs(ctx context.Context) ([]job.VMInfo, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return nil, err
	}
	vms = slices.DeleteFunc(vms, func(v vm.VM) bool { return v.Checkpoint != nil || !job.Visible(ctx, v.OwnedBy()) })
	if len(vms) == 0 {
		return nil, nil
	}
	statuses, unasked := f.statuses(ctx, vms...)
	begun, err := f.o.Jobs.InProgress(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.VMInfo, len(vms))
	for i, v := range vms {
		infos[i] = vmInfo(v, begun, statuses, unasked)
		infos[i].Ports = f.exposed(v)
	}
	return infos, nil
}

// VM returns a VM by name or ID.
func (f *Fleet) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := f.Find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	statuses, unasked := f.status(ctx, v)
	return f.oneInfo(ctx, v, statuses, unasked)
}

// status is statuses for a single VM. It asks by ID, which costs the host a fraction of a search; a
// VM that is not found where it was left is searched for.
func (f *Fleet) status(ctx context.Context, v vm.VM) (_ map[string]vm.Status, unasked error) {
	if v.State == vm.Created {
		switch status := f.vmStatus(ctx, v); status {
		case vm.Running, vm.Stopped, vm.Suspended:
			return map[string]vm.Status{v.Job: status}, nil
		}
	}
	return f.statuses(ctx, v)
}

// statuses asks the host for the status of VMs, and returns them by the ID in their marker. unasked
// is why the host could not be asked: it is not waited for. A VM that stays but is missing in the
// host's list is asked for by its ID: it may exist without its marker.
func (f *Fleet) statuses(ctx context.Context, of ...vm.VM) (_ map[string]vm.Status, unasked error) {
	hurried, end := job.Hurried(ctx)
	defer end()
	vms, err := f.o.Provider.List(hurried)
	statuses := map[string]vm.Status{}
	for _, v := range vms {
		statuses[v.Job] = v.Status
	}
	if err != nil {
		f.o.Log.Warn("list VMs on the host failed", "err", err)
		return statuses, err
	}
	missing := slices.DeleteFunc(slices.Clone(of), func(v vm.VM) bool {
		_, there := statuses[v.Job]
		return there || !v.Stays()
	})
	var (
		each  sync.WaitGroup
		turn  = make(chan struct{}, statusesAtOnce)
		found = make([]vm.Status, len(missing))
	)
	for i, v := range missing {
		each.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			found[i] = f.vmStatus(ctx, v)
		})
	}
	each.Wait()
	for i, v := range missing {
		statuses[v.Job] = found[i]
	}
	return statuses, nil
}

// vmStatus asks the host for the status of a single VM. Unknown proves nothing.
func (f *Fleet) vmStatus(ctx context.Context, v vm.VM) vm.Status {
	status, err := f.o.Provider.Status(ctx, v)
	if err != nil {
		f.o.Log.Debug("the host does not report the VM's status", "job_id", v.Job, "vm_id", v.ID, "err", err)
		return vm.Unknown
	}
	return status
}

// statusesAtOnce bounds concurrent requests for single VMs.
const statusesAtOnce = 4

func (f *Fleet) oneInfo(ctx context.Context, v vm.VM, statuses map[string]vm.Status, unasked error) (job.VMInfo, error) {
	begun, err := f.o.Jobs.InProgress(ctx)
	if err != nil {
		return job.VMInfo{}, err
	}
	info := vmInfo(v, begun, statuses, unasked)
	info.Ports = f.exposed(v)
	return info, nil
}

// errUnasked means that the host was not asked because no status is needed.
var errUnasked = errors.New("the host was not asked")

// vmInfo describes a VM. begun are the unfinished jobs; if unasked is nil, the host has reported
// all statuses.
func vmInfo(v vm.VM, begun []job.Job, statuses map[string]vm.Status, unasked error) job.VMInfo {
	info := job.VMInfo{
		VM: v, Lifecycle: v.Lifecycle, Resources: v.Resources, Network: v.Network,
		Source: cmp.Or(v.Template, v.OS), Start: startOf(v), Labels: v.Labels, CreatedAt: v.CreatedAt, Jobs: insideOf(begun, v), Principal: v.OwnedBy(), Sandbox: v.Sandbox(),
	}
	ending := slices.ContainsFunc(begun, func(j job.Job) bool { return j.ID == v.Job && j.Outcome != nil }) && !v.Stays() || v.Own != nil && v.Unwanted
	status, there := statuses[v.Job]
	switch {
	case v.BeingMade() || v.State == vm.Intended && !ending:
		info.Status = vm.Provisioning
	case v.State == vm.LeftAlone || v.State == vm.Forgotten:
		info.Status = vm.Unproven
	case v.State == vm.Destroyed:
		info.Status = vm.Gone
	case v.Unwanted || ending:
		info.Status = vm.Destroying
	case there:
		info.Status = status
	case unasked == nil:
		info.Status = vm.Gone
	default:
		info.Status = vm.Unknown
		if host, ok := errors.AsType[*job.HostError](unasked); ok {
			info.Reason, info.Remedy = "the host could not be asked: "+host.Text, host.Remedy
		}
	}
	info.IdleSuspend, info.AtEnd = v.IdleSuspend, v.AtEnd
	if info.Status != vm.Suspended {
		info.SuspendedAt = time.Time{}
	}
	if info.Status == vm.Unproven && info.Reason == "" {
		info.Reason = "the VM with its ID on the host is no longer proven to be this one, or is on another node"
		info.Remedy = fmt.Sprintf("check its name, its tag and its notes (qm config %d): name %s, tag linus, linus-job=%s, linus-owner=%s and linus-vm=%d", info.ID, info.OnHost(), info.Job, info.Owner, info.ID)
	}
	return info
}

// startOf returns how a VM came to be; empty: it does not exist yet.
func startOf(v vm.VM) vm.Source {
	switch {
	case v.State.Planned():
		return ""
	case v.Own != nil && v.Member == nil:
		return v.Source
	case v.From != "":
		return vm.Restored
	}
	return vm.Cold
}

// infoOf is oneInfo for the VM with an ID in its marker, as stored now.
func (f *Fleet) infoOf(ctx context.Context, id string) (job.VMInfo, error) {
	v, err := f.o.Store.VM(ctx, id)
	if err != nil {
		return job.VMInfo{}, err
	}
	return f.oneInfo(ctx, v, nil, errUnasked)
}
