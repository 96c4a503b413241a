package executor

import (
	"context"
	"errors"
	"time"
)

// retry calls f with growing pauses until it succeeds or ctx ends, or until what
// is asked for is not there.
func retry(ctx context.Context, f func() error) error {
	pause := 500 * time.Millisecond
	for {
		err := f()
		var early *earlyEnd
		if err == nil || ctx.Err() != nil || errors.As(err, &early) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, 10*time.Second)
	}
}

// reach calls f, with growing pauses, for as long as the VM cannot be reached,
// but no longer than patience, with which f's context ends. A try that may take
// longer than that works with its caller's.
func reach(ctx context.Context, patience time.Duration, f func(context.Context) error) error {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	_ = retry(patient, func() error { // what f said last is what matters
		last = f(patient)
		if unreachable(last) {
			return last
		}
		return nil
	})
	return last
}
