package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"linus/internal/job"
	"linus/internal/vm"
)

// ready ends a job whose only purpose was to create a VM.
func (e *Executor) ready(ctx context.Context, r *run, _ job.Job) error {
	code := 0
	outcome := job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &code, At: now()}
	_, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		events := become(j, job.Running)
		if j.Decide(outcome) {
			events = append(events, decided(outcome))
		}
		return events, nil
	})
	return err
}

// noKey is a placeholder where no VM is created; nobody has its private key.
const noKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA none"

// Plan returns what creating the submission's VM would do, and changes nothing.
func (e *Executor) Plan(ctx context.Context, s job.Submission) ([]string, error) {
	s.Principal, _ = job.PrincipalFrom(ctx)
	m, err := e.complete(ctx, s)
	if err != nil {
		return nil, err
	}
	j := job.Job{ID: "00000000-0000-7000-8000-000000000000", Principal: s.Principal.Owner(), Manifest: m}
	j.VM = &vm.VM{Name: cmp.Or(m.VMName, vm.DefaultName(j.ID)), Job: j.ID, Owner: e.o.Owner}
	spec, err := e.vmSpecOf(j, *j.VM)
	if err != nil {
		return nil, err
	}
	spec.PublicKey = noKey
	if e.o.Fleet.Spread() {
		want, err := e.o.Fleet.Beside(ctx)
		if err != nil {
			return nil, err
		}
		want.Spec = spec
		at, err := e.o.Fleet.Place(ctx, want)
		if err != nil {
			return nil, neverFits(err)
		}
		spec.Node = at.Node
	}
	plan, err := e.o.Provider.Plan(ctx, spec)
	return plan, e.unnamed(ctx, j, err)
}

// VMs returns every VM of ours that the caller may see, oldest first, with its status on the host; unknown if
// the host does not respond.
func (e *Executor) VMs(ctx context.Context) ([]job.VMInfo, error) {
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return nil, err
	}
	vms = slices.DeleteFunc(vms, func(v vm.VM) bool { return !visible(ctx, ownerOf(v)) })
	if len(vms) == 0 {
		return nil, nil
	}
	statuses, asked := e.statuses(ctx, vms...)
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.VMInfo, len(vms))
	for i, v := range vms {
		infos[i] = vmInfo(v, begun, statuses, asked)
	}
	return infos, nil
}

// VM returns one VM, by name or ID.
func (e *Executor) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	statuses, asked := e.statuses(ctx, v)
	return e.oneInfo(ctx, v, statuses, asked)
}

// statuses asks the host for the status of VMs, and returns them by the ID in their marker;
// false if the host could not be asked. One that stays and is missing in the host's list is
// asked for by its ID: it may be there without its marker.
func (e *Executor) statuses(ctx context.Context, of ...vm.VM) (map[string]vm.Status, bool) {
	vms, err := e.o.Provider.List(ctx)
	statuses := map[string]vm.Status{}
	for _, v := range vms {
		statuses[v.Job] = v.Status
	}
	if err != nil {
		e.o.Log.Warn("list VMs on the host failed", "err", err)
		return statuses, false
	}
	missing := slices.DeleteFunc(slices.Clone(of), func(v vm.VM) bool {
		_, there := statuses[v.Job]
		return there || !v.Stays()
	})
	var (
		asking sync.WaitGroup
		turn   = make(chan struct{}, statusesAtOnce)
		found  = make([]vm.Status, len(missing))
	)
	for i, v := range missing {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			found[i] = e.vmStatus(ctx, v)
		})
	}
	asking.Wait()
	for i, v := range missing {
		statuses[v.Job] = found[i]
	}
	return statuses, true
}

// statusesAtOnce bounds concurrent requests for single VMs.
const statusesAtOnce = 4

// oneInfo is vmInfo for a single VM.
func (e *Executor) oneInfo(ctx context.Context, v vm.VM, statuses map[string]vm.Status, asked bool) (job.VMInfo, error) {
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return job.VMInfo{}, err
	}
	return vmInfo(v, begun, statuses, asked), nil
}

// vmInfo describes a VM. begun are the unfinished jobs, and with asked the host has reported
// all statuses.
func vmInfo(v vm.VM, begun []job.Job, statuses map[string]vm.Status, asked bool) job.VMInfo {
	info := job.VMInfo{
		VM: v, Lifecycle: v.Lifecycle, Resources: v.Resources, Network: v.Network,
		Source: cmp.Or(v.Template, v.OS), CreatedAt: v.CreatedAt, Jobs: sharers(begun, v), Principal: ownerOf(v),
	}
	ending := slices.ContainsFunc(begun, func(j job.Job) bool { return j.ID == v.Job && j.Outcome != nil }) && !v.Stays()
	status, there := statuses[v.Job]
	switch {
	case v.State == vm.Intended && !ending:
		info.Status = vm.Provisioning
	case v.State == vm.LeftAlone || v.State == vm.Forgotten:
		info.Status = vm.Unproven
	case v.State == vm.Destroyed:
		info.Status = vm.Gone
	case v.Unwanted || ending:
		info.Status = vm.Destroying
	case there:
		info.Status = status
	case asked:
		info.Status = vm.Gone
	default:
		info.Status = vm.Unknown
	}
	if info.Status == vm.Unproven && info.Reason == "" {
		info.Reason = "the VM with its ID on the host is no longer proven to be this one, or is on another node"
		info.Remedy = fmt.Sprintf("check its name, its tag and its notes (qm config %d): name %s, tag linus, linus-job=%s, linus-owner=%s and linus-vm=%d", info.ID, info.Name, info.Job, info.Owner, info.ID)
	}
	return info
}

