package executor

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

// How pools are tended. Pressure is PSI's some avg10 of the host's memory, in percent.
const (
	makersAtOnce   = 2                // members being made, of all pools: jobs create VMs too
	pressurePauses = 10               // above it no member is made
	pressureEases  = 20               // above it idle members are given up, one per reading
	pingTime       = 10 * time.Second // for an idle member to answer
	pingsMissed    = 2                // in a row, until a member that runs is given up
)

// tendPools keeps the pools as they are wanted. Each round compares what is wanted with
// what there is, and can be repeated after an interruption at any instant.
func (e *Executor) tendPools(ctx context.Context) {
	tick := time.NewTicker(e.o.PoolInterval)
	defer tick.Stop()
	for {
		if err := e.tend(ctx); err != nil && ctx.Err() == nil {
			e.o.Log.Error("tend the pools failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.pools.wake:
		}
	}
}

// followPools is tend for an engine that does not lead: it only knows what it can give
// to its jobs.
func (e *Executor) followPools(ctx context.Context) error {
	rows, err := e.loadPools(ctx)
	if err != nil || len(rows) == 0 {
		return err
	}
	e.readRoom(ctx, rows, nil)
	return nil
}

func (e *Executor) tend(ctx context.Context) error {
	if !e.leads(ctx) {
		return e.followPools(ctx)
	}
	all, err := e.o.Pools.Members(ctx)
	if err != nil {
		return err
	}
	e.pools.mu.Lock()
	e.pools.members = len(all)
	e.pools.mu.Unlock()
	members := slices.DeleteFunc(slices.Clone(all), func(m job.Job) bool { return !e.reconcile(ctx, m) })
	rows, err := e.loadPools(ctx) // with the failures that were just noted
	if err != nil || len(rows)+len(all) == 0 {
		return err
	}
	host := e.readRoom(ctx, rows, all)
	if host.known {
		e.ping(ctx, members)
	}
	for _, m := range members {
		if !slices.ContainsFunc(rows, func(p job.Pool) bool { return p.Name == m.Member.Pool }) {
			e.giveUp(ctx, m, "its pool was removed")
		}
	}
	for _, p := range rows {
		own := slices.DeleteFunc(slices.Clone(members), func(m job.Job) bool { return m.Member.Pool != p.Name })
		e.tendPool(ctx, p, own, host)
	}
	if host.known && host.Pressure > pressureEases {
		e.ease(ctx, members, host)
	}
	return nil
}

// reconcile takes a member on whose state has a result by now, and reports whether the
// pool still counts on it: it is being made, or idle.
func (e *Executor) reconcile(ctx context.Context, m job.Job) bool {
	switch m.Member.State {
	case job.MemberMaking:
		e.pools.mu.Lock()
		busy := e.pools.busy[m.ID]
		e.pools.mu.Unlock()
		switch {
		case !m.Done() || busy:
			return true
		case m.KeepsVM():
			e.giveUp(ctx, m, "suspending it was interrupted")
		default:
			if m.Outcome.Reason != job.ReasonCancelled && m.Outcome.Reason != job.ReasonKilled {
				e.noteFailure(ctx, m, m.Outcome.Error, false)
			}
			e.giveUp(ctx, m, "it could not be made")
		}
	case job.MemberWarm, job.MemberHibernated:
		return true
	case job.MemberClaimed:
		j, err := e.o.Jobs.Job(ctx, m.Member.Claimer)
		if errors.Is(err, job.ErrNotFound) || err == nil && (j.Done() || j.VM == nil || j.VM.Job != m.ID) {
			e.giveUp(ctx, m, "its job has ended")
		}
	case job.MemberDoomed:
		// Giving it up was interrupted, or its VM was ready between that and the
		// cancelling of the job that made it.
		if m.Outcome == nil || m.KeepsVM() {
			e.giveUp(ctx, m, m.Member.Why)
		}
	}
	return false
}

// tendPool brings one pool nearer to what is wanted.
func (e *Executor) tendPool(ctx context.Context, p job.Pool, own []job.Job, host room) {
	generation := host.Generations[p.Origin()]
	var warm, hibernated, making []job.Job
	for _, m := range own {
		if why := outdated(p, m, generation); why != "" && m.Member.State.Idle() {
			e.giveUp(ctx, m, why)
			continue
		}
		switch m.Member.State {
		case job.MemberWarm:
			warm = append(warm, m)
		case job.MemberHibernated:
			hibernated = append(hibernated, m)
		case job.MemberMaking:
			making = append(making, m)
		}
	}
	p = e.forgive(ctx, p, own, generation)
	want, asleep := p.PoolSize, p.IdleLimit > 0 && now().Sub(p.AskedAt) > seconds(p.IdleLimit)
	if asleep {
		want.Warm, want.Hibernated = 0, 0
	}
	if host.known && e.mayTry(p) && len(warm) > want.Warm && len(hibernated)+e.suspending(making) < want.Hibernated {
		if e.hibernate(ctx, warm[0]) {
			making = append(making, warm[0])
		}
		warm = warm[1:]
	}
	hibernated = e.shrink(ctx, hibernated, want.Hibernated)
	warm = e.shrink(ctx, warm, want.Warm+want.Hibernated-len(hibernated))
	making = e.shrink(ctx, making, max(0, want.Warm+want.Hibernated-len(warm)-len(hibernated)))
	missing := want.Warm + want.Hibernated - len(warm) - len(hibernated) - len(making)
	if p.Failure != nil {
		missing = min(missing, max(0, 1-len(making))) // one, to see whether it can be made by now
	}
	waiting := slices.DeleteFunc(slices.Clone(making), func(m job.Job) bool { return m.Status != job.Pending || e.runOf(m.ID) != nil })

	state := "ready"
	switch {
	case asleep:
		state = "asleep: no job has asked for a while; the next one wakes it"
	case missing+len(waiting) > 0:
		if state = e.unready(ctx, p, host, generation); state == "" {
			state = filling
			e.refill(ctx, p, host, generation, missing, waiting)
		}
	case len(making) > 0:
		state = filling
	}
	e.pools.mu.Lock()
	defer e.pools.mu.Unlock()
	e.pools.states[p.Name] = state
}

// outdated returns why an idle member is not to be given to a job any more; empty: it is.
func outdated(p job.Pool, m job.Job, generation string) string {
	switch {
	case generation != "" && m.Member.Generation != generation:
		return p.Origin().String() + ", or a setting, has changed"
	case now().Sub(m.CreatedAt) > seconds(p.MaxAge):
		return "it is as old as a member may be"
	case !m.KeepsVM():
		return "its VM is to be destroyed"
	}
	return ""
}

// shrink gives up the oldest members of a list that are more than wanted, and returns
// the rest.
func (e *Executor) shrink(ctx context.Context, members []job.Job, wanted int) []job.Job {
	for len(members) > wanted {
		e.giveUp(ctx, members[0], "the pool keeps fewer")
		members = members[1:]
	}
	return members
}

// unready returns why no member of a pool can be made now; empty: one can.
func (e *Executor) unready(ctx context.Context, p job.Pool, host room, generation string) string {
	memory := job.SizeMB(p.Resources.Memory)
	begun := e.creating(ctx)
	spoken := spokenFor(begun)
	committed, err := e.committed(ctx, begun)
	if err != nil {
		return "paused: " + err.Error()
	}
	switch {
	case !host.known:
		return "paused: the host does not answer: " + host.why
	case generation == "":
		return "paused: " + p.Origin().String() + " is not on the host"
	case !e.mayTry(p): // of one that has stopped, its row says so
		return "waiting after a failure: " + p.Failure.Error
	case e.jobsWait():
		return "paused: jobs wait, and go first"
	case host.Pressure > pressurePauses:
		return fmt.Sprintf("paused: the host is short of memory (pressure %.0f %%)", host.Pressure)
	case host.FreeMB-spoken-memory < host.ReserveMB():
		return fmt.Sprintf("paused: a member takes %d MiB, and the host has %d MiB free, of which %d MiB stay free and %d MiB are for VMs being created",
			memory, host.FreeMB, host.ReserveMB(), spoken)
	case !e.o.Fleet.Spread() && committed+memory > host.TotalMB-host.ReserveMB(): // else it is counted for each node
		return fmt.Sprintf("paused: a member takes %d MiB, and of the host's %d MiB %d MiB are promised to VMs of linus and %d MiB stay free; make the pool smaller, or give its VMs less memory",
			memory, host.TotalMB, committed, host.ReserveMB())
	}
	return ""
}

// committed returns the memory, in MiB, that VMs of ours may take, used or not, and those
// that this engine is about to make; those that are hibernated take none. begun are the
// jobs of creating, read before: one that has its VM by now is among the creators, too.
func (e *Executor) committed(ctx context.Context, begun []job.Job) (int, error) {
	creators, err := e.o.VMs.Makers(ctx)
	total := 0
	for _, m := range creators {
		begun = slices.DeleteFunc(begun, func(j job.Job) bool { return j.ID == m.ID })
		hibernated := m.Member != nil && m.Member.State == job.MemberHibernated
		if (m.VM.State == vm.Intended || m.VM.State == vm.Created) && !hibernated {
			total += job.SizeMB(m.Manifest.Resources.Memory)
		}
	}
	for _, j := range begun {
		total += job.SizeMB(j.Manifest.Resources.Memory)
	}
	return total, err
}

// jobsWait reports whether a client's job waits for a slot.
func (e *Executor) jobsWait() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.queue.empty()
}

