package store

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"linus/internal/job"
)

// cpu is what this process has used: a PostgreSQL server has its own.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkLife is what the store's part of a job's life costs in CPU time of the
// engine: about the calls that an executor makes for a job with little output.
func BenchmarkLife(b *testing.B) {
	for _, atOnce := range []int{1, 8} {
		b.Run(fmt.Sprint("jobs=", atOnce), func(b *testing.B) {
			s := newStore(b)
			life(b, s) // prepares the statements
			before := cpu(b)
			for b.Loop() {
				var jobs sync.WaitGroup
				for range atOnce {
					jobs.Go(func() { life(b, s) })
				}
				jobs.Wait()
			}
			b.ReportMetric((cpu(b)-before).Seconds()*1000/float64(b.N*atOnce), "cpu-ms/job")
		})
	}
}

func life(b *testing.B, s *Store) {
	ctx := context.Background()
	must := func(_ any, err error) {
		if err != nil {
			b.Error(err)
		}
	}
	j := newJob("echo")
	_, _, err := s.Insert(ctx, j, "", job.Limits{})
	must(nil, err)
	must(s.Manifest(ctx, j.ID))
	must(s.Update(ctx, j.ID, newToken("hash")))
	for n := range 10 {
		must(s.Update(ctx, j.ID, func(j *job.Job) (job.Record, error) {
			j.Phase = fmt.Sprint("phase ", n)
			return job.Record{Events: []job.Event{{Kind: job.EventPhaseStarted, Phase: j.Phase}}}, nil
		}))
		must(s.Job(ctx, j.ID))
	}
	for _, stream := range []string{job.Stdout, job.Stderr} {
		must(s.AppendOutput(ctx, j.ID, stream, 0, []byte("hello")))
		must(sealOutput(ctx, s, j.ID, stream, 5, nil))
	}
	must(s.Events(ctx, j.ID, 0))
	must(s.Output(ctx, j.ID, job.Stdout, 0, 100))
}
