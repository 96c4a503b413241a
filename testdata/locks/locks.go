// Package locks holds mutexes where none may be held. A test of cmd/linus finds each line that says
// so, and no other.
package locks

import (
	"context"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
)

type keeper struct {
	mu      sync.Mutex
	rw      sync.RWMutex
	store   job.Engines
	changes *job.Changes
	line    lock.FairMutex
	tell    func()
	cancel  context.CancelFunc
	all     []string
}

func (k *keeper) straight(ctx context.Context) {
	k.tell()
	k.mu.Lock()
	k.tell() // held: k.tell holds k.mu
	k.mu.Unlock()
	k.tell()
	k.rw.RLock()
	_, _ = k.store.Engines(ctx) // held: k.store.Engines holds k.rw
	k.rw.RUnlock()
}

func (k *keeper) deferred(ctx context.Context, then func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return then() // held: then holds k.mu
}

func (k *keeper) oneWay(on bool) {
	k.mu.Lock()
	if on {
		k.mu.Unlock()
		k.tell()
		return
	}
	for range k.all {
		k.within() // held: k.within -> k.further -> k.tell holds k.mu
	}
	k.mu.Unlock()
	k.within()
}

func (k *keeper) within()  { k.further() }
func (k *keeper) further() { k.tell() }

func (k *keeper) both() {
	k.mu.Lock()
	k.rw.Lock()
	k.changes.Add(1) // held: k.changes.Add holds k.mu, k.rw
	k.rw.Unlock()
	k.line.Len() // held: k.line.Len holds k.mu
	k.mu.Unlock()
}

func (k *keeper) closures() {
	k.mu.Lock()
	defer k.mu.Unlock()
	each := func() {
		k.tell() // held: k.tell holds k.mu
	}
	each()
	func() {
		k.tell() // held: k.tell holds k.mu
	}()
	go func() { k.tell() }()
	time.AfterFunc(time.Hour, func() {
		k.tell()
		k.mu.Lock()
		k.tell() // held: k.tell holds k.mu
		k.mu.Unlock()
	})
	k.cancel()
	k.all = append(k.all, string(job.Failed), job.Bounded("it calls nobody"))
}
