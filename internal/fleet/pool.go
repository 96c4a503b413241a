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

// filling is the state of a pool whose members are being made.
const filling = "filling"

// pools is what the engine knows about its pools besides their rows and members.
type pools struct {
	wake chan struct{} // the rows or their members have changed

	mu      sync.Mutex
	rows    []job.Pool        // as of the last look
	members int               // members not known to be gone, as of the last look
	states  map[string]string // the result of tending each pool, for people
	room    job.HostRoom
	roomAt  time.Time          // zero: the host was not asked yet, or did not answer the last time
	origins []job.Origin       // that room was read for
	read    chan struct{}      // closed when the host has next answered, or failed to
	eased   time.Time          // roomAt of the reading for which an idle member was given up
	busy    map[string]bool    // members being suspended
	heard   map[string]contact // last contact with warm members
}

func newPools() *pools {
	return &pools{
		wake: make(chan struct{}, 1), read: make(chan struct{}), states: map[string]string{},
		busy: map[string]bool{}, heard: map[string]contact{},
	}
}

// LoadPools rereads the pools after a change, and has them tended.
func (f *Fleet) LoadPools(ctx context.Context) error {
	_, err := f.loadPools(ctx)
	signal(f.pools.wake)
	return err
}

// TendSoon has the pools tended soon, because there is room or something to do.
func (f *Fleet) TendSoon() { signal(f.pools.wake) }

func (f *Fleet) loadPools(ctx context.Context) ([]job.Pool, error) {
	rows, err := f.o.Store.Pools(ctx)
	if err != nil {
		return nil, err
	}
	f.pools.mu.Lock()
	defer f.pools.mu.Unlock()
	f.pools.rows = rows
	return rows, nil
}

// active reports whether any pool has or wants members.
func (p *pools) active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members > 0 || slices.ContainsFunc(p.rows, func(row job.Pool) bool { return row.Warm+row.Hibernated > 0 })
}

// generation returns what a pool's members must be made from now; empty: unknown.
func (p *pools) generation(of job.Pool) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room.Generations[of.Origin()]
}

// Pools returns every pool with its members.
func (f *Fleet) Pools(ctx context.Context) ([]job.PoolInfo, error) {
	rows, err := f.o.Store.Pools(ctx) // not for f.pools: a tender may have read later rows
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	members, err := f.o.Store.Members(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.PoolInfo, len(rows))
	for i, row := range rows {
		infos[i] = f.poolInfo(row, members)
	}
	return infos, nil
}

// Pool returns one pool with its members.
func (f *Fleet) Pool(ctx context.Context, name string) (job.PoolInfo, error) {
	all, err := f.Pools(ctx)
	if err != nil {
		return job.PoolInfo{}, err
	}
	at := slices.IndexFunc(all, func(p job.PoolInfo) bool { return p.Name == name })
	if at < 0 {
		return job.PoolInfo{}, noPool(name)
	}
	return all[at], nil
}

func noPool(name string) error {
	return &job.FieldError{Field: "pool", Problem: fmt.Sprintf("%q is not a pool", name), Remedy: string(job.ListPools) + " shows the pools there are", Fault: job.FaultUnknown}
}

func (f *Fleet) poolInfo(row job.Pool, members []vm.VM) job.PoolInfo {
	info, full := job.PoolInfo{Pool: row}, ""
	for _, m := range members {
		if m.Member.Pool != row.Name {
			continue
		}
		if m.Member.State == vm.MemberMaking && m.Own.Waits != "" {
			full = "paused: its next VM is " + m.Own.Waits
		}
		shown := vm.MemberInfo{
			State: m.Member.State, Since: m.Member.Since, CreatedAt: m.CreatedAt,
			Maker: m.Job, Claimer: m.Member.Claimer, Generation: m.Member.Generation, Why: m.Member.Why,
		}
		if m.State != vm.Reserved {
			shown.VM = m
		}
		info.Members = append(info.Members, shown)
	}
	f.pools.mu.Lock()
	defer f.pools.mu.Unlock()
	switch {
	case info.Count(vm.MemberWarm) >= row.Warm && info.Count(vm.MemberHibernated) >= row.Hibernated:
		info.State = "ready"
	case row.Stopped(): // the state of the last tending may be of another version of the row
		info.State = fmt.Sprintf("stopped after %d identical failures: %s; resize it to try again", row.Failure.Count, row.Failure.Error)
	default:
		info.State = cmp.Or(f.pools.states[row.Name], filling)
		if full != "" && info.State == filling {
			info.State = full
		}
	}
	return info
}

