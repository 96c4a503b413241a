package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// forkSnapshot is the name of the snapshot that a VM has on its host while it is copied.
const forkSnapshot = "linus-fork"

// forkPoll is the time between two looks at whether copies are made, perhaps by another engine.
const forkPoll = 250 * time.Millisecond

// ForkVM makes copies of a VM and returns when they accept logins. They are made like any requested
// VM once the host is ready for it (tendFork), even if the caller leaves or this engine ends.
func (f *Fleet) ForkVM(ctx context.Context, spec job.ForkSpec) (job.Forked, error) {
	of, err := f.findOpen(ctx, spec.VM)
	if err != nil {
		return job.Forked{}, err
	}
	of, done, err := f.use(ctx, of, listener(ctx))
	if err != nil {
		return job.Forked{}, err
	}
	copies, err := f.askForks(ctx, spec, of)
	done() // the VM is in use while it is copied
	if err != nil {
		return job.Forked{}, err
	}
	f.o.Log.Info("copies of a VM requested", "job_id", of.Job, "vm_id", of.ID, "count", len(copies), "client", job.ClientFrom(ctx))
	return f.awaitForks(ctx, of, copies, spec.Partial)
}

// askForks checks the request and stores the copies, of which nothing can exist yet.
func (f *Fleet) askForks(ctx context.Context, spec job.ForkSpec, of vm.VM) (copies []vm.VM, err error) {
	if status := f.vmStatus(ctx, of); status != vm.Running {
		remedy := "start it first"
		if status == vm.Suspended {
			remedy = "resume it first"
		}
		return nil, &job.FieldError{Field: "vm", Problem: fmt.Sprintf("VM %d does not run: it is %s", of.ID, status), Remedy: remedy, Fault: job.FaultState}
	}
	end, err := f.Decide(ctx) // no job may enter the VM, and no other VM may take one of the names
	if err != nil {
		return nil, err
	}
	defer end()
	of, err = f.openVM(ctx, spec.VM)
	if err == nil {
		err = f.checkNotForking(of)
	}
	if err == nil {
		err = f.idle(ctx, of, "forked")
	}
	if err != nil {
		return nil, err
	}
	if strings.Contains(of.Network.IP, "/") && !strings.Contains(of.Network.IP, "-") {
		return nil, &job.FieldError{
			Field: "vm", Problem: fmt.Sprintf("%q has the address %s, and so would its copies", of.Name, of.Network.IP), Remedy: "copy one whose network gives it an address, or a pool of them", Fault: job.FaultState,
		}
	}
	names, err := spec.Names(of.Name)
	if err != nil {
		return nil, err
	}
	p, _ := job.PrincipalFrom(ctx)
	s := job.Submission{Client: job.ClientFrom(ctx), Principal: p}
	var ids []string
	for _, name := range names {
		s.Manifest = job.Manifest{VMName: name, VMTemplate: of.Template, OS: of.OS, Resources: of.Resources, Network: of.Network, TTL: spec.TTL, Labels: of.Labels}.ForVM()
		if s.Manifest.TTL == 0 && !of.ExpiresAt.IsZero() {
			s.Manifest.TTL = max(60, int(of.ExpiresAt.Sub(now()).Seconds()))
		}
		if s.Manifest.TTL > 0 && !of.Meanwhile {
			s.Manifest.AtEnd = of.AtEnd
		}
		v, err := f.plannedFork(ctx, of, s, spec.Partial)
		if err != nil {
			return nil, renamedForFork(err)
		}
		copies, ids = append(copies, v), append(ids, v.Job)
	}
	// The VM's row is stored first: if the copies are not all stored with it, they are not wanted.
	if err := f.set(ctx, of.Job, func(v *vm.VM) { v.Forking = vm.Forking{IDs: ids} }); err != nil {
		return nil, err
	}
	for i, v := range copies {
		if err = f.Admit(ctx, s, s.Manifest); err == nil { // Admit counts the copies stored before
			_, _, err = f.o.Store.InsertVM(ctx, v, "", p.Limits)
		}
		if err != nil {
			return nil, errors.Join(err, f.dropForks(context.WithoutCancel(ctx), of.Job, copies[:i], "not all of them may be made"))
		}
	}
	f.DestroySoon()
	return copies, nil
}

// renamedForFork returns an error of a VM's manifest with the field names of a fork request.
func renamedForFork(err error) error {
	names := map[string]string{"manifest.vmName": "name", "manifest.ttl": "ttl"}
	var all *job.InvalidError
	if wrong, ok := errors.AsType[*job.FieldError](err); ok {
		all = &job.InvalidError{Fields: []*job.FieldError{wrong}}
	} else if all, ok = errors.AsType[*job.InvalidError](err); !ok {
		return err
	}
	for _, wrong := range all.Fields {
		if name := names[wrong.Field]; name != "" {
			named := *wrong
			named.Field = name
			return &named
		}
	}
	return err
}

