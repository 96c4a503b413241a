package executor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// lock is held by one caller at a time, of this engine and of all that share its
// store.
type lock struct {
	name    string
	loose   bool    // another engine's is free as soon as that engine's lease ends
	engines Engines // nil: this engine shares with none

	here line
}

// How long another engine's lock is waited for, and how often it is tried.
const (
	lockWait  = time.Minute
	lockPause = 20 * time.Millisecond
)

// errHeld: another engine has had a lock for as long as is waited for it.
var errHeld = fmt.Errorf("not free within %s", lockWait)

// take waits for the lock, for at most lockWait while another engine has it (errHeld),
// and has it until release is called.
func (l *lock) take(ctx context.Context) (release func(), err error) {
	leave, err := l.here.enter(ctx)
	if err != nil || l.engines == nil {
		return leave, err
	}
	ctx, end := context.WithTimeoutCause(ctx, lockWait, errHeld)
	defer end()
	for pause := lockPause; ; pause = min(2*pause, 16*lockPause) {
		taken, _, err := l.engines.Lock(ctx, l.name, l.name, l.loose)
		if err == nil && taken {
			return func() {
				unlock(ctx, l.engines, l.name)
				leave()
			}, nil
		}
		if err == nil {
			err = sleep(ctx, pause/2+rand.N(pause)) //nolint:gosec // so that engines do not try at once
		}
		if err != nil {
			leave()
			return nil, fmt.Errorf("wait for another engine that has the lock %s: %w", l.name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// lockNow takes a lock for what in one word, and does not wait for it.
func lockNow(ctx context.Context, engines Engines, name, what string) (release func(), err error) {
	taken, holder, err := engines.Lock(ctx, name, what, false)
	if err == nil && !taken {
		err = fmt.Errorf("another engine has the lock %s: %s", name, holder)
	}
	return func() { unlock(ctx, engines, name) }, err
}

// unlock releases a lock. Where that fails it is free when this engine is not there any
// more.
func unlock(ctx context.Context, engines Engines, name string) {
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
	defer end()
	_ = engines.Unlock(ctx, name)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// line is a fair lock: first come, first served. The zero value is ready.
type line struct {
	mu    sync.Mutex
	turns []chan struct{} // each is closed when its turn comes; the first one has the lock
}

// enter waits for the lock, until leave is called.
func (l *line) enter(ctx context.Context) (leave func(), err error) {
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
