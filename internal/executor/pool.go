package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
)

// filling is the state of a pool whose members are being made.
const filling = "filling"

// poolClient is the client of the jobs that make the pools' VMs.
const poolClient = "pool"

// pools is what the engine knows of its pools besides their rows and their members'.
type pools struct {
	wake chan struct{} // the rows or their members have changed

	mu      sync.Mutex
	rows    []job.Pool        // as of the last look
	members int               // not known to be gone, as of the last look
	states  map[string]string // what tending each pool came to, for people
	room    job.HostRoom
	roomAt  time.Time          // zero: the host has not been asked yet, or did not answer the last time
	origins []job.Origin       // that room was read for
	eased   time.Time          // roomAt of the reading for which an idle member was given up
	busy    map[string]bool    // members being suspended, by their maker
	heard   map[string]contact // of warm members, by their maker
}

func newPools() *pools {
	return &pools{
		wake: make(chan struct{}, 1), states: map[string]string{},
		busy: map[string]bool{}, heard: map[string]contact{},
	}
}

// load reads the pools' rows.
func (e *Executor) loadPools(ctx context.Context) ([]job.Pool, error) {
	rows, err := e.o.Pools.Pools(ctx)
	if err != nil {
		return nil, err
	}
	e.pools.mu.Lock()
	defer e.pools.mu.Unlock()
	e.pools.rows = rows
	return rows, nil
}

// active reports whether there are pools that want members, or members.
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
func (e *Executor) Pools(ctx context.Context) ([]job.PoolInfo, error) {
	rows, err := e.o.Pools.Pools(ctx) // not for e.pools: a tender may have read later ones by now
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	members, err := e.o.Pools.Members(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.PoolInfo, len(rows))
	for i, row := range rows {
		infos[i] = e.poolInfo(row, members)
	}
	return infos, nil
}

// Pool returns one pool with its members.
func (e *Executor) Pool(ctx context.Context, name string) (job.PoolInfo, error) {
	all, err := e.Pools(ctx)
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
	return &job.FieldError{Field: "pool", Problem: fmt.Sprintf("%q is not a pool", name), Remedy: string(job.ListPools) + " shows the pools there are"}
}

func (e *Executor) poolInfo(row job.Pool, members []job.Job) job.PoolInfo {
	info, full := job.PoolInfo{Pool: row}, ""
	for _, m := range members {
		if m.Member.Pool != row.Name {
			continue
		}
		if m.Member.State == job.MemberMaking && m.Status == job.Pending && strings.HasPrefix(m.Progress, forNode) {
			full = "paused: its next VM is " + m.Progress
		}
		shown := job.MemberInfo{
			State: m.Member.State, Since: m.Member.Since, CreatedAt: m.CreatedAt,
			Maker: m.ID, Claimer: m.Member.Claimer, Generation: m.Member.Generation, Why: m.Member.Why,
		}
		if m.VM != nil {
			shown.VM = *m.VM
		}
		info.Members = append(info.Members, shown)
	}
	e.pools.mu.Lock()
	defer e.pools.mu.Unlock()
	switch {
	case info.Count(job.MemberWarm) >= row.Warm && info.Count(job.MemberHibernated) >= row.Hibernated:
		info.State = "ready"
	case row.Stopped(): // what tending came to may be of an earlier row, or a later one
		info.State = fmt.Sprintf("stopped after %d equal failures: %s; resize it to try again", row.Failure.Count, row.Failure.Error)
	default:
		info.State = cmp.Or(e.pools.states[row.Name], filling)
		if full != "" && info.State == filling {
			info.State = full
		}
	}
	return info
}

// CreatePool adds a pool.
func (e *Executor) CreatePool(ctx context.Context, p job.Pool) (job.PoolInfo, error) {
	if err := p.Validate(); err != nil {
		return job.PoolInfo{}, err
	}
	p = p.WithDefaults(e.o.Defaults)
	if err := p.Validate(); err != nil {
		return job.PoolInfo{}, fmt.Errorf("a configured default is wrong: %w", err)
	}
	if e.o.Allow != nil {
		by, _ := job.PrincipalFrom(ctx)
		if err := e.o.Allow(job.Submission{Kind: job.KindVM, Client: job.ClientFrom(ctx), Principal: by, Manifest: p.Maker()}); err != nil {
			return job.PoolInfo{}, job.PoolError(err)
		}
	}
	p.Hits, p.Misses, p.Failure = 0, 0, nil
	p.CreatedAt = now()
	p.AskedAt = p.CreatedAt
	created, err := e.o.Pools.InsertPool(ctx, p)
	if err != nil {
		return job.PoolInfo{}, err
	}
	if !created {
		return job.PoolInfo{}, &job.FieldError{Field: "pool.name", Problem: fmt.Sprintf("there is a pool %q", p.Name), Remedy: "resize that one, or choose another name"}
	}
	return e.poolChanged(ctx, job.PoolCreated, p)
}

// ResizePool changes how many members a pool keeps. One that has stopped tries again.
func (e *Executor) ResizePool(ctx context.Context, name string, size job.PoolSize) (job.PoolInfo, error) {
	if err := size.Validate(); err != nil {
		return job.PoolInfo{}, err
	}
	p, err := e.o.Pools.UpdatePool(ctx, name, func(p *job.Pool) {
		size.MaxAge = cmp.Or(size.MaxAge, p.MaxAge)
		p.PoolSize, p.Failure, p.AskedAt = size, nil, now()
	})
	if errors.Is(err, job.ErrNotFound) {
		err = noPool(name)
	}
	if err != nil {
		return job.PoolInfo{}, err
	}
	return e.poolChanged(ctx, job.PoolResized, p)
}

// RemovePool removes a pool; tending destroys what is left of it.
func (e *Executor) RemovePool(ctx context.Context, name string) (job.PoolInfo, error) {
	info, err := e.Pool(ctx, name)
	if err == nil {
		err = e.o.Pools.DeletePool(ctx, name)
	}
	if err != nil {
		return job.PoolInfo{}, err
	}
	info.State = "removed"
	_, err = e.poolChanged(ctx, job.PoolRemoved, info.Pool)
	return info, err
}

// poolChanged notes that a client has changed a pool's row, and has it tended.
func (e *Executor) poolChanged(ctx context.Context, kind job.PoolEventKind, p job.Pool) (job.PoolInfo, error) {
	detail := fmt.Sprintf("%d warm, %d hibernated of %s", p.Warm, p.Hibernated, p.Origin())
	e.o.Observer(job.PoolEvent{Pool: p.Name, Kind: kind, By: job.CallerFrom(ctx), Detail: detail})
	e.o.Log.Info("pool changed", "pool", p.Name, "change", kind, "client", job.ClientFrom(ctx))
	e.pools.mu.Lock()
	delete(e.pools.states, p.Name)
	e.pools.mu.Unlock()
	_, err := e.loadPools(ctx)
	signal(e.pools.wake)
	if err != nil || kind == job.PoolRemoved {
		return job.PoolInfo{}, err
	}
	return e.Pool(ctx, p.Name)
}