// spokenFor returns the memory, in MiB, of VMs that are being created and may not have
// taken it yet.
func spokenFor(begun []job.Job) int {
	total := 0
	for _, j := range begun {
		if j.Status == job.Provisioning {
			total += job.SizeMB(j.Manifest.Resources.Memory)
		}
	}
	return total
}

// creating returns the jobs of this engine that make a VM of their own, or are about to.
func (e *Executor) creating(ctx context.Context) []job.Job {
	e.mu.Lock()
	var ids []string
	for id, r := range e.runs {
		if !r.shares {
			ids = append(ids, id)
		}
	}
	e.mu.Unlock()
	var jobs []job.Job
	for _, id := range ids {
		if j, err := e.o.Jobs.Job(ctx, id); err == nil && (j.Status == job.Pending || j.Status == job.Provisioning) && j.Outcome == nil && !j.Borrows() {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// refill begins to make members, as long as one can be made, which the first can be: those
// whose job is stored and has not begun, then new ones. The job is stored before anything of
// it can exist.
func (e *Executor) refill(ctx context.Context, p job.Pool, host room, generation string, missing int, waiting []job.Job) {
	for n := range len(waiting) + max(0, missing) {
		if e.makesEnough(p.Name) || n > 0 && e.unready(ctx, p, host, generation) != "" {
			return
		}
		if n < len(waiting) {
			e.beginMaking(ctx, waiting[n])
			continue
		}
		id, err := uuid.NewV7()
		if err == nil {
			m := job.Job{
				ID: id.String(), Kind: job.KindVM, Client: poolClient, Status: job.Pending, CreatedAt: now(),
				Manifest: p.Maker().WithDefaults(e.o.Defaults),
				Member:   &job.Member{Pool: p.Name, Generation: generation, State: job.MemberMaking, Since: now()},
			}
			if m, _, err = e.o.Jobs.Insert(ctx, m, "", job.Limits{}); err == nil {
				e.beginMaking(ctx, m)
			}
		}
		if err != nil {
			if ctx.Err() == nil {
				e.o.Log.Error("store a pool's new member failed", "pool", p.Name, "err", err)
			}
			return
		}
	}
}

// makesEnough reports whether no more of a pool's members are to be made now: one waits for
// a node, or those of all pools that do not wait are enough.
func (e *Executor) makesEnough(pool string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, r := range e.runs {
		switch {
		case r.pool != "" && r.waits == "":
			n++
		case r.pool == pool:
			return true
		}
	}
	return n >= makersAtOnce
}

// beginMaking starts the job of a stored member, unless others are enough.
func (e *Executor) beginMaking(ctx context.Context, m job.Job) {
	if e.makesEnough(m.Member.Pool) || e.isDraining() {
		return
	}
	m, taken, err := e.take(ctx, m.ID)
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("take a pool's new member failed", "job_id", m.ID, "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if taken && e.runs[m.ID] == nil {
		e.launch(ctx, m, false)
	}
}

// memberReady is the end of a member's making: it responds, and may be claimed. Other jobs are
// left as they are.
func (e *Executor) memberReady(j *job.Job) {
	if j.Member == nil {
		return
	}
	if lease := e.memberLease(); lease > 0 {
		j.Member.LeaseUntil = j.CreatedAt.Add(lease) // it was announced after that
	}
	if j.Member.State != job.MemberMaking || j.Outcome != nil { // it was given up meanwhile
		j.VM.Unwanted = true
		return
	}
	j.Member.Become(job.MemberWarm, now())
	j.Member.ReadyAt = now()
}

// errChanged: a member is not in the state any more that a decision was based on.
var errChanged = errors.New("the member's state has changed")

// doom has a member destroyed, if it is still in that state. The decision survives this
// process. A member that is being made is stopped.
func (e *Executor) doom(ctx context.Context, maker string, state job.MemberState, why string) error {
	j, err := e.update(ctx, maker, func(j *job.Job) ([]job.Event, error) {
		if j.Member == nil || j.Member.State != state {
			return nil, errChanged
		}
		j.Member.Become(job.MemberDoomed, now())
		j.Member.Why = why
		if j.KeepsVM() {
			j.VM.Unwanted = true
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseDestroy, Text: "the pool gives it up: " + why}}, nil
	})
	if errors.Is(err, errChanged) {
		return nil
	}
	if err != nil {
		return err
	}
	e.o.Log.Info("pool gives a member up", "pool", j.Member.Pool, "job_id", j.ID, "was", state, "why", why)
	if j.Outcome == nil {
		if err := e.Cancel(ctx, j.ID); err != nil && !errors.Is(err, job.ErrCompleted) {
			return err
		}
	}
	signal(e.reopened)
	return nil
}

// giveUp is doom for a member as it was just seen.
func (e *Executor) giveUp(ctx context.Context, m job.Job, why string) {
	if err := e.doom(ctx, m.ID, m.Member.State, why); err != nil && ctx.Err() == nil {
		e.o.Log.Error("give a pool's member up failed", "job_id", m.ID, "err", err)
	}
}

// ease gives up the oldest warm member, once per reading of the host's pressure.
func (e *Executor) ease(ctx context.Context, members []job.Job, host room) {
	e.pools.mu.Lock()
	done := e.pools.eased.Equal(host.at)
	e.pools.eased = host.at
	e.pools.mu.Unlock()
	at := slices.IndexFunc(members, func(m job.Job) bool { return m.Member.State == job.MemberWarm })
	if !done && at >= 0 {
		e.giveUp(ctx, members[at], fmt.Sprintf("the host is short of memory (pressure %.0f %%)", host.Pressure))
	}
}
