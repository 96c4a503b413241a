package web

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

func TestTimeline_IsWhereTheTimeWent(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	begun := func(s int, phase string) job.Event {
		return job.Event{At: at(s), Kind: job.EventPhaseStarted, Phase: phase}
	}
	ended := func(s int, phase, problem string) job.Event {
		return job.Event{At: at(s), Kind: job.EventPhaseEnded, Phase: phase, Text: problem}
	}
	step := func(s int, name string) job.Event {
		return job.Event{At: at(s), Kind: job.EventProgress, Phase: name}
	}
	tests := []struct {
		name   string
		job    job.Job
		events []job.Event
		now    int
		want   []bar
		total  int
	}{
		{
			"nothing has begun",
			job.Job{},
			nil, 10,
			[]bar{{Name: "queued", Class: "bar-queued bar-open", Left: "0.00%", Width: "100.00%", Took: "10 s"}},
			10,
		},
		{
			"phases and steps",
			job.Job{},
			[]job.Event{
				begun(10, "provision"), step(10, "create_vm"), step(30, "wait"), ended(50, "provision", ""), begun(50, "run"),
			},
			100,
			[]bar{
				{Name: "queued", Class: "bar-queued", Left: "0.00%", Width: "10.00%", Took: "10 s"},
				{Name: "provision", Class: "bar-provision", Left: "10.00%", Width: "40.00%", Took: "40 s"},
				{Name: "create_vm", Class: "bar-step", Step: true, Left: "10.00%", Width: "20.00%", Took: "20 s"},
				{Name: "wait", Class: "bar-step", Step: true, Left: "30.00%", Width: "20.00%", Took: "20 s"},
				{Name: "run", Class: "bar-run bar-open", Left: "50.00%", Width: "50.00%", Took: "50 s"},
			},
			100,
		},
		{
			"a phase that failed",
			job.Job{},
			[]job.Event{begun(0, "provision"), ended(100, "provision", "no storage")},
			500,
			[]bar{{Name: "provision", Class: "bar-provision bar-failed", Left: "0.00%", Width: "100.00%", Took: "100 s", Problem: "no storage"}},
			100,
		},
		{
			"a phase another engine went on with",
			job.Job{},
			[]job.Event{begun(0, "run"), begun(40, "run"), ended(100, "run", "")},
			500,
			[]bar{{Name: "run", Class: "bar-run", Left: "0.00%", Width: "100.00%", Took: "100 s"}},
			100,
		},
		{
			"a phase that is tried again and again",
			job.Job{},
			[]job.Event{
				begun(0, "run"), ended(50, "run", ""), begun(50, "destroy"), ended(60, "destroy", "no answer"),
				begun(80, "destroy"), ended(90, "destroy", "still none"), begun(95, "destroy"), ended(100, "destroy", ""),
			},
			500,
			[]bar{
				{Name: "run", Class: "bar-run", Left: "0.00%", Width: "50.00%", Took: "50 s"},
				{Name: "destroy", Class: "bar-destroy", Left: "50.00%", Width: "50.00%", Took: "50 s"},
			},
			100,
		},
		{
			"a VM that goes days later",
			job.Job{},
			[]job.Event{begun(0, "provision"), ended(75, "provision", ""), begun(900_000, "destroy"), ended(900_025, "destroy", "")},
			1_000_000,
			[]bar{
				{Name: "provision", Class: "bar-provision", Left: "0.00%", Width: "75.00%", Took: "75 s"},
				{Name: "destroy", Class: "bar-destroy", Left: "75.00%", Width: "25.00%", Took: "25 s"},
			},
			100,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.job.CreatedAt = start
			bars, total := timeline(spans(tt.job, tt.events, at(tt.now)))
			if diff := cmp.Diff(tt.want, bars); diff != "" {
				t.Error(diff)
			}
			if total != time.Duration(tt.total)*time.Second {
				t.Errorf("in all %s", total)
			}
		})
	}
}

func TestDurations_AreForPeople(t *testing.T) {
	for d, want := range map[time.Duration][2]string{
		-time.Second:               {"0 s", "0 s"},
		1260 * time.Millisecond:    {"1.3 s", "1 s"},
		61 * time.Second:           {"61 s", "1 min"},
		150 * time.Second:          {"2 min 30 s", "2 min"},
		150 * time.Minute:          {"2 h 30 min", "2 h"},
		5*24*time.Hour + time.Hour: {"5 days", "5 days"},
	} {
		if got := [2]string{shortDuration(d), age(d)}; got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
