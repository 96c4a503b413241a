// Package lock provides locks shared by the engines that use one store, and a fair lock within one engine.
package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"linus/internal/sleep"
)

// Engines takes locks for this engine among those that share its store.
type Engines interface {
	// Lock takes a lock for this engine until Unlock, unless another engine has it; then it returns
	// what that engine is doing, in one word. An engine's lock becomes free when the engine is
	// evicted; a loose one as soon as the engine's lease ends.
	Lock(ctx context.Context, name, what string, loose bool) (taken bool, holder string, err error)
	Unlock(ctx context.Context, name string) error
}

// Lock is held by one caller at a time, among all engines that share the store.
type Lock struct {
	name    string
	loose   bool
	engines Engines
	here    FairMutex
}

// New returns a lock among engines; nil means that this engine shares its store with none. Another
// engine's loose lock is free as soon as that engine's lease ends.
func New(name string, loose bool, engines Engines) *Lock {
	return &Lock{name: name, loose: loose, engines: engines}
}

// How long to wait for another engine's lock, and the first pause between attempts.
const (
	wait  = time.Minute
	pause = 20 * time.Millisecond
)

// ErrHeld means that another engine held a lock for the whole wait.
var ErrHeld = fmt.Errorf("not free within %s", wait)

// Take waits for the lock, for at most a minute while another engine holds it (ErrHeld), and holds
// it until release is called.
func (l *Lock) Take(ctx context.Context) (release func(), err error) {
	leave, err := l.here.Enter(ctx)
	if err != nil || l.engines == nil {
		return leave, err
	}
	ctx, end := context.WithTimeoutCause(ctx, wait, ErrHeld)
	defer end()
	for next := pause; ; next = min(2*next, 16*pause) {
		taken, _, err := l.engines.Lock(ctx, l.name, l.name, l.loose)
		if err == nil && taken {
			return func() {
				unlock(ctx, l.engines, l.name)
				leave()
			}, nil
		}
		if err == nil {
			err = sleep.For(ctx, next/2+rand.N(next)) //nolint:gosec // so that engines do not try at once
		}
		if err != nil {
			leave()
			return nil, fmt.Errorf("wait for another engine that has the lock %s: %w", l.name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// TryLock takes a lock for the purpose what, in one word, without waiting.
func TryLock(ctx context.Context, engines Engines, name, what string) (release func(), err error) {
	taken, holder, err := engines.Lock(ctx, name, what, false)
	if err == nil && !taken {
		err = fmt.Errorf("another engine has the lock %s: %s", name, holder)
	}
	return func() { unlock(ctx, engines, name) }, err
}

// unlock releases a lock. If that fails, the lock becomes free when this engine is gone.
func unlock(ctx context.Context, engines Engines, name string) {
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer end()
	_ = engines.Unlock(ctx, name)
}

// FairMutex is a fair lock: first come, first served. The zero value is ready.
type FairMutex struct {
	mu    sync.Mutex
	turns []chan struct{} // each is closed when its turn comes; the first one holds the lock
}

// Enter waits for the lock and holds it until leave is called.
func (l *FairMutex) Enter(ctx context.Context) (leave func(), err error) {
	turn := make(chan struct{})
	l.mu.Lock()
	l.turns = append(l.turns, turn)
	if len(l.turns) == 1 {
		close(turn)
	}
	l.mu.Unlock()
	leave = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		place := slices.Index(l.turns, turn)
		l.turns = slices.Delete(l.turns, place, place+1)
		if place == 0 && len(l.turns) > 0 {
			close(l.turns[0])
		}
	}
	select {
	case <-turn:
		return leave, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// Len returns how many callers hold the lock or wait for it.
func (l *FairMutex) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.turns)
}
