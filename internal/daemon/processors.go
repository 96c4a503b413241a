package daemon

import (
	"context"
	"runtime"
	"time"

	"linus/internal/config"
	"linus/internal/sleep"
)

// processors makes this process run on one processor while that is enough, until ctx ends. Whenever
// there is work, Go's scheduler looks for more of it on every other processor. That takes a sixth
// of an engine's CPU time, because its work comes in small pieces. A GOMAXPROCS in the environment
// is left alone.
func processors(ctx context.Context) {
	if config.ProcessorsGiven() {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	for l := (load{time.Now(), cpuTime()}); sleep.For(ctx, time.Second) == nil; {
		l = l.adjust(load{time.Now(), cpuTime()})
	}
}

// load is the CPU time that this process has used until a time.
type load struct {
	at   time.Time
	used time.Duration
}

// adjust chooses the number of processors by the share of one that was used since l, and returns
// now.
func (l load) adjust(now load) load {
	share := float64(now.used-l.used) / float64(now.at.Sub(l.at))
	switch one := runtime.GOMAXPROCS(0) == 1; {
	case one && share > 0.5:
		runtime.SetDefaultGOMAXPROCS()
	case !one && share < 0.25:
		runtime.GOMAXPROCS(1)
	}
	return now
}
