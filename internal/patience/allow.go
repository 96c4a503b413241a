// Package patience says how long something in a VM is waited for: allowances of
// time that bytes extend, and retries with growing pauses. What is done in the
// meantime is none of its business.
package patience

import (
	"context"
	"errors"
	"sync"
	"time"
)

// slowLine is the rate, in bytes a second, that a line to a VM is expected to
// have: what comes more slowly buys less time than it takes.
const slowLine = 64 << 10

// ErrTooSlow is why a context of Allow has ended.
var ErrTooSlow = errors.New("it took too long for what came")

// allowance is the time that work in a VM may take. Its bytes extend it, so that
// hundreds of megabytes come over a slow line, and a VM that trickles, or is
// silent, is given up all the same.
type allowance struct {
	outer *allowance // of the work this one is a part of

	mu    sync.Mutex
	until time.Time
	left  time.Duration // by so much it can be extended yet
	timer *time.Timer
}

type allowanceKey struct{}

// Allow returns a context that ends with ErrTooSlow after patience and what Earn
// has added to it: at most the time that bytes take on a slow line.
func Allow(ctx context.Context, patience time.Duration, bytes int64) (context.Context, context.CancelFunc) {
	outer, _ := ctx.Value(allowanceKey{}).(*allowance)
	ctx, cancel := context.WithCancelCause(ctx)
	a := &allowance{outer: outer, until: time.Now().Add(patience), left: OnSlowLine(bytes)}
	a.timer = time.AfterFunc(patience, func() { cancel(ErrTooSlow) })
	return context.WithValue(ctx, allowanceKey{}, a), func() {
		a.timer.Stop()
		cancel(nil)
	}
}

// Earn extends the allowances of work for bytes that have come.
func Earn(ctx context.Context, bytes int64) { EarnTime(ctx, OnSlowLine(bytes)) }

// EarnTime extends the allowances of work that got on.
func EarnTime(ctx context.Context, d time.Duration) {
	a, _ := ctx.Value(allowanceKey{}).(*allowance)
	for ; a != nil; a = a.outer {
		a.extend(d)
	}
}

func (a *allowance) extend(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d = min(d, a.left)
	a.left -= d
	a.until = a.until.Add(d)
	if a.timer.Stop() { // else it is over already
		a.timer.Reset(time.Until(a.until))
	}
}

// OnSlowLine is how long bytes take on a slow line.
func OnSlowLine(bytes int64) time.Duration {
	return time.Duration(float64(max(0, bytes)) / slowLine * float64(time.Second))
}