// DestroyVM destroys a persistent VM. Jobs in it must have ended. A VM that is still
// being created is destroyed too, and so is one with work in progress: a start that
// hangs must not prevent it. It returns once that is decided. The decision survives
// this process: destroying is retried until the VM is gone.
func (e *Executor) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if v.State == vm.LeftAlone {
		return e.destroyLeftAlone(ctx, v.Job)
	}
	if v.Member != nil {
		return e.destroyMember(ctx, v)
	}
	if v.Lifecycle != vm.Persistent {
		return job.VMInfo{}, noVM(ref, "goes with job "+v.Job+": cancel that")
	}
	m, err := e.o.Jobs.Job(ctx, v.Job)
	if err != nil {
		return job.VMInfo{}, err
	}
	if v.State == vm.Intended || m.Kind == job.KindVM && m.Outcome == nil {
		if err := e.Cancel(ctx, v.Job); err != nil && !errors.Is(err, job.ErrCompleted) {
			return job.VMInfo{}, err
		}
		if v, err = e.o.VMs.VM(ctx, v.Job); err != nil {
			return job.VMInfo{}, err
		}
	}
	if v.Stays() {
		if err := e.discard(ctx, v, "destroyed by request"); err != nil {
			return job.VMInfo{}, err
		}
	}
	return e.infoOf(ctx, v.Job)
}

// destroyMember is DestroyVM for a VM of a pool: one that no job has is given up, and the
// pool makes another.
func (e *Executor) destroyMember(ctx context.Context, v vm.VM) (job.VMInfo, error) {
	if v.Member.State == vm.MemberClaimed {
		return job.VMInfo{}, noVM(v.Name, "goes with job "+v.Member.Claimer+": cancel that")
	}
	if err := e.o.Fleet.Doom(ctx, v.Job, v.Member.State, "destroyed by request"); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(ctx, v.Job)
}

// discard marks a persistent VM for destruction. It returns a *job.FieldError if jobs run
// in the VM.
func (e *Executor) discard(ctx context.Context, v vm.VM, why string) error {
	d, err := e.access.decide(ctx)
	if err != nil {
		return err
	}
	defer d.end()
	if err := e.idle(ctx, d, v, "destroyed"); err != nil {
		return err
	}
	_, err = e.update(ctx, v.Job, func(j *job.Job) ([]job.Event, error) {
		if j.VM.Unwanted {
			return nil, nil
		}
		j.VM.Unwanted = true
		j.EndBy(job.CallerFrom(ctx))
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: fmt.Sprintf("VM %d is %s", j.VM.ID, why)}}, nil
	})
	if err != nil {
		return err
	}
	e.o.Log.Info("VM is to be destroyed", "job_id", v.Job, "why", why)
	return e.unwanted(ctx)
}

// expire discards the persistent VMs that have expired and in which no job runs.
func (e *Executor) expire(ctx context.Context) error {
	if !e.Leads(ctx) {
		return nil
	}
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return err
	}
	expiring := 0
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.expiring = expiring
	}()
	for _, v := range vms {
		if v.ExpiresAt.IsZero() || !v.Stays() {
			continue
		}
		expiring++
		if !v.Kept || now().Before(v.ExpiresAt) {
			continue
		}
		var busy *job.FieldError
		if err := e.discard(ctx, v, "destroyed: its ttl has expired"); err != nil && !errors.As(err, &busy) {
			return err
		}
	}
	return nil
}

// destroyLeftAlone is DestroyVM for a VM that is left alone. When it returns, the VM
// is destroyed, or the host has refused.
func (e *Executor) destroyLeftAlone(ctx context.Context, id string) (job.VMInfo, error) {
	if err := e.o.Fleet.DestroyLeftAlone(ctx, id); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(ctx, id)
}

// ForgetVM stops tracking a VM that is left alone. The VM is not touched; it is no
// longer listed, and the operator's from now on.
func (e *Executor) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	v, err := e.find(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if err := e.o.Fleet.Forget(ctx, v.Job); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(context.WithoutCancel(ctx), v.Job)
}

// infoOf is oneInfo for the VM with an ID in its marker, as it is now.
func (e *Executor) infoOf(ctx context.Context, id string) (job.VMInfo, error) {
	v, err := e.o.VMs.VM(ctx, id)
	if err != nil {
		return job.VMInfo{}, err
	}
	return e.oneInfo(ctx, v, nil, false)
}
