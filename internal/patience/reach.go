package patience

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
)

// Retry calls f with growing pauses until it succeeds, fails with backoff.Permanent, or ctx ends. It
// returns f's last error, preferably of an attempt that ctx did not cut short.
func Retry(ctx context.Context, f func() error) error {
	pauses := backoff.NewExponentialBackOff() // from half a second on
	pauses.Multiplier, pauses.MaxInterval = 2, 10*time.Second
	var last error // f's error matters, not that of ctx
	_, _ = backoff.Retry(ctx, func() (struct{}, error) {
		err := f()
		if err == nil || last == nil || ctx.Err() == nil {
			last = err
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0))
	return last
}

// RetryUnreachable calls f with growing pauses while the VM cannot be reached, until patience has
// passed since the first attempt that failed for that reason. f's context ends after patience,
// counted from the beginning; an attempt that may take longer uses its caller's context.
// RetryUnreachable returns f's last error, which is also ErrTooSlow if patience has passed.
func RetryUnreachable(ctx context.Context, patience time.Duration, f func(context.Context) error) error {
	patient, cancel := context.WithTimeoutCause(ctx, patience, ErrTooSlow)
	defer cancel()
	var last error
	var away time.Time // since when the VM cannot be reached
	_ = Retry(ctx, func() error {
		last = f(patient)
		switch {
		case !job.IsClass(last, job.HostUnreachable):
			return nil
		case away.IsZero():
			away = time.Now()
			job.Waits(ctx, "the VM", last, away.Add(patience))
		case time.Since(away) >= patience:
			return backoff.Permanent(last)
		}
		return last
	})
	if last != nil && errors.Is(context.Cause(patient), ErrTooSlow) {
		return gaveUp{last}
	}
	return last
}

// gaveUp is the last error of an operation that took too long.
type gaveUp struct{ error }

func (e gaveUp) Unwrap() []error { return []error{e.error, ErrTooSlow} }
