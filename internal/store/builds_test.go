package store

import (
	"errors"
	"testing"

	"linus/internal/job"
)

func TestBuilds_AreNotedForATime(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	for _, note := range []struct{ id, text, oldest string }{{"01-a", "waits", "00"}, {"02-b", "waits", "00"}, {"02-b", "goes on", "02"}} {
		if err := s.NoteBuild(ctx, note.id, note.text, note.oldest); err != nil {
			t.Fatal(err)
		}
	}
	if note, err := s.Build(ctx, "02-b"); err != nil || note != "goes on" {
		t.Errorf("%q, %v", note, err)
	}
	if note, err := s.Build(ctx, "01-a"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("one that is old: %q, %v", note, err)
	}
}