// plannedFork returns the planned copy of a VM, if it is allowed.
func (f *Fleet) plannedFork(ctx context.Context, of vm.VM, s job.Submission, partial bool) (v vm.VM, err error) {
	m, err := s.Manifest.Complete(f.o.Defaults)
	if err == nil && f.o.Allow != nil {
		err = f.o.Allow(job.Submission{Client: s.Client, Principal: s.Principal, Manifest: m})
	}
	if err == nil {
		err = f.freeName(ctx, m.VMName, "", of.Principal)
	}
	if err != nil {
		return v, err
	}
	id, err := newID()
	return vm.VM{
		Job: id, Name: m.VMName, Owner: f.o.Owner, Node: of.Node, State: vm.Reserved, Source: vm.Forked, Kept: true, From: of.Job, Made: madeAs(m, of.Principal, now()),
		Own: &vm.Own{Client: s.Client, Token: s.Principal.Token, TTL: m.TTL, Sandbox: of.Sandbox(), Fork: &vm.Fork{Partial: partial, Proxy: of.ProxyOf()}},
	}, err
}

func (f *Fleet) checkNotForking(v vm.VM) error {
	if !v.Forking.Active() {
		return nil
	}
	problem := fmt.Sprintf("%q is being forked", v.Name)
	if v.Forking.Left != "" {
		problem += ", and its snapshot " + forkSnapshot + " could not be removed yet: " + v.Forking.Left
	}
	return &job.FieldError{Field: "vm", Problem: problem, Remedy: "try again when it is done", Fault: job.FaultState}
}

// dropForks gives copies of a VM up and ends the fork. Copies that are made stay if they are wanted
// without the others.
func (f *Fleet) dropForks(ctx context.Context, of string, copies []vm.VM, why string) error {
	for _, v := range copies {
		if v.Own.Fork.Partial && !v.Own.ReadyAt.IsZero() {
			continue
		}
		if err := f.giveForkUp(ctx, v, why); err != nil {
			return err
		}
	}
	return f.endForking(ctx, of)
}

func (f *Fleet) endForking(ctx context.Context, of string) error {
	return f.set(ctx, of, func(v *vm.VM) { v.Forking = vm.Forking{} })
}

// giveForkUp has a copy of a VM destroyed, or not made.
func (f *Fleet) giveForkUp(ctx context.Context, v vm.VM, why string) error {
	err := f.set(ctx, v.Job, func(v *vm.VM) {
		if v.Own.ReadyAt.IsZero() && v.Own.Failed == "" {
			v.Own.Failed = job.Bounded(why)
		}
	})
	if err != nil {
		return err
	}
	return f.discardOwn(ctx, v.Job, "given up: "+why)
}

// awaitForks waits until it is decided what happens to the copies, and returns that.
func (f *Fleet) awaitForks(ctx context.Context, of vm.VM, copies []vm.VM, partial bool) (out job.Forked, err error) {
	for {
		v, err := f.o.Store.VM(ctx, of.Job)
		if err != nil {
			return out, err
		}
		if !v.Forking.Has(copies[0].Job) || v.Forking.Left != "" || v.State.Settled() {
			break
		}
		// If no copy is made there is no more to report, however long the host is away.
		if none, err := f.noFork(ctx, copies); err != nil {
			return out, err
		} else if none {
			break
		}
		if err := sleep.For(ctx, forkPoll); err != nil {
			return out, fmt.Errorf("the copies are still being made: %w", err)
		}
	}
	for i, v := range copies {
		if copies[i], err = f.o.Store.VM(ctx, v.Job); err != nil {
			return out, err
		}
	}
	statuses, asked := f.statuses(ctx, copies...)
	for _, v := range copies {
		how := v.Own.Fork
		out.Live, out.Why, out.PauseMS = how.Live, how.Why, how.PauseMS
		if !v.Own.ReadyAt.IsZero() && !v.Unwanted {
			out.VMs = append(out.VMs, vmInfo(v, nil, statuses, asked))
		} else if v.Own.ReadyAt.IsZero() { // ready copies that were given up with it are not listed
			out.Failed = append(out.Failed, job.ForkError{Name: v.Name, Error: cmp.Or(v.Own.Failed, "it was cancelled")})
		}
	}
	if len(out.VMs) == len(copies) || partial && len(out.VMs) > 0 {
		return out, nil
	}
	failed := &job.HostError{Op: fmt.Sprintf("fork VM %d (%s)", of.ID, of.Name), Host: "node " + of.Node, Class: job.HostVM, Text: "its copies were destroyed", Remedy: "look at the node, then try again"}
	if len(out.Failed) > 0 {
		failed.Text = fmt.Sprintf("no copy was kept: %s: %s", out.Failed[0].Name, out.Failed[0].Error)
	}
	return job.Forked{}, failed
}

// noFork reports whether it is decided that no copy of a VM is made.
func (f *Fleet) noFork(ctx context.Context, copies []vm.VM) (bool, error) {
	for _, v := range copies {
		now, err := f.o.Store.VM(ctx, v.Job)
		if err != nil || now.BeingMade() || !now.Own.ReadyAt.IsZero() {
			return false, err
		}
	}
	return true, nil
}

