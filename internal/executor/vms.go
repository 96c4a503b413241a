package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		e.memberReady(j)
		if j.Decide(outcome) {
			events = append(events, decided(outcome))
		}
		return events, nil
	})
	return err
}

// freeName refuses a second VM of the same name. The host does too, but not while the
// first is still being created.
func (e *Executor) freeName(ctx context.Context, j job.Job) error {
	if j.Manifest.VMName == "" {
		return nil
	}
	vms, err := e.o.VMs.VMs(ctx)
	if err != nil {
		return err
	}
	for _, v := range vms {
		if v.Job != j.ID && strings.EqualFold(v.Name, j.Manifest.VMName) {
			if v.Principal != j.Principal {
				return nameTaken(j.Manifest.VMName)
			}
			return fmt.Errorf("VM already exists: %q is VM %d, made by job %s; choose another name, or run in it with manifest.vm", v.Name, v.ID, v.Job)
		}
	}
	return nil
}

// nameTaken says no more of the VM than that: it is not the caller's.
func nameTaken(name string) error {
	return &job.FieldError{Field: "manifest.vmName", Problem: fmt.Sprintf("VM already exists: the name %q is taken", name), Remedy: "choose another"}
}

// unnamed returns the host's error for a job's VM without what it says of another's VM that
// has the name.
func (e *Executor) unnamed(ctx context.Context, j job.Job, err error) error {
	if p, ok := job.PrincipalFrom(ctx); !job.IsClass(err, job.HostExists) || j.Principal == "" || ok && p.Admin() {
		return err
	}
	e.o.Log.InfoContext(ctx, "the name of a VM is taken", "job_id", j.ID, "err", err)
	return nameTaken(cmp.Or(j.Manifest.VMName, j.VM.Name))
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
	creators, err := e.o.VMs.Makers(ctx)
	if err != nil {
		return nil, err
	}
	creators = slices.DeleteFunc(creators, func(m job.Job) bool { return !visible(ctx, ownerOfVM(m)) })
	if len(creators) == 0 {
		return nil, nil
	}
	statuses, asked := e.statuses(ctx, creators...)
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.VMInfo, len(creators))
	for i, m := range creators {
		infos[i] = vmInfo(m, begun, statuses, asked)
	}
	return infos, nil
}

// VM returns one VM, by name or ID.
func (e *Executor) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	m, err := e.creator(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	statuses, asked := e.statuses(ctx, m)
	return e.oneInfo(ctx, m, statuses, asked)
}

// statuses asks the host for the status of the VMs that these jobs created, and returns
// them by job; false if the host could not be asked. A persistent VM missing in the
// host's list is asked for by its ID: it may be there without its marker.
func (e *Executor) statuses(ctx context.Context, creators ...job.Job) (map[string]vm.Status, bool) {
	vms, err := e.o.Provider.List(ctx)
	statuses := map[string]vm.Status{}
	for _, v := range vms {
		statuses[v.Job] = v.Status
	}
	if err != nil {
		e.o.Log.Warn("list VMs on the host failed", "err", err)
		return statuses, false
	}
	missing := slices.DeleteFunc(slices.Clone(creators), func(m job.Job) bool {
		_, there := statuses[m.ID]
		return there || !m.KeepsVM()
	})
	var (
		asking sync.WaitGroup
		turn   = make(chan struct{}, statusesAtOnce)
		found  = make([]vm.Status, len(missing))
	)
	for i, m := range missing {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			found[i] = e.vmStatus(ctx, m)
		})
	}
	asking.Wait()
	for i, m := range missing {
		statuses[m.ID] = found[i]
	}
	return statuses, true
}

// statusesAtOnce bounds concurrent requests for single VMs.
const statusesAtOnce = 4

// oneInfo is vmInfo for a single VM.
func (e *Executor) oneInfo(ctx context.Context, m job.Job, statuses map[string]vm.Status, asked bool) (job.VMInfo, error) {
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return job.VMInfo{}, err
	}
	return vmInfo(m, begun, statuses, asked), nil
}

