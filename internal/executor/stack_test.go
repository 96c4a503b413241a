package executor_test

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
)

// What a job holds while its task runs is held by all jobs at once. Not parallel: it measures the process.
func TestJob_ThatRunsHoldsLittleStack(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector makes frames larger")
	}
	const jobs, most = 32, 60 << 10 // on amd64 it is 41 KB, with PostgreSQL 49
	stacks := func() int {
		for range 6 { // each collection halves stacks that are used to less than a quarter
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.StackInuse)
	}
	r := newRigHere(t, jobs)
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{For: time.Hour} }}, false)
	before := stacks()
	var ids []string
	for range jobs {
		ids = append(ids, r.submit())
	}
	for _, id := range ids {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	if each := (stacks() - before) / jobs; each > most {
		t.Errorf("a running job's goroutines hold %d bytes of stack, more than %d", each, most)
	}
	for _, id := range ids {
		if err := r.Cancel(context.Background(), id); err != nil {
			t.Error(err)
		}
		r.wait(id)
	}
}
