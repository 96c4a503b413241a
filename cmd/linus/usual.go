package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
)

const (
	usualJobs  = 7                      // of which the usual times are the medians
	usualWait  = 500 * time.Millisecond // for the engine to tell of them
	gaugeWidth = 10
)

// usualTimes are how long phases and their steps took in the last jobs that
// succeeded here, by name. How long a task runs is its own affair. What cannot
// be told in a moment is left out.
func usualTimes(ctx context.Context, e watcher) map[string]time.Duration {
	ctx, cancel := context.WithTimeout(ctx, usualWait)
	defer cancel()
	page, err := e.List(ctx, job.Filter{Status: job.Success, Limit: usualJobs})
	if err != nil {
		return nil
	}
	took := map[string][]time.Duration{}
	for _, j := range page.Jobs {
		events, _, err := e.Watch(ctx, j.ID, 0)
		if err != nil || ctx.Err() != nil {
			break
		}
		addTimes(took, events)
	}
	usual := map[string]time.Duration{}
	for name, times := range took {
		slices.Sort(times)
		usual[name] = times[len(times)/2]
	}
	return usual
}

// addTimes adds what one job's phases and steps took.
func addTimes(took map[string][]time.Duration, events []job.Event) {
	began := map[string]time.Time{}
	step := ""
	end := func(name string, at time.Time) {
		if from, ok := began[name]; ok {
			took[name] = append(took[name], at.Sub(from))
			delete(began, name)
		}
	}
	for _, e := range events {
		switch {
		case e.Phase == job.PhaseRun || e.Phase == "":
		case e.Kind == job.EventPhaseStarted:
			if _, again := began[e.Phase]; !again { // after an engine's end it goes on
				began[e.Phase] = e.At
			}
		case e.Kind == job.EventProgress:
			end(step, e.At)
			step = e.Phase
			began[step] = e.At
		case e.Kind == job.EventPhaseEnded:
			end(step, e.At)
			step = ""
			if e.Text == "" {
				end(e.Phase, e.At)
			}
		}
	}
}

// gauge shows how far a phase or step is, as far as its usual time tells; ""
// where there is none, or it is over in a blink.
func gauge(took, usual time.Duration) string {
	if usual < time.Second {
		return ""
	}
	full := min(int(gaugeWidth*took/usual), gaugeWidth)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", gaugeWidth-full) + "] usually " + seconds(usual) + "  "
}
