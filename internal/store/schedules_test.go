package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

func TestSchedules_AreStored(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	made := job.Schedule{ScheduleSpec: job.ScheduleSpec{Name: "b", Cron: "@daily", Manifest: job.Manifest{Task: "true", Matrix: []string{"a=1"}}}, Principal: "ci", CreatedAt: time.Now().UTC().Truncate(time.Second)}
	for i, want := range []bool{true, false} {
		if isNew, err := s.InsertSchedule(ctx, made); err != nil || isNew != want {
			t.Errorf("%d: %v, %v", i, isNew, err)
		}
	}
	other := made
	other.Name = "a"
	if _, err := s.InsertSchedule(ctx, other); err != nil {
		t.Fatal(err)
	}
	changed, err := s.UpdateSchedule(ctx, "b", func(is *job.Schedule) error {
		is.Note(job.Run{At: made.CreatedAt, Job: "j"})
		return nil
	})
	if err != nil || changed.LastJob() != "j" {
		t.Errorf("%+v, %v", changed, err)
	}
	if _, err := s.UpdateSchedule(ctx, "c", func(*job.Schedule) error { return nil }); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	all, err := s.Schedules(ctx)
	if diff := cmp.Diff([]job.Schedule{other, changed}, all); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if err := errors.Join(s.RemoveSchedule(ctx, "a"), s.RemoveSchedule(ctx, "a")); err != nil {
		t.Error(err)
	}
	if all, err := s.Schedules(ctx); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}
