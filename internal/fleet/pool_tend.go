package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Limits of tending pools. Pressure is PSI's some avg10 of the host's memory, in percent.
const (
	makersAtOnce   = 2                // members of all pools being made: jobs create VMs too
	pressurePauses = 10               // above it, no member is made
	pressureEases  = 20               // above it, idle members are given up, one per reading
	pingTime       = 10 * time.Second // for an idle member to answer
	pingsMissed    = 2                // in a row, until a running member is given up
)

// tendPools keeps the pools as wanted until ctx ends. Each round compares what is wanted with what
// there is, and can be repeated after an interruption at any instant.
func (f *Fleet) tendPools(ctx context.Context) {
	tick := time.NewTicker(f.o.PoolInterval)
	defer tick.Stop()
	for {
		if err := f.tend(ctx); err != nil && ctx.Err() == nil {
			f.o.Log.Error("tend the pools failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-f.pools.wake:
		}
	}
}

// followPools is tend for an engine that does not lead: it only learns what it can give to its jobs.
func (f *Fleet) followPools(ctx context.Context) error {
	rows, err := f.loadPools(ctx)
	if err != nil || len(rows) == 0 {
		return err
	}
	f.readRoom(ctx, rows, nil)
	return nil
}

func (f *Fleet) tend(ctx context.Context) error {
	if !job.Leads(ctx, f.o.Engines, f.o.Log) {
		return f.followPools(ctx)
	}
	all, err := f.o.Store.Members(ctx)
	if err != nil {
		return err
	}
	f.pools.mu.Lock()
	f.pools.members = len(all)
	f.pools.mu.Unlock()
	members := slices.DeleteFunc(slices.Clone(all), func(m vm.VM) bool { return !f.reconcile(ctx, m) })
	rows, err := f.loadPools(ctx) // including the failures that were just noted
	if err != nil || len(rows)+len(all) == 0 {
		return err
	}
	host := f.readRoom(ctx, rows, all)
	if host.known {
		f.ping(ctx, members)
	}
	for _, m := range members {
		if !slices.ContainsFunc(rows, func(p job.Pool) bool { return p.Name == m.Member.Pool }) {
			f.giveUp(ctx, m, "its pool was removed")
		}
	}
	for _, p := range rows {
		own := slices.DeleteFunc(slices.Clone(members), func(m vm.VM) bool { return m.Member.Pool != p.Name })
		f.tendPool(ctx, p, own, host)
	}
	if host.known && host.Pressure > pressureEases {
		f.ease(ctx, members, host)
	}
	return nil
}

// reconcile updates a member whose state has led to a result, and reports whether the pool still
// counts on the member: it is being made, or idle.
func (f *Fleet) reconcile(ctx context.Context, m vm.VM) bool {
	switch m.Member.State {
	case vm.MemberMaking:
		f.pools.mu.Lock()
		busy := f.pools.busy[m.Job]
		f.pools.mu.Unlock()
		switch {
		case busy || !m.State.Settled() && (m.Own.ReadyAt.IsZero() || m.Unwanted):
			return true
		case m.Stays():
			f.giveUp(ctx, m, "suspending it was interrupted")
		default:
			if m.Own.Failed != "" {
				f.noteFailure(ctx, m, m.Own.Failed, false)
			}
			f.giveUp(ctx, m, "it could not be made")
		}
	case vm.MemberWarm, vm.MemberHibernated:
		return true
	case vm.MemberClaimed:
		if held, _, err := f.holds(ctx, m.Member.Claimer, m); err == nil && !held {
			f.giveUp(ctx, m, "its job has ended")
		}
	case vm.MemberDoomed:
		if !m.Unwanted && !m.State.Settled() { // it became ready meanwhile
			f.giveUp(ctx, m, m.Member.Why)
		}
	}
	return false
}

// tendPool brings one pool closer to what is wanted.
func (f *Fleet) tendPool(ctx context.Context, p job.Pool, own []vm.VM, host room) {
	generation := host.Generations[p.Origin()]
	var warm, hibernated, making []vm.VM
	for _, m := range own {
		if why := outdated(p, m, generation); why != "" && m.Member.State.Idle() {
			f.giveUp(ctx, m, why)
			continue
		}
		switch m.Member.State {
		case vm.MemberWarm:
			warm = append(warm, m)
		case vm.MemberHibernated:
			hibernated = append(hibernated, m)
		case vm.MemberMaking:
			making = append(making, m)
		}
	}
	p = f.forgive(ctx, p, own, generation)
	want, asleep := p.PoolSize, p.IdleLimit > 0 && now().Sub(p.AskedAt) > seconds(p.IdleLimit)
	if asleep {
		want.Warm, want.Hibernated = 0, 0
	}
	if host.known && f.mayTry(p) && len(warm) > want.Warm && len(hibernated)+f.suspending(making) < want.Hibernated {
		if f.hibernate(ctx, warm[0]) {
			making = append(making, warm[0])
		}
		warm = warm[1:]
	}
	hibernated = f.shrink(ctx, hibernated, want.Hibernated)
	warm = f.shrink(ctx, warm, want.Warm+want.Hibernated-len(hibernated))
	making = f.shrink(ctx, making, max(0, want.Warm+want.Hibernated-len(warm)-len(hibernated)))
	missing := want.Warm + want.Hibernated - len(warm) - len(hibernated) - len(making)
	if p.Failure != nil {
		missing = min(missing, max(0, 1-len(making))) // one, to see whether it can be made now
	}
	var waiting []vm.VM
	for _, m := range making {
		switch {
		case !m.Own.ReadyAt.IsZero() || m.Unwanted || f.isMaking(m.Job):
		case m.State == vm.Reserved:
			waiting = append(waiting, m)
		default: // an engine that has ended began it
			f.begin(ctx, m)
		}
	}

	state := "ready"
	switch {
	case asleep:
		state = "asleep: no job has asked for a while; the next one wakes it"
	case missing+len(waiting) > 0:
		if state = f.unready(ctx, p, host, generation); state == "" {
			state = filling
			f.refill(ctx, p, host, generation, missing, waiting)
		}
	case len(making) > 0:
		state = filling
	}
	f.pools.mu.Lock()
	defer f.pools.mu.Unlock()
	f.pools.states[p.Name] = state
}

// outdated returns why an idle member may no longer be given to a job; empty: it may.
func outdated(p job.Pool, m vm.VM, generation string) string {
	switch {
	case generation != "" && m.Member.Generation != generation:
		return p.Origin().String() + ", or a setting, has changed"
	case now().Sub(m.CreatedAt) > seconds(p.MaxAge):
		return "it is as old as a member may be"
	case !m.Stays():
		return "its VM is to be destroyed"
	}
	return ""
}

// shrink gives up the oldest members of a list beyond the wanted number, and returns the rest.
func (f *Fleet) shrink(ctx context.Context, members []vm.VM, wanted int) []vm.VM {
	for len(members) > wanted {
		f.giveUp(ctx, members[0], "the pool keeps fewer")
		members = members[1:]
	}
	return members
}

// unready returns why no member of a pool can be made now; empty: one can.
func (f *Fleet) unready(ctx context.Context, p job.Pool, host room, generation string) string {
	memory := job.SizeMB(p.Resources.Memory)
	begun := f.creating(ctx)
	spoken := spokenFor(begun)
	committed, err := f.committed(ctx, begun)
	if err != nil {
		return "paused: " + err.Error()
	}
	switch {
	case !host.known:
		return "paused: the host does not answer: " + host.why
	case generation == "":
		return "paused: " + p.Origin().String() + " is not on the host"
	case !f.mayTry(p): // if the pool has stopped, its row says so
		return "waiting after a failure: " + p.Failure.Error
	case f.jobsWait():
		return "paused: jobs wait, and go first"
	case host.Pressure > pressurePauses:
		return fmt.Sprintf("paused: the host is short of memory (pressure %.0f %%)", host.Pressure)
	case host.FreeMB-spoken-memory < host.ReserveMB():
		return fmt.Sprintf("paused: a member takes %d MiB, and the host has %d MiB free, of which %d MiB stay free and %d MiB are for VMs being created",
			memory, host.FreeMB, host.ReserveMB(), spoken)
	case !f.Spread() && committed+memory > host.TotalMB-host.ReserveMB(): // else memory is counted per node
		return fmt.Sprintf("paused: a member takes %d MiB, and of the host's %d MiB %d MiB are promised to VMs of linus and %d MiB stay free; make the pool smaller, or give its VMs less memory",
			memory, host.TotalMB, committed, host.ReserveMB())
	}
	return ""
}

// committed returns the memory, in MiB, that existing VMs may take, used or not, plus that of the
// VMs that this engine is about to make; hibernated VMs take none. begun are the VMs that were
// being made when it was read: those that have a node now are among the existing VMs, too.
func (f *Fleet) committed(ctx context.Context, begun []vm.Making) (int, error) {
	vms, err := f.o.Store.VMs(ctx)
	total := 0
	for _, v := range vms {
		begun = slices.DeleteFunc(begun, func(of vm.Making) bool { return of.ID == v.Job })
		hibernated := v.Member != nil && v.Member.State == vm.MemberHibernated
		if (v.State == vm.Intended || v.State == vm.Created) && !hibernated {
			total += job.SizeMB(v.Resources.Memory)
		}
	}
	for _, of := range begun {
		total += of.MemoryMB
	}
	return total, err
}

// spokenFor returns the memory, in MiB, of VMs that are being created and may not have taken it
// yet. A pool's VM counts, unless it waits for a node.
func spokenFor(begun []vm.Making) int {
	total := 0
	for _, of := range begun {
		if of.Begun || of.Pool != "" && !of.Waits {
			total += of.MemoryMB
		}
	}
	return total
}

// refill begins to make members, as long as one can be made, which is known of the first: first the
// reserved members, then new ones. A member is stored before anything of it can exist.
func (f *Fleet) refill(ctx context.Context, p job.Pool, host room, generation string, missing int, waiting []vm.VM) {
	for n := range len(waiting) + max(0, missing) {
		if f.makesEnough(p.Name) || n > 0 && f.unready(ctx, p, host, generation) != "" {
			return
		}
		if n < len(waiting) {
			f.begin(ctx, waiting[n])
			continue
		}
		v, err := f.reserve(ctx, p, generation)
		if err != nil {
			if ctx.Err() == nil {
				f.o.Log.Error("store a pool's new member failed", "pool", p.Name, "err", err)
			}
			return
		}
		f.begin(ctx, v)
	}
}

// makesEnough reports whether no more members of a pool are to be made now: one of them waits for a
// node, or enough members of all pools are being made.
func (f *Fleet) makesEnough(pool string) bool {
	n := 0
	for _, of := range f.beingMade() {
		switch {
		case of.Pool == "": // requested by somebody
		case !of.Waits:
			n++
		case of.Pool == pool:
			return true
		}
	}
	return n >= makersAtOnce
}

// errChanged: a member is no longer in the state that a decision was based on.
var errChanged = errors.New("the member's state has changed")

// doom has a member destroyed if it is still in that state. The decision survives this process. If
// the member is being made, that is stopped.
func (f *Fleet) doom(ctx context.Context, id string, state vm.MemberState, why string) error {
	v, err := f.update(ctx, id, func(v *vm.VM) ([]job.Event, error) {
		if v.Member == nil || v.Member.State != state {
			return nil, errChanged
		}
		v.Member.Become(vm.MemberDoomed, now())
		v.Member.Why = why
		v.Unwanted = true
		if v.State == vm.Reserved { // nothing can exist yet
			v.State = vm.Destroyed
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: "the pool gives it up: " + why}}, nil
	})
	if errors.Is(err, errChanged) {
		return nil
	}
	if err != nil {
		return err
	}
	f.o.Log.Info("pool gives up a member", "pool", v.Member.Pool, "job_id", id, "was", state, "why", why)
	f.stopMaking(id)
	return f.tellUnwanted(ctx)
}

