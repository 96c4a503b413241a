package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// CreateVM checks the submission, stores the VM and returns it at once. For an idempotency key used
// before, it returns the first VM if the manifest is the same.
func (f *Fleet) CreateVM(ctx context.Context, s job.Submission) (job.VMInfo, error) {
	s.Principal, _ = job.PrincipalFrom(ctx)
	s.Manifest = s.Manifest.ForVM()
	if err := s.CheckVM(); err != nil {
		return job.VMInfo{}, err
	}
	digest, err := s.Digest()
	if err != nil {
		return job.VMInfo{}, err
	}
	if s.Manifest.VMName == "" {
		return job.VMInfo{}, &job.FieldError{Field: "manifest.vmName", Problem: "is required", Remedy: "give a host name such as dev1"}
	}
	m, err := f.completeVM(ctx, s)
	if err != nil {
		return job.VMInfo{}, err
	}
	var pools []job.Pool
	if s.Node == "" {
		pools = f.poolsThat(func(p job.Pool) bool { return p.Makes(m) })
		f.untilRead(ctx, pools, m, anywhere)
	}
	owner, key := s.Principal.Owner(), s.Principal.Key(s.IdempotencyKey)
	end, err := f.Decide(ctx) // two requests for the same name take turns
	if err != nil {
		return job.VMInfo{}, err
	}
	defer end()
	if first, err := f.o.Store.AskedVM(ctx, key); !errors.Is(err, job.ErrNotFound) {
		if err != nil {
			return job.VMInfo{}, err
		}
		if _, err := job.StandInJob(first).Same(digest); err != nil {
			return job.VMInfo{}, err
		}
		statuses, asked := f.statuses(ctx, first)
		return f.oneInfo(ctx, first, statuses, asked)
	}
	if err := f.freeName(ctx, m.VMName, "", owner); err != nil {
		return job.VMInfo{}, err
	}
	if err := f.Admit(ctx, s, m); err != nil {
		return job.VMInfo{}, err
	}
	id, err := newID()
	if err != nil {
		return job.VMInfo{}, err
	}
	v := vm.VM{
		Job: id, Name: m.VMName, Owner: f.o.Owner, State: vm.Reserved, Source: vm.Cold, Kept: true, Made: madeAs(m, owner, now()),
		Own: &vm.Own{Client: s.Client, Token: s.Principal.Token, Submission: digest, TTL: m.TTL, Sandbox: s.Sandbox},
	}
	if f.Spread() {
		v.Node = s.Node
	}
	v, err = f.ask(ctx, v, m, pools, key, s.Principal.Limits)
	f.DestroySoon() // the VM may be stored even if ask failed
	if err != nil {
		return job.VMInfo{}, err
	}
	f.o.Log.Info("VM asked for", "job_id", v.Job, "vm", v.Name, "client", s.Client)
	return vmInfo(v, nil, nil, errUnasked), nil
}

// newID returns the ID for the marker of a VM that no job makes.
func newID() (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("create a VM's ID: %w", err)
	}
	return id.String(), nil
}

// completeVM checks a submission, including whether it is allowed, and returns its manifest with
// every default.
func (f *Fleet) completeVM(ctx context.Context, s job.Submission) (job.Manifest, error) {
	m, err := s.Manifest.Complete(f.o.Defaults)
	if err == nil && len(m.Volumes) > 0 {
		err = &job.FieldError{Field: "manifest.volumes", Problem: "has no meaning for a VM without a job", Remedy: "attach them once it runs"}
	}
	if err != nil {
		return m, err
	}
	if f.o.Allow != nil {
		s.Manifest = m
		s.Manifest.Task = "" // there is no command to check
		if err := f.o.Allow(s); err != nil {
			return m, err
		}
	}
	return m, f.Fits(ctx, m)
}

func madeAs(m job.Manifest, owner string, at time.Time) vm.Made {
	return vm.Made{
		Lifecycle: m.Lifecycle, Template: m.VMTemplate, OS: m.OS, Resources: m.Resources,
		IdleSuspend: m.IdleSuspend, AtEnd: m.AtEnd, Network: m.Network, Principal: owner, CreatedAt: at, Labels: m.Labels,
	}
}

