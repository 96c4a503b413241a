package fleet

import (
	"context"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// room is what is known about the host's room.
type room struct {
	job.HostRoom
	known bool
	why   string // why it is not known
	at    time.Time
}

// Leases on the host.
const (
	checkpointLease = 3 * time.Hour // of a VM until it is a checkpoint

	leaseMore  = time.Hour        // a member's, beyond what a job's VM has after its job's timeout
	leaseRenew = 30 * time.Minute // a lease is renewed when it is that much shorter than it could be
)

// readRoom returns what the host has left, at most PoolInterval old. When it asks the host, it also
// checks the members' proof and renews their leases.
func (f *Fleet) readRoom(ctx context.Context, rows []job.Pool, members []vm.VM) room {
	p := f.pools
	p.mu.Lock()
	known, read := room{HostRoom: p.room, known: true, at: p.roomAt}, p.origins
	p.mu.Unlock()
	var origins []job.Origin
	for _, row := range rows {
		if !slices.Contains(origins, row.Origin()) {
			origins = append(origins, row.Origin())
		}
	}
	unread := slices.ContainsFunc(origins, func(o job.Origin) bool { return !slices.Contains(read, o) })
	if time.Since(known.at) < f.o.PoolInterval && !unread {
		return known
	}
	var watched []job.Watched
	for _, m := range members {
		if renew := f.renewal(ctx, m); renew > 0 || m.Stays() && m.Member.State.Idle() {
			watched = append(watched, job.Watched{VM: m, Renew: renew})
		}
	}
	asked := now()
	next, err := f.o.Provider.Room(ctx, origins, watched)
	p.mu.Lock()
	if err != nil {
		p.roomAt = time.Time{}
	} else {
		p.room, p.roomAt, p.origins = next, time.Now(), origins
	}
	close(p.read)
	p.read = make(chan struct{})
	known = room{HostRoom: p.room, known: err == nil, at: p.roomAt}
	p.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			f.o.Log.Warn("read the host's room for pools failed", "err", err)
		}
		known.why = err.Error()
		return known
	}
	for _, m := range members {
		if why := next.Doubts[m.Job]; why != "" && m.Member.State.Idle() {
			f.giveUp(ctx, m, "its VM is no longer proven ours: "+why)
		}
	}
	for _, w := range watched {
		f.noteLease(ctx, w, next.Leases[w.VM.Job], asked)
	}
	return known
}

// roomTime bounds how long the requester of a VM waits for the host to answer.
const roomTime = 10 * time.Second

// untilRead waits for one answer of the host if a pool has a VM for the manifest, but it is not
// known yet what the pool's VMs are made from now, because the engine has just begun.
func (f *Fleet) untilRead(ctx context.Context, pools []job.Pool, m job.Manifest, on func(node string) bool) {
	p := f.pools
	p.mu.Lock()
	read := p.read
	pools = slices.DeleteFunc(slices.Clone(pools), func(of job.Pool) bool { return slices.Contains(p.origins, of.Origin()) })
	p.mu.Unlock()
	if len(pools) == 0 {
		return
	}
	members, _ := f.o.Store.Members(ctx) // if that fails, so does the claim
	if !slices.ContainsFunc(members, func(v vm.VM) bool {
		return slices.ContainsFunc(pools, func(of job.Pool) bool {
			return v.Member.Pool == of.Name && pick(of, m, on, []vm.VM{v}, v.Member.Generation) == 0
		})
	}) {
		return
	}
	f.TendSoon()
	timed, end := context.WithTimeout(ctx, roomTime)
	defer end()
	select {
	case <-read:
	case <-timed.Done():
	}
}

// MemberLease is the lease of a member that no job has claimed; 0: never.
func (f *Fleet) MemberLease() time.Duration {
	if f.o.Lease == 0 {
		return 0
	}
	return f.o.Lease + leaseMore
}

// renewal returns the lease that a member should get now; 0: its lease is long enough.
func (f *Fleet) renewal(ctx context.Context, m vm.VM) time.Duration {
	lease := f.MemberLease()
	if lease == 0 || !m.Stays() || m.Member.State == vm.MemberDoomed {
		return 0
	}
	enough := now().Add(lease - leaseRenew)
	if m.Member.State == vm.MemberClaimed {
		_, timeout, err := f.holds(ctx, m.Member.Claimer, m)
		if err != nil || timeout == 0 {
			return 0
		}
		lease = timeout + f.o.Lease
		enough = m.Member.Since.Add(lease)
		lease += leaseMore
	}
	if m.Member.LeaseUntil.After(enough) {
		return 0
	}
	return lease
}

// noteLease records the result of renewing a lease.
func (f *Fleet) noteLease(ctx context.Context, w job.Watched, state job.LeaseState, asked time.Time) {
	switch state {
	case job.LeaseRenewed:
		err := f.set(ctx, w.VM.Job, func(v *vm.VM) {
			if v.Member == nil { // the member was given away meanwhile
				v.LeaseUntil = asked.Add(w.Renew)
			} else {
				v.Member.LeaseUntil = asked.Add(w.Renew)
			}
		})
		if err != nil && ctx.Err() == nil {
			f.o.Log.Error("record a member's lease failed", "job_id", w.VM.Job, "err", err)
		}
	case job.LeaseOver, job.LeaseGone:
		m, err := f.o.Store.VM(ctx, w.VM.Job)
		if err != nil || m.Member == nil || !m.Member.State.Idle() {
			return
		}
		status, err := f.o.Provider.Status(ctx, w.VM)
		if state == job.LeaseOver || err == nil && status == vm.Gone {
			f.giveUp(ctx, m, "it was ended by the host, or by somebody there")
		}
	}
}
