package e2e

import (
	"fmt"
	"testing"
	"time"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/pgtest"
)

// BenchmarkEngines is how fast engines that share a PostgreSQL database end jobs whose
// VMs take a second each to create, with eight slots an engine, and what a job costs all
// of them in CPU time.
func BenchmarkEngines(b *testing.B) {
	const jobs = 160
	for _, engines := range []int{1, 4} {
		b.Run(fmt.Sprint("engines=", engines), func(b *testing.B) {
			all := []*simulated{newSimulated(b, "LINUS_DATABASE_URL="+pgtest.Database(b), "MAX_JOBS=8", "LINUS_LOG_LEVEL=info", "SIMULATED_STEP=111ms")}
			for range engines - 1 {
				all = append(all, all[0].another(b))
			}
			used := func() (sum time.Duration) {
				for _, s := range all {
					sum += cpuTime(s.pid)
				}
				return sum
			}
			engine, w := all[0].dial(b), newWire(b, all[0].env)
			before, began := used(), time.Now()
			for b.Loop() {
				w.calls(b, jobs, 32, "submit_job", aTask)
				for unfinished(b, engine) {
					time.Sleep(time.Second) // each look costs the engine, too
				}
			}
			done := float64(b.N * jobs)
			b.ReportMetric(done/time.Since(began).Seconds(), "jobs/s")
			b.ReportMetric(ms(used()-before)/done, "cpu-ms/job")
			page, err := engine.List(b.Context(), job.Filter{Status: job.Success, Limit: 200})
			if err != nil || len(page.Jobs) < min(b.N*jobs, 200) {
				other, _ := engine.List(b.Context(), job.Filter{Status: job.Failed, Limit: 1})
				for _, j := range other.Jobs {
					failed, err := engine.Job(b.Context(), j.ID)
					b.Errorf("one that has not: %+v, %v", failed.Outcome, err)
				}
				b.Errorf("%d jobs have succeeded: %v", len(page.Jobs), err)
			}
		})
	}
}

// BenchmarkJob is what a whole job in the process lab costs the engine in CPU time, one
// after the other, on each database.
func BenchmarkJob(b *testing.B) {
	for _, database := range []string{"sqlite", "postgres"} {
		b.Run(database, func(b *testing.B) {
			settings := []string{"LINUS_LOG_LEVEL=info"}
			if database == "postgres" {
				settings = append(settings, "LINUS_DATABASE_URL="+pgtest.Database(b))
			}
			h := newHost(b, lab.DriverProcess, settings...)
			c := h.connect(b)
			engine, err := control.Dial(b.Context(), control.Socket(h.state))
			if err != nil {
				b.Fatal(err)
			}
			defer engine.Close()
			command := func() {
				id := c.call("execute_command", map[string]any{"command": "true", "wait_seconds": 40})["job_id"].(string)
				for j := (job.Job{}); !j.Done(); time.Sleep(time.Second) { // each look costs the engine, too
					if j, err = engine.Job(b.Context(), id); err != nil {
						b.Fatal(err)
					}
				}
			}
			command() // scripts and connections are there then
			before := cpuTime(h.engine())
			for b.Loop() {
				command()
			}
			b.ReportMetric(ms(cpuTime(h.engine())-before)/float64(b.N), "cpu-ms/job")
		})
	}
}
