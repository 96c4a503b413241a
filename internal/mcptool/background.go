package mcptool

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of a call and of the work that outlives it.
const (
	mostWait     = 45 // seconds; clients abandon calls after a minute
	callTime     = mostWait * time.Second
	longestWork  = 30 * time.Minute
	defaultReady = 40 // seconds provision_vm waits
)

// background finishes work that takes longer than a call may. It owns the goroutines.
type background struct {
	log  *slog.Logger
	end  chan struct{}
	work sync.WaitGroup
}

func newBackground(log *slog.Logger) *background {
	return &background{log: log, end: make(chan struct{})}
}

// within runs f and reports whether it ended within limit. If not, f continues and its error is
// logged.
func (b *background) within(ctx context.Context, limit time.Duration, f func(context.Context) error) (ended bool, err error) {
	working, cancel := context.WithTimeout(context.WithoutCancel(ctx), longestWork)
	b.work.Go(func() {
		defer cancel()
		select {
		case <-b.end:
		case <-working.Done():
		}
	})
	done := make(chan error) // received by the caller, or by nobody
	gone := make(chan struct{})
	b.work.Go(func() {
		defer cancel()
		err := f(working)
		select {
		case done <- err:
		case <-gone:
			if err != nil {
				b.log.Warn("work that outlived its call failed", "err", err)
			}
		}
	})
	timer := time.NewTimer(limit)
	defer timer.Stop()
	defer close(gone)
	select {
	case err := <-done:
		return true, err
	case <-timer.C:
	case <-ctx.Done():
	}
	return false, nil
}

// finish runs f for at most the time of a call. If that is over, f continues and ended is false.
func finish[T any](ctx context.Context, b *background, f func(context.Context) (T, error)) (out T, ended bool, err error) {
	result := make(chan T, 1)
	ended, err = b.within(ctx, callTime, func(ctx context.Context) error {
		out, err := f(ctx)
		result <- out
		return err
	})
	if ended {
		out = <-result
	}
	return out, ended, err
}

func (b *background) close() {
	close(b.end)
	b.work.Wait()
}
