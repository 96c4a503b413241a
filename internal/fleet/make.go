package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
	"linus/internal/vm"
)

// makeRequest describes a VM that is to be made.
type makeRequest struct {
	planned  vm.VM         // the VM as it is to be; its row may have it already, or more
	spec     job.VMSpec    // without the node
	start    job.StartMode // whether it may, or must, be restored from a checkpoint
	begun    bool          // making it may have begun before
	ttl      time.Duration // time until it expires; 0: it does not
	recorder recorder
	from     *vm.VM // the VM or checkpoint that it is copied or restored from; nil: it boots
}

// recorder records what happens to a VM that is being made, in its row or its job's. Its steps are
// reported to the context's listener.
type recorder interface {
	// Change changes the stored or else planned VM, and records events with it.
	Change(ctx context.Context, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// Wait records why the VM has no node yet; nil: it has one, or does not wait.
	Wait(ctx context.Context, full *job.NoRoomError) error
	// Told returns the recorded events.
	Told(ctx context.Context) ([]job.Event, error)
}

// way is a way to make a VM. If made is false, the next way is tried.
type way func(f *Fleet, ctx context.Context, o *makeRequest) (v vm.VM, made bool, err error)

// ways are tried in this order, for jobs and for VMs that no job makes: give a pool's VM to its
// requester, copy another VM, restore a similar VM from memory, boot.
var ways = []way{(*Fleet).given, (*Fleet).copied, (*Fleet).restored, (*Fleet).boots}

// make makes a VM and returns it as recorded.
func (f *Fleet) make(ctx context.Context, o makeRequest) (v vm.VM, err error) {
	for _, by := range ways {
		var made bool
		if v, made, err = by(f, ctx, &o); made || err != nil {
			break
		}
	}
	return v, f.hideOthersName(ctx, o.planned.Principal, o.planned.Name, err)
}

// boots is the way that is always available.
func (f *Fleet) boots(ctx context.Context, o *makeRequest) (v vm.VM, made bool, err error) {
	if v, err = f.makeOne(ctx, *o); err == nil {
		f.booted(v)
	}
	return v, err == nil, err
}

// makeOne makes a VM as requested. Its row says that it is intended, and on which node, before the VM
// can exist, and has its ID as soon as that is reserved. An earlier attempt is continued. If the host
// refuses before it changes anything, the row says that nothing exists: the VM is reserved again.
func (f *Fleet) makeOne(ctx context.Context, o makeRequest) (v vm.VM, err error) {
	if v, err = f.intend(ctx, o); err != nil || v.State == vm.Created {
		return v, err
	}
	if v.State.Settled() { // it became unwanted since it was read
		return v, context.Canceled
	}
	o.spec.Node = v.Node
	made, err := f.create(ctx, o, v.Job)
	if err != nil {
		return v, err
	}
	err = f.Accept(ctx, v.Job, made, func(ctx context.Context) error {
		_, err := o.recorder.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
			made.State, made.Source, made.Made, made.Member, made.Own, made.Checkpoint = vm.Created, vm.Cold, v.Made, v.Member, v.Own, v.Checkpoint
			if o.from != nil {
				made.Source, made.From = vm.Restored, v.From
			}
			if o.spec.Fork.VM != 0 {
				made.Source = vm.Forked
			}
			if o.ttl > 0 {
				made.ExpiresAt = now().Add(o.ttl)
			}
			if o.spec.Lease > 0 {
				made.LeaseUntil = now().Add(o.spec.Lease) // the lease was announced to the host before that
			}
			*v = made
			return nil, nil
		})
		return err
	})
	return made, err
}

// placeAgain is the time between two attempts to find a node for a VM, unless there is room
// earlier; reachAgain is the time between two attempts to reach the hosts.
const (
	placeAgain = 10 * time.Second
	reachAgain = time.Second
)

// intend records that a VM is to exist, and on which node, before it can exist. If no node can take
// it now, it waits. Hosts that cannot be reached are given up Patience after the first attempt;
// waiting before that, for other VMs to be placed, does not count.
func (f *Fleet) intend(ctx context.Context, o makeRequest) (vm.VM, error) {
	var away time.Time // since when the hosts have not been reached
	for {
		room := f.Room()
		v, err := f.tryIntend(ctx, o)
		var full *job.NoRoomError
		pause := placeAgain
		switch {
		case errors.As(err, &full) && !full.Never() && o.from == nil:
			away = time.Time{}
			if err := o.recorder.Wait(ctx, full); err != nil {
				return v, err
			}
		case job.IsClass(err, job.HostUnreachable) && (away.IsZero() || time.Since(away) < f.o.Patience):
			if away.IsZero() {
				away = time.Now()
				job.Waits(ctx, "the host", err, away.Add(f.o.Patience))
			}
			pause = reachAgain
		default:
			_ = o.recorder.Wait(ctx, nil) // writes nothing
			return v, err
		}
		select {
		case <-room:
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
	}
}

func (f *Fleet) tryIntend(ctx context.Context, o makeRequest) (v vm.VM, err error) {
	record := func(at job.Placed) error {
		v, err = o.recorder.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
			if !v.State.Planned() {
				return nil, nil
			}
			member, own := v.Member, v.Own
			*v = o.planned
			if v.State, v.Node, v.Member, v.Own = vm.Intended, at.Node, member, own; own != nil {
				own.Waits = ""
			}
			if at.Node == "" {
				return nil, nil
			}
			return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: "on node " + at.Node + ": " + at.Why}}, nil
		})
		return err
	}
	if !f.Spread() || !o.planned.State.Planned() {
		return v, record(job.Placed{})
	}
	only := o.planned.Node
	if o.from != nil {
		only = o.from.Node
	}
	err = f.Choose(ctx, o.spec, only, record)
	return v, err
}

