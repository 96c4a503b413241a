// Package patience decides how long to wait for something in a VM: time limits that received bytes
// extend, and retries with growing pauses. It does not know what is waited for.
package patience

import (
	"context"
	"errors"
	"sync"
	"time"
)

// slowLine is the lowest expected rate of a connection to a VM, in bytes per second. Data that
// arrives more slowly earns less time than it takes.
const slowLine = 64 << 10

// ErrTooSlow is the cause with which the contexts of Allow and RetryUnreachable end.
var ErrTooSlow = errors.New("too little data arrived in time")

// allowance is the time that work in a VM may take. Received bytes extend it, so that hundreds of
// megabytes can arrive over a slow connection, while a VM that trickles or is silent is still given up.
type allowance struct {
	outer *allowance // of the work that this is part of

	mu    sync.Mutex
	until time.Time
	left  time.Duration // how much it can still be extended
	timer *time.Timer
}

type allowanceKey struct{}

// Allow returns a context that ends with ErrTooSlow after patience plus what Extend adds: at most
// the time that bytes take on a slow connection.
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

// Extend extends the allowances in ctx by the time that the received bytes take on a slow connection.
func Extend(ctx context.Context, bytes int64) { ExtendTime(ctx, OnSlowLine(bytes)) }

// ExtendTime extends the allowances in ctx by d.
func ExtendTime(ctx context.Context, d time.Duration) {
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
	if a.timer.Stop() { // false: it has ended already
		a.timer.Reset(time.Until(a.until))
	}
}

// OnSlowLine returns how long bytes take on a slow connection.
func OnSlowLine(bytes int64) time.Duration {
	return time.Duration(float64(max(0, bytes)) / slowLine * float64(time.Second))
}
