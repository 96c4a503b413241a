package patience_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
)

// What was given up for the time it took is told from what failed by itself, also
// where both ended with a deadline.
func TestReach_TellsWhatWasGivenUp(t *testing.T) {
	unreachable := &job.HostError{Class: job.HostUnreachable, Text: "no route"}
	for _, tt := range []struct {
		name   string
		f      func(context.Context) error
		gaveUp bool
	}{
		{"it never answers", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, true},
		{"it stays unreachable", func(context.Context) error { return unreachable }, true},
		{"a deadline of its own", func(context.Context) error { return context.DeadlineExceeded }, false},
		{"it succeeds", func(context.Context) error { return nil }, false},
		{"it succeeds late", func(ctx context.Context) error { <-ctx.Done(); return nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var last error
				err := patience.RetryUnreachable(t.Context(), time.Minute, func(ctx context.Context) error {
					last = tt.f(ctx)
					return last
				})
				if errors.Is(err, patience.ErrTooSlow) != tt.gaveUp {
					t.Errorf("given up: %t; %v", !tt.gaveUp, err)
				}
				if (err == nil) != (last == nil) || err != nil && err.Error() != last.Error() {
					t.Errorf("returned %v, not %v", err, last)
				}
			})
		})
	}
}

// What an attempt fails with because its time is over says less than what one before it has failed with.
func TestRetry_ReturnsTheLastErrorThatSaysSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		refused := errors.New("refused")
		attempts := 0
		err := patience.Retry(ctx, func() error {
			if attempts++; attempts == 1 {
				return refused
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != refused || attempts != 2 {
			t.Errorf("%v after %d attempts", err, attempts)
		}
		if err := patience.Retry(ctx, func() error { return ctx.Err() }); err != context.DeadlineExceeded {
			t.Errorf("%v of the only attempt", err)
		}
	})
}

// How long an attempt worked before the VM could not be reached any more does not count.
func TestReach_CountsFromTheFirstFailure(t *testing.T) {
	unreachable := &job.HostError{Class: job.HostUnreachable, Text: "no route"}
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		err := patience.RetryUnreachable(t.Context(), time.Minute, func(context.Context) error {
			switch attempts++; attempts {
			case 1:
				<-time.After(2 * time.Minute)
				return unreachable
			case 2, 3:
				return unreachable
			}
			return nil
		})
		if err != nil || attempts != 4 {
			t.Errorf("%d attempts, %v", attempts, err)
		}
	})
}
