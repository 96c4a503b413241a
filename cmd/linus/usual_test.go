package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

// past is a watcher of jobs that have ended.
type past map[string][]job.Event

func (p past) Watch(_ context.Context, id string, _ int64) ([]job.Event, job.Job, error) {
	return p[id], job.Job{}, nil
}
func (p past) Result(context.Context, string) (job.Result, error) { return job.Result{}, nil }
func (p past) List(_ context.Context, f job.Filter) (job.Page, error) {
	var page job.Page
	for i := range len(p) {
		if f.Status == job.Success && i < f.Limit {
			page.Jobs = append(page.Jobs, job.Summary{ID: fmt.Sprint(i)})
		}
	}
	return page, nil
}

func TestUsualTimes_AreTheMediansOfPhasesAndSteps(t *testing.T) {
	at := func(kind, phase string, second int) job.Event {
		return job.Event{Kind: kind, Phase: phase, At: time.Unix(int64(second), 0)}
	}
	of := func(network int) []job.Event {
		return []job.Event{
			at(job.EventStatus, "", 0),
			at(job.EventPhaseStarted, "provision", 10),
			at(job.EventProgress, "start_vm", 11),
			at(job.EventProgress, "wait_for_network", 13),
			at(job.EventPhaseEnded, "provision", 13+network),
			at(job.EventPhaseStarted, "run", 50),
			at(job.EventPhaseEnded, "run", 500),
		}
	}
	interrupted := []job.Event{ // by an engine's end: the phase goes on with the next
		at(job.EventPhaseStarted, "provision", 10),
		at(job.EventPhaseStarted, "provision", 60),
		at(job.EventPhaseEnded, "provision", 70),
		at(job.EventPhaseStarted, "destroy", 80),
		{Kind: job.EventPhaseEnded, Phase: "destroy", At: time.Unix(90, 0), Text: "it failed"},
	}
	got := usualTimes(t.Context(), past{"0": of(20), "1": of(300), "2": of(30), "3": of(1), "4": interrupted})
	want := map[string]time.Duration{
		"provision":        33 * time.Second, // of 4, 23, 33, 60 and 303
		"start_vm":         2 * time.Second,
		"wait_for_network": 30 * time.Second, // of 1, 20, 30 and 300
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestProgress_LiveLineShowsTheUsualTime(t *testing.T) {
	at := time.Unix(0, 0)
	tests := []struct {
		name  string
		took  time.Duration
		usual time.Duration
		want  string
	}{
		{"half way", 5 * time.Second, 10 * time.Second, "5.0 s  [#####-----] usually 10.0 s  starting"},
		{"longer than usual", 30 * time.Second, 10 * time.Second, "30.0 s  [##########] usually 10.0 s  starting"},
		{"over in a blink", 0, 900 * time.Millisecond, "0.0 s  starting"},
		{"not known", time.Second, 0, "1.0 s  starting"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			p := &progress{out: &out, live: true, usual: map[string]time.Duration{"start_vm": tt.usual}}
			p.show(job.Event{Kind: job.EventProgress, Phase: "start_vm", Text: "starting", At: at})
			p.drawLive(at.Add(tt.took))
			if !strings.HasSuffix(out.String(), " "+tt.want) {
				t.Errorf("%q does not end with %q", out.String(), tt.want)
			}
		})
	}
}