// CreatePool adds a pool.
func (f *Fleet) CreatePool(ctx context.Context, p job.Pool) (job.PoolInfo, error) {
	if err := p.Validate(); err != nil {
		return job.PoolInfo{}, err
	}
	p = p.WithDefaults(f.o.Defaults)
	if err := p.Validate(); err != nil {
		return job.PoolInfo{}, fmt.Errorf("a configured default is wrong: %w", err)
	}
	if f.o.Allow != nil {
		by, _ := job.PrincipalFrom(ctx)
		m := p.Maker()
		m.Task = "" // nothing runs in its VMs
		if err := f.o.Allow(job.Submission{Client: job.ClientFrom(ctx), Principal: by, Manifest: m}); err != nil {
			return job.PoolInfo{}, job.PoolError(err)
		}
	}
	p.Hits, p.Misses, p.Failure = 0, 0, nil
	p.CreatedAt = now()
	p.AskedAt = p.CreatedAt
	created, err := f.o.Store.InsertPool(ctx, p)
	if err != nil {
		return job.PoolInfo{}, err
	}
	if !created {
		return job.PoolInfo{}, &job.FieldError{Field: "pool.name", Problem: fmt.Sprintf("there is a pool %q", p.Name), Remedy: "resize that one, or choose another name", Fault: job.FaultState}
	}
	return f.poolChanged(ctx, job.PoolCreated, p)
}

// ResizePool changes how many members a pool keeps. A pool that has stopped tries again.
func (f *Fleet) ResizePool(ctx context.Context, name string, change job.PoolChange) (job.PoolInfo, error) {
	p, err := f.o.Store.UpdatePool(ctx, name, func(p *job.Pool) (err error) {
		p.PoolSize, err = change.Of(p.PoolSize)
		p.Failure, p.AskedAt = nil, now()
		return err
	})
	if errors.Is(err, job.ErrNotFound) {
		err = noPool(name)
	}
	if err != nil {
		return job.PoolInfo{}, err
	}
	return f.poolChanged(ctx, job.PoolResized, p)
}

// RemovePool removes a pool; tending destroys its members.
func (f *Fleet) RemovePool(ctx context.Context, name string) (job.PoolInfo, error) {
	info, err := f.Pool(ctx, name)
	if err == nil {
		err = f.o.Store.DeletePool(ctx, name)
	}
	if err != nil {
		return job.PoolInfo{}, err
	}
	info.State = "removed"
	_, err = f.poolChanged(ctx, job.PoolRemoved, info.Pool)
	return info, err
}

// poolChanged announces that a client has changed a pool's row, and has the pool tended.
func (f *Fleet) poolChanged(ctx context.Context, kind job.PoolEventKind, p job.Pool) (job.PoolInfo, error) {
	detail := fmt.Sprintf("%d warm, %d hibernated of %s", p.Warm, p.Hibernated, p.Origin())
	f.observed(ctx, job.PoolEvent{Pool: p.Name, Kind: kind, By: job.CallerFrom(ctx), Detail: detail})
	f.o.Log.Info("pool changed", "pool", p.Name, "change", kind, "client", job.ClientFrom(ctx))
	f.pools.mu.Lock()
	delete(f.pools.states, p.Name)
	f.pools.mu.Unlock()
	_, err := f.loadPools(ctx)
	signal(f.pools.wake)
	if err != nil || kind == job.PoolRemoved {
		return job.PoolInfo{}, err
	}
	return f.Pool(ctx, p.Name)
}
