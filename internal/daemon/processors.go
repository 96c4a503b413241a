package daemon

import (
	"context"
	"runtime"
	"time"

	"linus/internal/config"
	"linus/internal/sleep"
)

// processors has this process run on one processor while that is enough, until ctx ends.
// Whenever there is work, Go's scheduler looks for more of it on every other processor,
// which for an engine, whose work comes in small pieces, is a sixth of its CPU time. A
// GOMAXPROCS in the environment is left alone.
func processors(ctx context.Context) {
	if config.ProcessorsGiven() {
		return
	}
	defer runtime.SetDefaultGOMAXPROCS()
	for l := (load{time.Now(), cpuTime()}); sleep.For(ctx, time.Second) == nil; {
		l = l.adjust(load{time.Now(), cpuTime()})
	}
}

// load is the CPU time that this process has used at a time.
type load struct {
	at   time.Time
	used time.Duration
}

// adjust chooses the processors by what was used of one of them since l, and returns now.
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