// giveUp is doom for a member as it was just read.
func (f *Fleet) giveUp(ctx context.Context, m vm.VM, why string) {
	if err := f.doom(ctx, m.Job, m.Member.State, why); err != nil && ctx.Err() == nil {
		f.o.Log.Error("giving up a pool's member failed", "job_id", m.Job, "err", err)
	}
}

// ease gives up the oldest warm member, once per reading of the host's pressure.
func (f *Fleet) ease(ctx context.Context, members []vm.VM, host room) {
	f.pools.mu.Lock()
	done := f.pools.eased.Equal(host.at)
	f.pools.eased = host.at
	f.pools.mu.Unlock()
	at := slices.IndexFunc(members, func(m vm.VM) bool { return m.Member.State == vm.MemberWarm })
	if !done && at >= 0 {
		f.giveUp(ctx, members[at], fmt.Sprintf("the host is short of memory (pressure %.0f %%)", host.Pressure))
	}
}

// offering returns the pools whose VMs match a job's manifest.
func (f *Fleet) offering(m job.Manifest) []job.Pool {
	return f.poolsThat(func(p job.Pool) bool { return p.Offers(m) })
}

// poolsThat returns the pools for which do returns true.
func (f *Fleet) poolsThat(do func(job.Pool) bool) []job.Pool {
	f.pools.mu.Lock()
	rows := slices.Clone(f.pools.rows)
	f.pools.mu.Unlock()
	return slices.DeleteFunc(rows, func(p job.Pool) bool { return !do(p) })
}

