// Package sleep waits for a time. It owns no clock, and knows not what for.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or until ctx ends, whose cause it returns then.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
