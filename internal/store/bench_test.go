package store

import (
	"testing"

	"linus/internal/job"
)

func BenchmarkInsert(b *testing.B) {
	s := newStore(b)
	for b.Loop() {
		insert(b, s, newJob("echo"))
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
