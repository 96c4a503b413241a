package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// SetVM changes what a VM reaches, and when it is suspended or destroyed. Its idle time and its ttl
// start again. A VM that is suspended because it was idle is still resumed by its next use.
func (f *Fleet) SetVM(ctx context.Context, ref string, change job.VMChange) (job.VMInfo, error) {
	if err := change.Check(); err != nil {
		return job.VMInfo{}, err
	}
	if change.Network != nil {
		if err := f.setNetwork(ctx, ref, change); err != nil {
			return job.VMInfo{}, err
		}
	}
	v, err := f.setVM(ctx, ref, change)
	if err != nil {
		return job.VMInfo{}, err
	}
	if change.TTL != nil || change.AtEnd != nil {
		if err := f.tellUnwanted(ctx); err != nil { // the leader looks when the next VM expires
			return job.VMInfo{}, err
		}
		f.keepLeases(ctx, []vm.VM{v})
	}
	return f.infoOf(ctx, v.Job)
}

func (f *Fleet) setVM(ctx context.Context, ref string, change job.VMChange) (v vm.VM, err error) {
	d, err := f.access.decide(ctx)
	if err != nil {
		return v, err
	}
	defer d.end()
	if v, err = f.findOpen(ctx, ref); err != nil {
		return v, err
	}
	return f.update(ctx, v.Job, func(v *vm.VM) (events []job.Event, _ error) {
		if v.Unwanted {
			return nil, noVM(v.Name, "is being destroyed")
		}
		for _, text := range []string{setIdle(v, change.IdleSuspend), setEnd(v, change)} {
			if text != "" {
				events = append(events, job.Event{Kind: job.EventProgress, Text: text})
			}
		}
		return events, nil
	})
}

// setIdle changes a VM's idle time and returns the text to report, if any.
func setIdle(v *vm.VM, idle *int) string {
	if idle == nil || v.IdleSuspend == *idle {
		return ""
	}
	v.IdleSuspend, v.UsedAt = *idle, now()
	if v.Naps() {
		return fmt.Sprintf("VM %d will be suspended whenever it is not used for %s", v.ID, v.IdleTime())
	}
	return fmt.Sprintf("VM %d is no longer suspended when idle", v.ID)
}

// setEnd changes when a VM's time is over and what happens to it then. It returns the text to
// report; changes of less than a minute, as programs make them, are not reported.
func setEnd(v *vm.VM, change job.VMChange) string {
	was := *v
	if change.TTL != nil {
		v.KeptOf = change.KeptOf // empty: somebody wants this VM
		v.ExpiresAt = time.Time{}
		if *change.TTL > 0 {
			v.ExpiresAt = now().Add(seconds(*change.TTL))
		}
	}
	if change.KeptOf != "" {
		v.KeptMost, v.UsedAt = cmp.Or(change.KeptMost, job.DefaultKeep), now()
	}
	if change.AtEnd != nil {
		v.Meanwhile = change.Meanwhile && (v.AtEnd != vm.EndSuspend || v.Meanwhile)
		v.AtEnd = *change.AtEnd
	}
	switch {
	case v.ExpiresAt.IsZero() && !was.ExpiresAt.IsZero():
		return fmt.Sprintf("VM %d no longer has a time limit, and stays", v.ID)
	case v.ExpiresAt.IsZero() || v.ExpiresAt.Sub(was.ExpiresAt).Abs() < time.Minute && v.Expires() == was.Expires():
		return ""
	case v.Expires():
		return fmt.Sprintf("VM %d is destroyed after %s, once no job runs in it", v.ID, v.ExpiresAt.Format(time.RFC3339))
	}
	return fmt.Sprintf("VM %d is suspended after %s, once no job runs in it", v.ID, v.ExpiresAt.Format(time.RFC3339))
}

// over reports whether a VM's time is over, according to its freshly read row.
func over(v vm.VM) bool { return !v.ExpiresAt.IsZero() && !now().Before(v.ExpiresAt) }

