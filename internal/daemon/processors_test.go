package daemon

import (
	"runtime"
	"testing"
	"time"
)

// An engine with little to do runs on one processor, a busy one on all there are.
func TestProcessors_FollowTheWork(t *testing.T) {
	all := runtime.GOMAXPROCS(0)
	defer runtime.SetDefaultGOMAXPROCS()
	l := load{at: time.Now()}
	for _, tt := range []struct {
		used time.Duration // in a second
		want int
	}{
		{100 * time.Millisecond, 1}, {400 * time.Millisecond, 1}, {900 * time.Millisecond, all},
		{1900 * time.Millisecond, all}, {400 * time.Millisecond, all}, {100 * time.Millisecond, 1},
	} {
		l = l.adjust(load{l.at.Add(time.Second), l.used + tt.used})
		if got := runtime.GOMAXPROCS(0); got != tt.want {
			t.Errorf("after a second with %s of CPU time it is %d processors, not %d", tt.used, got, tt.want)
		}
	}
}

func TestCPUTime_Grows(t *testing.T) {
	t.Parallel()
	before := cpuTime()
	for deadline := time.Now().Add(time.Minute); cpuTime() == before; {
		if time.Now().After(deadline) {
			t.Fatalf("the CPU time stays %s", before)
		}
	}
}