// createTries is how often the creation of a VM is begun: a host may restart in the middle of it, and again.
const createTries = 5

// create creates a VM and records the provider's progress. If an earlier attempt is in the way,
// create removes what that left and begins again.
func (f *Fleet) create(ctx context.Context, o makeRequest, id string) (v vm.VM, err error) {
	told := map[job.Event]bool{}
	if o.begun { // a create that is joined reports all of its steps again
		events, err := o.recorder.Told(ctx)
		if err != nil {
			return v, err
		}
		for _, e := range events {
			told[job.Event{Kind: e.Kind, Phase: e.Phase, Text: e.Text}] = true
		}
	}
	tries := 1
	for ; ; tries++ {
		v, err = f.o.Provider.Create(ctx, o.spec, func(p job.Progress) { f.tell(ctx, o, p, told) })
		if tries == createTries || !begunBefore(err) {
			break
		}
		removed, clearErr := f.removeAttempt(ctx, o, id)
		if clearErr != nil {
			return vm.VM{}, clearErr
		}
		if !removed && job.IsClass(err, job.HostExists) { // the VM is somebody else's
			break
		}
		f.o.Log.Warn("creation of the VM starts over", "job_id", id, "attempt", tries+1, "err", err)
		told = nil
	}
	if refused(err) && v.ID == 0 && tries == 1 && !o.begun {
		_, noteErr := o.recorder.Change(context.WithoutCancel(ctx), quietly(func(v *vm.VM) {
			if v.State = vm.Reserved; o.spec.Checkpoint != 0 {
				v.From = ""
			}
		}))
		err = errors.Join(err, noteErr)
	}
	return v, err
}

// refused reports whether the host refused a create before it changed anything.
func refused(err error) bool {
	host, ok := errors.AsType[*job.HostError](err)
	return ok && host.NoVM
}

// tell records a step that is not recorded yet, and at once the VM's ID when there is one.
func (f *Fleet) tell(ctx context.Context, o makeRequest, p job.Progress, told map[job.Event]bool) {
	ctx = context.WithoutCancel(ctx)
	if p.VMID != 0 {
		if _, err := o.recorder.Change(ctx, quietly(func(v *vm.VM) { v.ID = p.VMID })); err != nil {
			f.o.Log.Error("record a VM's ID failed", "job_id", o.planned.Job, "err", err)
		}
	}
	if event := p.Event(); event != (job.Event{}) && !told[event] {
		job.Tell(ctx, p)
	}
}

// removeAttempt removes what an earlier attempt to create a VM may have left unrecorded, and
// reports whether there was something. What does not belong to the VM stays.
func (f *Fleet) removeAttempt(ctx context.Context, o makeRequest, id string) (removed bool, err error) {
	v, err := f.o.Store.VM(ctx, id)
	if err != nil {
		return false, err
	}
	if removed, err = f.clear(ctx, v); err != nil {
		return false, fmt.Errorf("remove what an earlier attempt left: %w", err)
	}
	// The ID belonged to what was removed. Until the next one is reported, the VM is found by its marker.
	_, err = o.recorder.Change(ctx, quietly(func(v *vm.VM) { v.ID = 0 }))
	return removed, err
}

// begunBefore reports whether a create failed because of the remains of an earlier one, or because
// its host restarted, and may succeed once the remains are removed.
func begunBefore(err error) bool {
	return job.IsClass(err, job.HostExists) || job.IsClass(err, job.HostInterrupted)
}

// clear removes what a create has left, or only ends its operation if nothing was made. It waits
// for nodes that are away.
func (f *Fleet) clear(ctx context.Context, v vm.VM) (removed bool, err error) {
	timed, end := context.WithTimeout(ctx, f.o.Patience)
	defer end()
	_ = patience.Retry(timed, func() error {
		if v.State.Planned() {
			err = f.o.Provider.Destroy(ctx, v) // without an ID
		} else {
			removed, err = f.Remove(ctx, v)
		}
		if job.IsClass(err, job.HostUnreachable) || job.IsClass(err, job.HostOffline) {
			return err
		}
		return nil
	})
	return removed, err
}