// noteNextEnd records when the next VM's time is over, of the VMs that this engine is to end.
func (f *Fleet) noteNextEnd(vms []vm.VM, leads bool) {
	var next time.Time
	for _, v := range vms {
		if leads && v.Kept && v.Stays() && !v.ExpiresAt.IsZero() && !over(v) && (next.IsZero() || v.ExpiresAt.Before(next)) {
			next = v.ExpiresAt
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextEnd = next
}

// untilNextEnd returns the time until the next VM's end, or CleanupInterval if there is none.
func (f *Fleet) untilNextEnd() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nextEnd.IsZero() {
		return f.o.CleanupInterval
	}
	return f.nextEnd.Sub(now())
}

// tooMany returns the VMs that are kept beyond what their queues may have, by the ID in their marker.
func tooMany(vms []vm.VM) map[string]bool {
	vms = slices.DeleteFunc(slices.Clone(vms), func(v vm.VM) bool { return v.KeptOf == "" || !v.Kept || !v.Stays() })
	slices.SortFunc(vms, func(a, b vm.VM) int { return b.UsedAt.Compare(a.UsedAt) })
	kept, many := map[[2]string]int{}, map[string]bool{}
	for _, v := range vms {
		of := [2]string{v.OwnedBy(), v.KeptOf}
		kept[of]++
		many[v.Job] = kept[of] > v.KeptMost
	}
	return many
}

// expire destroys or suspends the persistent VMs whose time is over and in which no job runs, and
// destroys the VMs of which too many are kept.
func (f *Fleet) expire(ctx context.Context) error {
	if !job.Leads(ctx, f.o.Engines, f.o.Log) {
		return nil
	}
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return err
	}
	expiring, many := 0, tooMany(vms)
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.expiring = expiring
	}()
	for _, v := range vms {
		if v.ExpiresAt.IsZero() || !v.Stays() {
			continue
		}
		expiring++
		if !v.Kept || v.BeingMade() || !over(v) && !many[v.Job] {
			continue
		}
		var busy *job.FieldError
		switch work := "end of " + v.Job; {
		case many[v.Job]:
			text := fmt.Sprintf("destroyed: only %d VMs are kept for %s, and it was the least recently used", v.KeptMost, v.KeptOf)
			if err := f.discardIf(ctx, v, text, func(v vm.VM) bool { return v.KeptOf != "" }); err != nil && !errors.As(err, &busy) {
				return err
			}
		case v.Expires():
			if err := f.discardIf(ctx, v, "destroyed: its ttl has expired", over); err != nil && !errors.As(err, &busy) {
				return err
			}
		case f.reaper.begin(work):
			f.background.Go(func() {
				defer f.reaper.end(work)
				if err := f.suspendAtEnd(ctx, v); err != nil && ctx.Err() == nil && !errors.As(err, &busy) {
					f.o.Log.Warn("suspending a VM whose time is over failed, will be tried again", "job_id", v.Job, "vm_id", v.ID, "err", err)
				}
			})
		}
	}
	return nil
}

// errMoreTime: somebody has extended a VM's time meanwhile.
var errMoreTime = errors.New("it has more time")

// suspendAtEnd suspends a VM whose time is over, or stops a sandbox that forgets what runs in it;
// the VM then has no end time any more. It can be repeated after an interruption: a VM that is
// already off stays as it is.
func (f *Fleet) suspendAtEnd(ctx context.Context, v vm.VM) error {
	status, err := f.o.Provider.Status(ctx, v)
	if err != nil {
		return err
	}
	if status == vm.Running {
		f.o.Guest.Forget(asJob(v))
		end := vm.Suspended
		if of := v.Sandbox(); of != nil && of.Forgets {
			end = vm.Stopped
		}
		_, err := f.exclusive(ctx, v.Job, string(end), true, func(ctx context.Context, v vm.VM) error {
			row, err := f.o.Store.VM(ctx, v.Job)
			if err != nil {
				return err
			}
			if !over(row) {
				return errMoreTime
			}
			if end == vm.Stopped {
				return f.o.Provider.StopVM(ctx, v)
			}
			return f.storing(ctx, v, "", func() error { return f.o.Provider.SuspendVM(ctx, v) })
		})
		if errors.Is(err, errMoreTime) {
			return nil
		}
		if err != nil {
			return err
		}
		status = end
	}
	if !status.Down() { // it is not known to be off, and keeps its end time
		return fmt.Errorf("its status on the host is %s", status)
	}
	_, err = f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		if !over(*v) {
			return nil, nil
		}
		v.ExpiresAt = time.Time{}
		if v.SuspendedAt.IsZero() {
			v.Off = status // an engine may have ended before it recorded that
		}
		return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("VM %d is %s: its ttl has expired; it stays so until it is resumed or destroyed", v.ID, status)}}, nil
	})
	return err
}

// keepLeases tells the hosts when to end VMs if no engine does, where that differs from what they
// were last told. The next look retries what fails.
func (f *Fleet) keepLeases(ctx context.Context, vms []vm.VM) {
	var watched []job.Watched
	for _, v := range vms {
		if w, other := f.leaseOf(v); other {
			watched = append(watched, w)
		}
	}
	if len(watched) == 0 {
		return
	}
	asked := now()
	room, err := f.o.Provider.Room(ctx, nil, watched)
	for _, w := range watched {
		if err != nil || room.Leases[w.VM.Job] != job.LeaseRenewed {
			continue
		}
		err = f.set(ctx, w.VM.Job, func(v *vm.VM) {
			v.LeaseUntil = time.Time{}
			if !w.Never {
				v.LeaseUntil = asked.Add(w.Renew)
			}
		})
	}
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("leases of VMs could not be updated yet", "vms", len(watched), "err", err)
	}
}

// leaseOf returns the lease that a VM should have now; other reports whether it differs enough from
// the current one to be worth a call: a lease ends long after its VM's time.
func (f *Fleet) leaseOf(v vm.VM) (w job.Watched, other bool) {
	if f.o.Lease == 0 || v.Member != nil || !v.Kept || !v.Stays() || v.BeingMade() {
		return w, false
	}
	if !v.Expires() {
		return job.Watched{VM: v, Never: true}, !v.LeaseUntil.IsZero()
	}
	until := v.ExpiresAt.Add(f.o.Lease)
	near := min(leaseRenew, f.o.Lease/2)
	return job.Watched{VM: v, Renew: until.Sub(now())}, until.After(now()) && (v.LeaseUntil.IsZero() || until.Sub(v.LeaseUntil).Abs() > near)
}
