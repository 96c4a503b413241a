package patience_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/patience"
)

// What is brought, and how fast, says how long it may go on.
func TestAllow_BytesExtendTheTime(t *testing.T) {
	const wait, all = 3 * time.Minute, 500 << 20
	tests := []struct {
		name  string
		rate  int64 // bytes a second
		bytes int64 // that come before it ends
	}{
		{"silence", 0, 0},
		{"a byte a second", 1, 180},
		{"a slow line", 100 << 10, all},
		{"a line that is no line", 1 << 10, 182 << 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outer, endOuter := patience.Allow(t.Context(), wait, all)
				defer endOuter()
				work, end := patience.Allow(outer, wait, all)
				defer end()
				var came int64
				for came < all && work.Err() == nil {
					select {
					case <-work.Done():
					case <-time.After(time.Second):
						came += tt.rate
						patience.Extend(work, tt.rate)
					}
				}
				if came < tt.bytes || came > tt.bytes*105/100 {
					t.Errorf("%d bytes came, want %d", came, tt.bytes)
				}
				if whole := came >= all; whole != (work.Err() == nil) || !whole && !errors.Is(context.Cause(work), patience.ErrTooSlow) {
					t.Errorf("after %d bytes: %v", came, context.Cause(work))
				}
			})
		})
	}
}

// However much comes, there is an end.
func TestAllow_IsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		work, end := patience.Allow(t.Context(), time.Minute, 64<<20)
		defer end()
		began := time.Now()
		for work.Err() == nil {
			select {
			case <-work.Done():
			case <-time.After(time.Second):
				patience.Extend(work, 1<<20)
			}
		}
		if took := time.Since(began); took < time.Minute || took > 19*time.Minute {
			t.Errorf("an endless stream was read for %s", took)
		}
	})
}
