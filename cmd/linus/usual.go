package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
)

const (
	usualJobs  = 7                      // usual times are the medians of these
	usualWait  = 500 * time.Millisecond // for the engine to return them
	gaugeWidth = 10
)

// usualTimes returns how long phases and their steps took in the last jobs that succeeded here, by
// name, except the task itself. What the engine does not return within usualWait is left out.
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
			if _, again := began[e.Phase]; !again { // continued after a restart of the engine
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

// gauge shows the progress of a phase or step relative to its usual time. It is "" if that is
// unknown or under a second.
func gauge(took, usual time.Duration) string {
	if usual < time.Second {
		return ""
	}
	full := min(int(gaugeWidth*took/usual), gaugeWidth)
	return "[" + strings.Repeat("#", full) + strings.Repeat("-", gaugeWidth-full) + "] usually " + seconds(usual) + "  "
}