// Pick returns the index of the member that a job of this manifest gets, or -1: the oldest warm member,
// or else the oldest hibernated one, of the pool's current generation and on a node that it may be on.
func (f *Fleet) Pick(p job.Pool, m job.Manifest, on func(node string) bool, idle []vm.VM) int {
	return pick(p, m, on, idle, f.pools.generation(p))
}

// pick is Pick with the pool's current generation; empty: unknown.
func pick(p job.Pool, m job.Manifest, on func(node string) bool, idle []vm.VM, generation string) int {
	fits := func(v vm.VM, state vm.MemberState) bool {
		return v.Member.State == state && v.Stays() && generation != "" && v.Member.Generation == generation &&
			on(v.Node) && now().Sub(v.CreatedAt) < seconds(p.MaxAge) &&
			(v.Member.LeaseUntil.IsZero() || v.Member.LeaseUntil.After(now().Add(seconds(m.Timeout)))) &&
			(len(m.Secrets)+len(m.Credentials) == 0 || v.HostKey != "")
	}
	for _, state := range []vm.MemberState{vm.MemberWarm, vm.MemberHibernated} {
		if at := slices.IndexFunc(idle, func(v vm.VM) bool { return fits(v, state) }); at >= 0 {
			return at
		}
	}
	return -1
}