// forksOf returns a VM and its copies as they are stored; whole reports whether all copies are stored.
func (f *Fleet) forksOf(ctx context.Context, id string) (of vm.VM, copies []vm.VM, whole bool, err error) {
	if of, err = f.o.Store.VM(ctx, id); err != nil {
		return of, nil, false, err
	}
	for _, id := range of.Forking.IDs {
		v, err := f.o.Store.VM(ctx, id)
		switch {
		case errors.Is(err, job.ErrNotFound):
		case err != nil:
			return of, nil, false, err
		default:
			copies = append(copies, v)
		}
	}
	return of, copies, len(copies) == len(of.Forking.IDs), nil
}

// tendFork takes the next step for the copies of a VM: it prepares the host, gives the copies up if
// one failed, and once none is being made, removes what they were made from. A step that fails is
// repeated at the next look, perhaps by the next engine.
func (f *Fleet) tendFork(ctx context.Context, id string) error {
	d, err := f.access.decide(ctx) // whoever requested the copies has stored them or is gone
	if err != nil {
		return err
	}
	of, copies, whole, err := f.forksOf(ctx, id)
	if err != nil || !of.Forking.Active() {
		d.end()
		return err
	}
	finished, err := d.begin(ctx, id, "forked")
	d.end()
	if err != nil {
		return err
	}
	defer finished()
	making := 0
	var failed *vm.VM
	for _, v := range copies {
		switch {
		case v.BeingMade():
			making++
		case v.Own.ReadyAt.IsZero() && failed == nil:
			failed = &v
		}
	}
	switch {
	case !whole:
		return f.dropForks(ctx, id, copies, "the engine ended before it had requested all of them")
	case of.State != vm.Created || of.Unwanted:
		return f.dropForks(ctx, id, copies, fmt.Sprintf("the original VM %d no longer exists", of.ID))
	case failed != nil && !failed.Own.Fork.Partial:
		for _, v := range copies {
			if v.Job != failed.Job && !v.Unwanted && !v.State.Settled() {
				if err := f.giveForkUp(ctx, v, fmt.Sprintf("%s could not be made: %s", failed.Name, failed.Own.Failed)); err != nil {
					return err
				}
			}
		}
	case !of.Forking.Begun && making > 0:
		return f.beginFork(ctx, of, copies)
	case making > 0:
		return nil
	}
	if err := f.o.Provider.EndFork(ctx, of); err != nil && f.vmStatus(ctx, of) != vm.Gone {
		if making > 0 { // some copies have only been told that they are not wanted
			return err
		}
		return errors.Join(err, f.tellLeft(ctx, of, err))
	}
	return f.endForking(ctx, id)
}

// tellLeft reports what is not done yet to whoever waits for copies, and in the VM's events.
func (f *Fleet) tellLeft(ctx context.Context, of vm.VM, why error) error {
	left := job.Bounded(why.Error())
	if ctx.Err() != nil || of.Forking.Left == left {
		return nil
	}
	_, err := f.update(ctx, of.Job, func(v *vm.VM) ([]job.Event, error) {
		v.Forking.Left = left
		return []job.Event{{Kind: job.EventWarning, Text: job.Bounded("its snapshot " + forkSnapshot + " is not removed, will be tried again: " + left)}}, nil
	})
	return err
}

// beginFork has the host prepared for the copies of a VM, and records how they are made.
func (f *Fleet) beginFork(ctx context.Context, of vm.VM, copies []vm.VM) error {
	at, err := f.o.Provider.ForkVM(ctx, of, silent)
	if ctx.Err() != nil {
		return err
	}
	for _, v := range copies {
		if err != nil {
			if failed := f.giveForkUp(ctx, v, err.Error()); failed != nil {
				return failed
			}
			continue
		}
		_, failed := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
			v.Own.Fork.Begun, v.Own.Fork.Live, v.Own.Fork.Why, v.Own.Fork.PauseMS = true, at.Live, at.Why, at.PauseMS
			return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: fmt.Sprintf("a copy of VM %s (%d), made %s", of.Name, of.ID, at.Text())}}, nil
		})
		if failed != nil {
			return failed
		}
	}
	_, failed := f.update(ctx, of.Job, func(v *vm.VM) (told []job.Event, _ error) {
		v.Forking.Begun = true
		if err == nil {
			told = []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("VM %d has %d copies made %s", of.ID, len(copies), at.Text())}}
		}
		return told, nil
	})
	f.DestroySoon()
	return failed
}

// copied is the way for copies of a VM whose host is ready.
func (f *Fleet) copied(ctx context.Context, o *makeRequest) (v vm.VM, made bool, err error) {
	own := o.planned.Own
	if own == nil || own.Fork == nil {
		return v, false, nil
	}
	of, err := f.o.Store.VM(ctx, o.planned.From)
	if err != nil {
		return v, false, err
	}
	o.from, o.spec.Fork = &of, job.ForkOf{VM: of.ID, Job: of.Job, Live: own.Fork.Live}
	o.spec.Template, o.spec.OS = "", "" // the template may be gone
	v, err = f.makeOne(ctx, *o)
	return v, err == nil, err
}
