package job_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"linus/internal/job"
)

// What is added is read once, in its order, whenever somebody begins to read; who adds waits for no
// reader, and who waits for the readers waits for all of it.
func TestChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c job.Changes
		var mu sync.Mutex
		var read []int
		want := []int{0, 1}
		c.Add(0)
		c.Add(1)
		if err := c.Wait(t.Context()); err != nil || !c.Idle() {
			t.Errorf("nobody reads, but there is somebody to wait for: %v", err)
		}
		stuck := make(chan struct{})
		c.Read(func(h job.Happening) {
			<-stuck
			mu.Lock()
			defer mu.Unlock()
			read = append(read, h.(int))
		})
		for n := 2; n < 1000; n++ {
			c.Add(n)
			want = append(want, n)
		}
		over, end := context.WithCancel(t.Context())
		end()
		if c.Idle() || c.Wait(over) == nil {
			t.Error("all is read, they say, while the reader is stuck")
		}
		close(stuck)
		if err := c.Wait(t.Context()); err != nil || !c.Idle() || !slices.Equal(read, want) {
			t.Errorf("%v; %d read", err, len(read))
		}
		c.Add(1000)
		synctest.Wait()
		if !slices.Equal(read, append(want, 1000)) {
			t.Errorf("%d read", len(read))
		}
	})
}
