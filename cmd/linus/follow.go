package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"linus/internal/job"
)

// watcher is the part of an engine that following a job needs.
type watcher interface {
	Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error)
	Result(ctx context.Context, id string) (job.Result, error)
	List(ctx context.Context, f job.Filter) (job.Page, error)
}

// waiter is the part of an engine that waiting for a job, or for its children, needs.
type waiter interface {
	watcher
	keeper
}

// following holds the options of follow. The zero value shows all events, from first to last.
type following struct {
	after int64              // the last event already known
	until func(job.Job) bool // stops before the last event
	quiet bool               // show only warnings, besides the live line
	phase string             // show only this phase, besides the live line; empty: all
}

// follow shows each phase and each provisioning step with its time on stderr, as it happens. It
// returns the job when its status is terminal and its VM is gone, or could not be destroyed yet and
// is left to the engine.
func (a *app) follow(ctx context.Context, e watcher, id string, f following) (job.Job, error) {
	p := &progress{out: a.stderr, live: isTerminal(a.stderr), colours: a.colours(a.stderr), quiet: f.quiet, only: f.phase}
	if p.live {
		p.usual = usualTimes(ctx, e)
	}
	defer p.clear()
	last := f.after
	for {
		events, j, err := p.whileLive(ctx, func(ctx context.Context) ([]job.Event, job.Job, error) {
			return e.Watch(ctx, id, last)
		})
		if err != nil {
			return j, err
		}
		if ctx.Err() != nil {
			return j, context.Cause(ctx)
		}
		for _, event := range events {
			p.show(event)
			last = event.Seq
		}
		if f.until != nil && f.until(j) || len(events) == 0 && j.Done() || j.Status.Terminal() && p.gaveUp {
			return j, nil
		}
		p.waiting = j.Progress
	}
}

// progress turns a job's events into lines.
type progress struct {
	out   io.Writer
	live  bool   // out is a terminal: the last line shows what is in progress
	quiet bool   // finished phases and steps are not shown
	only  string // the only phase whose end is shown; empty: all

	colours colours
	usual   map[string]time.Duration // of phases and steps, by name; for the live line

	phase, step   string
	phaseAt       time.Time
	stepAt        time.Time
	stepText      string
	waiting       string // the job's progress text while no phase runs
	gaveUp        bool   // the destroy phase has failed; the engine retries it
	liveLineShown bool
}

func (p *progress) show(e job.Event) {
	e.Phase = oneLine(e.Phase, 40)
	switch e.Kind {
	case job.EventPhaseStarted:
		p.phase, p.phaseAt, p.step = e.Phase, e.At, ""
	case job.EventProgress:
		p.endStep(e.At)
		p.step, p.stepAt, p.stepText = e.Phase, e.At, e.Text
	case job.EventPhaseEnded:
		p.endStep(e.At)
		how := "ok"
		if e.Text != "" {
			how = "failed"
			p.gaveUp = p.gaveUp || e.Phase == job.PhaseDestroy || e.Phase == job.PhaseRelease
		}
		if !p.quiet && (p.only == "" || p.only == e.Phase) {
			p.line("%-22s %8s  %s", e.Phase, seconds(e.At.Sub(p.phaseAt)), p.colours.paint(how))
		}
		p.phase = ""
	case job.EventWarning:
		p.gaveUp = p.gaveUp || e.Phase == job.PhaseDestroy
		p.line("%s %s", p.colours.paint("warning:"), oneLine(e.Text, 400))
	case job.EventNetwork:
		if !p.quiet {
			p.line("  %-20s %8s  %s", "network", "", oneLine(e.Text, 200))
		}
	case job.EventStatus, job.EventIgnored, job.EventDecided: // the result shows it
	}
}

func (p *progress) endStep(at time.Time) {
	if p.step != "" && !p.quiet {
		p.line("  %-20s %8s  %s", p.step, seconds(at.Sub(p.stepAt)), oneLine(p.stepText, 100))
	}
	p.step = ""
}

func (p *progress) line(format string, args ...any) {
	p.clear()
	_, _ = fmt.Fprintf(p.out, format+"\n", args...)
}

func (p *progress) clear() {
	if p.liveLineShown {
		_, _ = io.WriteString(p.out, "\r\x1b[K")
		p.liveLineShown = false
	}
}

// whileLive calls watch and, on a terminal, refreshes the live line until watch returns.
func (p *progress) whileLive(ctx context.Context, watch func(context.Context) ([]job.Event, job.Job, error)) ([]job.Event, job.Job, error) {
	if !p.live {
		return watch(ctx)
	}
	type answer struct {
		events []job.Event
		job    job.Job
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		events, j, err := watch(ctx)
		answered <- answer{events, j, err}
	}()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case got := <-answered: // returns soon after ctx ends, too
			return got.events, got.job, got.err
		case <-tick.C:
			p.drawLive(time.Now())
		}
	}
}

func (p *progress) drawLive(now time.Time) {
	var text string
	switch {
	case p.step != "":
		took := now.Sub(p.stepAt)
		text = fmt.Sprintf("  %-20s %8s  %s%s", p.step, seconds(took), gauge(took, p.usual[p.step]), oneLine(p.stepText, 400))
	case p.phase != "":
		took := now.Sub(p.phaseAt)
		text = fmt.Sprintf("%-22s %8s  %s%s", p.phase, seconds(took), gauge(took, p.usual[p.phase]), oneLine(p.waiting, 400))
	case p.waiting != "":
		text = oneLine(p.waiting, 400)
	default:
		return
	}
	r := []rune(text)
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s", string(r[:min(len(r), width(p.out)-1)]))
	p.liveLineShown = true
}