// vmInfo describes the VM that job m created. asked: the host has reported all
// statuses.
func vmInfo(m job.Job, begun []job.Job, statuses map[string]vm.Status, asked bool) job.VMInfo {
	info := job.VMInfo{
		VM: *m.VM, Lifecycle: m.Manifest.Lifecycle, Resources: m.Manifest.Resources, Network: m.Manifest.Network,
		Source: cmp.Or(m.Manifest.VMTemplate, m.Manifest.OS), CreatedAt: m.CreatedAt,
		Jobs: sharers(begun, m), Principal: ownerOfVM(m),
	}
	status, there := statuses[m.ID]
	switch {
	case m.VM.State == vm.Intended && m.Outcome == nil:
		info.Status = vm.Provisioning
	case m.VM.State == vm.LeftAlone || m.VM.State == vm.Forgotten:
		info.Status = vm.Unproven
	case m.VM.State == vm.Destroyed:
		info.Status = vm.Gone
	case m.VM.Unwanted || m.Outcome != nil && !m.KeepsVM():
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
	m, err := e.creator(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if m.VM.State == vm.LeftAlone {
		return e.destroyLeftAlone(ctx, m)
	}
	if m.ForPool() {
		return e.destroyMember(ctx, m)
	}
	if m.Manifest.Lifecycle != vm.Persistent {
		return job.VMInfo{}, noVM(ref, "goes with job "+m.ID+": cancel that")
	}
	if m.VM.State == vm.Intended || m.Kind == job.KindVM && m.Outcome == nil {
		if err := e.Cancel(ctx, m.ID); err != nil && !errors.Is(err, job.ErrCompleted) {
			return job.VMInfo{}, err
		}
		if m, err = e.o.Jobs.Job(ctx, m.ID); err != nil {
			return job.VMInfo{}, err
		}
	}
	if m.KeepsVM() {
		if err := e.discard(ctx, m, "destroyed by request"); err != nil {
			return job.VMInfo{}, err
		}
		if m, err = e.o.Jobs.Job(ctx, m.ID); err != nil {
			return job.VMInfo{}, err
		}
	}
	return e.oneInfo(ctx, m, nil, false)
}

// destroyMember is DestroyVM for a VM of a pool: one that no job has is given up, and the
// pool makes another.
func (e *Executor) destroyMember(ctx context.Context, m job.Job) (job.VMInfo, error) {
	of := m.VM.Member
	if of.State == vm.MemberClaimed {
		return job.VMInfo{}, noVM(m.VM.Name, "goes with job "+of.Claimer+": cancel that")
	}
	if err := e.o.Fleet.Doom(ctx, m.ID, of.State, "destroyed by request"); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(ctx, m.ID)
}

// discard marks a persistent VM for destruction. It returns a *job.FieldError if jobs run in the VM.
func (e *Executor) discard(ctx context.Context, m job.Job, why string) error {
	d, err := e.access.decide(ctx)
	if err != nil {
		return err
	}
	defer d.end()
	if err := e.idle(ctx, d, m, "destroyed"); err != nil {
		return err
	}
	_, err = e.update(ctx, m.ID, func(j *job.Job) ([]job.Event, error) {
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
	e.o.Log.Info("VM is to be destroyed", "job_id", m.ID, "why", why)
	return e.unwanted(ctx)
}

// expire discards the persistent VMs that have expired and in which no job runs.
func (e *Executor) expire(ctx context.Context) error {
	if !e.Leads(ctx) {
		return nil
	}
	creators, err := e.o.VMs.Makers(ctx)
	if err != nil {
		return err
	}
	expiring := 0
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.expiring = expiring
	}()
	for _, m := range creators {
		if m.VM.ExpiresAt.IsZero() || !m.KeepsVM() {
			continue
		}
		expiring++
		if !m.Status.Terminal() || now().Before(m.VM.ExpiresAt) {
			continue
		}
		var busy *job.FieldError
		if err := e.discard(ctx, m, "destroyed: its ttl has expired"); err != nil && !errors.As(err, &busy) {
			return err
		}
	}
	return nil
}

// destroyLeftAlone is DestroyVM for a VM that is left alone. When it returns, the VM
// is destroyed, or the host has refused.
func (e *Executor) destroyLeftAlone(ctx context.Context, m job.Job) (job.VMInfo, error) {
	if err := e.o.Fleet.DestroyLeftAlone(ctx, m.ID); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(ctx, m.ID)
}

// ForgetVM stops tracking a VM that is left alone. The VM is not touched; it is no
// longer listed, and the operator's from now on.
func (e *Executor) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	m, err := e.creator(ctx, ref)
	if err != nil {
		return job.VMInfo{}, err
	}
	if err := e.o.Fleet.Forget(ctx, m.ID); err != nil {
		return job.VMInfo{}, err
	}
	return e.infoOf(context.WithoutCancel(ctx), m.ID)
}

// infoOf is oneInfo for the VM that a job has made, as it is now.
func (e *Executor) infoOf(ctx context.Context, id string) (job.VMInfo, error) {
	m, err := e.o.Jobs.Job(ctx, id)
	if err != nil {
		return job.VMInfo{}, err
	}
	return e.oneInfo(ctx, m, nil, false)
}
