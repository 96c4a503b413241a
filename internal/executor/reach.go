package executor

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// retry calls f with growing pauses until it succeeds or ctx ends, or until what
// is asked for is not there. It returns what f returned last.
func retry(ctx context.Context, f func() error) error {
	var err error
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, Multiplier: 2, MaxInterval: 10 * time.Second, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	_, _ = backoff.Retry(ctx, func() (struct{}, error) {
		err = f()
		var early *earlyEnd
		if errors.As(err, &early) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(0))
	return err
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
