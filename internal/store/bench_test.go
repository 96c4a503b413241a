package store

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/pgtest"
)

func BenchmarkInsert(b *testing.B) {
	s := newStore(b)
	for b.Loop() {
		insert(b, s, newJob("echo"))
	}
}

// BenchmarkQueue is what a job costs while others wait; restart is for all of them.
func BenchmarkQueue(b *testing.B) {
	for _, waiting := range []int{100, 10000} {
		s := newStore(b)
		jobsOf(b, s, waiting, 100)
		of := func(name string) string { return fmt.Sprintf("%s/waiting=%d", name, waiting) }
		id := insert(b, s, newJob("echo")).ID
		ctx := b.Context()
		b.Run(of("dispatch"), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Job(ctx, id); err != nil {
					b.Fatal(err)
				}
				update(b, s, id, func(j *job.Job) ([]job.Event, error) {
					j.Phase = job.PhaseProvision
					return []job.Event{{Kind: job.EventPhaseStarted, Phase: j.Phase}}, nil
				})
			}
		})
		b.Run(of("list"), func(b *testing.B) {
			for b.Loop() {
				if _, err := s.List(ctx, job.Filter{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(of("restart"), func(b *testing.B) {
			for b.Loop() {
				if ids, err := s.Waiting(ctx); err != nil || len(ids) < waiting {
					b.Fatal(len(ids), err)
				}
				if _, err := s.InProgress(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(of("submit"), func(b *testing.B) {
			for b.Loop() {
				insert(b, s, newJob("echo"))
			}
		})
		b.Run(of("submit-32"), func(b *testing.B) {
			b.SetParallelism(32 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					insert(b, s, newJob("echo"))
				}
			})
		})
	}
}

func BenchmarkUpdate(b *testing.B) {
	s := newStore(b)
	id := insert(b, s, newJob("echo")).ID
	for b.Loop() {
		update(b, s, id, func(j *job.Job) ([]job.Event, error) {
			j.Progress = "running"
			return []job.Event{{Kind: job.EventProgress, Text: "running"}}, nil
		})
	}
}

func BenchmarkJob(b *testing.B) {
	s := newStore(b)
	id := insert(b, s, newJob("echo")).ID
	for b.Loop() {
		if _, err := s.Job(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAppendOutput appends 1 KiB pieces, the smallest a runner sends.
func BenchmarkAppendOutput(b *testing.B) {
	s := openStore(b, Options{Dir: b.TempDir(), MaxOutput: 1 << 40})
	id := insert(b, s, newJob("echo")).ID
	piece := text(1024)
	b.SetBytes(int64(len(piece)))
	var seen int64
	for b.Loop() {
		seen = appendOutput(b, s, id, seen, piece)
	}
}

// An engine takes one of 10,000 jobs that wait.
func BenchmarkTake(b *testing.B) {
	s := openURL(b, pgtest.Database(b))
	if _, err := s.Join(b.Context(), job.EngineInfo{}, time.Hour); err != nil {
		b.Fatal(err)
	}
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = insert(b, s, newJob("waits")).ID
	}
	b.ResetTimer()
	for i := range b.N {
		if _, taken, err := s.Take(b.Context(), ids[i%len(ids)]); err != nil || !taken {
			b.Fatal(taken, err)
		}
	}
}
