package fleet

import (
	"context"
	"sync"

	"linus/internal/job"
	"linus/internal/lock"
)

// Engines are the engines that share the store, and the locks they hold.
type Engines interface {
	job.Engines
	lock.Engines
	// Tell sends a notice to the other engines.
	Tell(ctx context.Context, n job.Notice) error
	// Locked returns what the engine that holds a lock is doing; empty: nobody holds it.
	Locked(ctx context.Context, name string) (string, error)
}

// access decides who may submit a job into a persistent VM, and who may work on the VM itself
// (start, stop, snapshot, revert or destroy it). Its rules:
//
//   - There is one decision at a time, held from the first read of the store until its result
//     is stored. From its submission on, a job counts as in its VM and against its client's
//     limits.
//   - Work on a VM begins with a decision and outlasts it. Until the work is done, no job enters
//     the VM and no other work on it begins.
//
// Both rules hold among all engines that share the store.
type access struct {
	engines  Engines // nil: the store is not shared
	deciding *lock.Lock

	mu   sync.Mutex
	work map[string]string // work in progress here, such as "started", by the ID in the VM's marker
}

func newAccess(engines Engines) *access {
	// Decisions only touch rows, so if an engine does not end one within its lease, nobody waits
	// until that engine is evicted.
	return &access{engines: engines, deciding: lock.New("deciding", true, engines), work: map[string]string{}}
}

// decision is the right to decide, with which work on a VM begins. Callers of openVM and idle hold one.
type decision struct {
	a   *access
	end func()
}

// decide waits for the right to decide; end releases it.
func (a *access) decide(ctx context.Context) (decision, error) {
	release, err := a.deciding.Take(ctx)
	return decision{a, release}, err
}

func workLock(id string) string { return "vm " + id }

// workOn returns what is being done to the VM with an ID in its marker, in one word; empty:
// nothing. The answer stays valid while the caller holds a decision.
func (a *access) workOn(ctx context.Context, id string) (string, error) {
	a.mu.Lock()
	work := a.work[id]
	a.mu.Unlock()
	if work != "" || a.engines == nil {
		return work, nil
	}
	return a.engines.Locked(ctx, workLock(id))
}

// begin marks the VM with an ID in its marker as worked on until finished is called.
func (d decision) begin(ctx context.Context, id, work string) (finished func(), err error) {
	unlock := func() {}
	if d.a.engines != nil {
		if unlock, err = lock.TryLock(ctx, d.a.engines, workLock(id), work); err != nil {
			return nil, err
		}
	}
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	d.a.work[id] = work
	return func() {
		d.a.mu.Lock()
		delete(d.a.work, id)
		d.a.mu.Unlock()
		unlock()
	}, nil
}

func (a *access) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.work) > 0
}
