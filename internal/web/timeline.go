package web

import (
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
)

// span is the time a job spent in a phase, or in a step of one.
type span struct {
	name       string
	step       bool
	begin, end time.Time
	open       bool   // it is not over
	problem    string // the phase's error
}

// spans returns the spans in a job's events, ordered by start. A phase that the end of an engine
// has interrupted continues when the next engine starts it again, and includes the time between. So
// does a phase that fails and is retried, as the destruction of a VM may be for days.
func spans(j job.Job, events []job.Event, now time.Time) []span {
	var all []span
	open := map[string]int{} // by phase
	step := -1
	endStep := func(at time.Time) {
		if step >= 0 {
			all[step].end, all[step].open = at, false
			step = -1
		}
	}
	for _, e := range events {
		switch e.Kind {
		case job.EventPhaseStarted:
			if len(all) == 0 && e.At.After(j.CreatedAt) {
				all = append(all, span{name: "queued", begin: j.CreatedAt, end: e.At})
			}
			if _, again := open[e.Phase]; again {
				continue
			}
			open[e.Phase] = len(all)
			if i := lastPhase(all); i >= 0 && all[i].name == e.Phase && all[i].problem != "" {
				open[e.Phase] = i
				all[i].end, all[i].open = now, true
			} else {
				all = append(all, span{name: e.Phase, begin: e.At, end: now, open: true})
			}
		case job.EventPhaseEnded:
			endStep(e.At)
			if i, ok := open[e.Phase]; ok {
				all[i].end, all[i].open, all[i].problem = e.At, false, e.Text
				delete(open, e.Phase)
			}
		case job.EventProgress:
			if _, ok := open[job.PhaseProvision]; ok && e.Phase != "" && e.Phase != job.PhaseProvision {
				endStep(e.At)
				step = len(all)
				all = append(all, span{name: e.Phase, step: true, begin: e.At, end: now, open: true})
			}
		}
	}
	if len(all) == 0 && !j.Done() {
		all = append(all, span{name: "queued", begin: j.CreatedAt, end: now, open: true})
	}
	return all
}

// lastPhase returns the index of the last span that is not a step, or -1.
func lastPhase(all []span) int {
	for i := len(all) - 1; i >= 0; i-- {
		if !all[i].step {
			return i
		}
	}
	return -1
}

// bar is a line of the timeline. Left and Width are percentages of the whole, as SVG attributes.
type bar struct {
	Name, Class string
	Step        bool
	Left, Width string
	Took        string
	Problem     string
}

// timeline draws the spans on one axis. It leaves out idle time, such as that
// between a VM's creation and its destruction days later.
func timeline(all []span) (bars []bar, total time.Duration) {
	var busy []span // merged, without gaps inside
	for _, s := range all {
		if n := len(busy); n > 0 && !s.begin.After(busy[n-1].end) {
			busy[n-1].end = slices.MaxFunc([]time.Time{busy[n-1].end, s.end}, time.Time.Compare)
		} else {
			busy = append(busy, span{begin: s.begin, end: s.end})
		}
	}
	place := func(t time.Time) (d time.Duration) { // position on the axis
		for _, b := range busy {
			if t.After(b.begin) {
				d += min(t.Sub(b.begin), b.end.Sub(b.begin))
			}
		}
		return d
	}
	for _, b := range busy {
		total += b.end.Sub(b.begin)
	}
	percent := func(d time.Duration) string {
		return fmt.Sprintf("%.2f%%", 100*float64(d)/float64(max(total, time.Millisecond)))
	}
	for _, s := range all {
		took := s.end.Sub(s.begin)
		if s.name == "queued" && !s.open && took < 50*time.Millisecond {
			continue
		}
		class := "bar-" + s.name
		if s.step {
			class = "bar-step"
		}
		if s.open {
			class += " bar-open"
		}
		if s.problem != "" {
			class += " bar-failed"
		}
		bars = append(bars, bar{
			Name: s.name, Class: class, Step: s.step, Left: percent(place(s.begin)), Width: percent(max(took, total/300)), // wide enough to be seen
			Took: shortDuration(took), Problem: s.problem,
		})
	}
	return bars, total
}

// shortDuration formats a duration for people.
func shortDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// age formats a duration for lists, coarsely, so that it does not change every second.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