// CancelVM ends the making of a requested VM; id is the ID in its marker. It returns
// job.ErrCompleted if the VM is made or a pool's.
func (f *Fleet) CancelVM(ctx context.Context, id string) error {
	v, err := f.o.Store.VM(ctx, id)
	switch {
	case err != nil:
		return err
	case v.Own == nil:
		return job.ErrNotFound
	case !v.AskedFor() || !v.BeingMade():
		return job.ErrCompleted
	}
	return f.discardOwn(ctx, id, "cancelled by request")
}

// PlanVM returns what CreateVM would do on the host, and changes nothing.
func (f *Fleet) PlanVM(ctx context.Context, s job.Submission) ([]string, error) {
	s.Manifest = s.Manifest.ForVM()
	m, err := f.completeVM(ctx, s)
	if err != nil {
		return nil, err
	}
	return f.Plan(ctx, m, s.Principal.Owner())
}

// noKey is a placeholder where no VM is created; nobody has its private key.
const noKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA none"

// Plan returns what creating a VM for a complete manifest would do, and changes nothing.
func (f *Fleet) Plan(ctx context.Context, m job.Manifest, owner string) ([]string, error) {
	j := job.Job{ID: "00000000-0000-7000-8000-000000000000", Principal: owner, Manifest: m}
	planned, err := f.pinned(ctx, j)
	if err != nil {
		return nil, err
	}
	spec, err := f.jobSpec(j, planned)
	if err == nil {
		spec.Volumes, err = f.volumesOf(ctx, m, owner)
	}
	if err != nil {
		return nil, err
	}
	spec.PublicKey = noKey
	if f.Spread() {
		want, err := f.Beside(ctx)
		if err != nil {
			return nil, err
		}
		want.Spec, want.Planned, want.Only = spec, true, planned.Node
		at, err := f.o.Placer.Place(ctx, want)
		if err != nil {
			return nil, neverFits(err)
		}
		spec.Node = at.Node
	}
	plan, err := f.o.Provider.Plan(ctx, spec)
	return plan, f.hideOthersName(ctx, owner, planned.Name, err)
}

// Fits returns an error if no node is known to ever be able to take the manifest's VM.
func (f *Fleet) Fits(ctx context.Context, m job.Manifest) error {
	if m.VM != "" {
		return nil
	}
	if err := f.hasAgent(ctx, m); err != nil {
		return err
	}
	spec, err := f.jobSpec(job.Job{Manifest: m}, vm.VM{})
	if err == nil && len(m.Volumes) > 0 {
		p, _ := job.PrincipalFrom(ctx)
		spec.Volumes, err = f.fitsVolumes(ctx, m, p.Owner())
	}
	if err != nil || f.o.Placer == nil {
		return err
	}
	return neverFits(f.o.Placer.Fits(ctx, spec))
}

// neverFits turns err into what is wrong with a manifest if no node can ever take its VM, however
// long it waits. It returns other errors unchanged.
func neverFits(err error) error {
	var none *job.NoRoomError
	if !errors.As(err, &none) || !none.Never() {
		return err
	}
	wrong := &job.FieldError{Field: "manifest", Problem: none.Error(), Remedy: "ask for what a node has, or have it set up on one"}
	only := func(reason job.RefusalReason) bool {
		return !slices.ContainsFunc(none.Refusals, func(r job.Refusal) bool { return r.Reason != reason })
	}
	switch {
	case only(job.RefusedMemory):
		wrong.Field, wrong.Remedy = "manifest.resources.memory", "ask for less memory"
	case only(job.RefusedTemplate):
		wrong.Field, wrong.Remedy = "manifest.vmTemplate", "use a template that a node has, or build this one"
	case only(job.RefusedVolume):
		wrong.Field, wrong.Remedy = "manifest.volumes", "use volumes of one node, or on a storage that the nodes have; linus volume list shows them"
	}
	return wrong
}
