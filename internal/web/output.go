package web

import (
	"bytes"
	"context"
	"html/template"
	"time"

	"linus/internal/job"
)

const (
	tailSize        = 128 << 10 // bytes of a stream's end that a page starts with
	stepSize        = 256 << 10 // bytes read of a stream at a time
	quickPause      = 250 * time.Millisecond
	slowPause       = 1500 * time.Millisecond // when little is written
	firstOutputTime = 4 * time.Second         // after that the page is shown without it
)

// output is the part of a stream that a page shows: its end, and what follows.
type output struct {
	engine   job.Engine
	id, name string

	terminal terminal
	begun    bool
	next     int64  // the offset to read next
	skipped  int64  // bytes before what is shown
	complete bool   // nothing follows
	problem  string // why the last read failed
}

func newOutput(e job.Engine, id, name string) *output { return &output{engine: e, id: id, name: name} }

// streamView is a stream for the template.
type streamView struct {
	ID, Name string
	Done     template.HTML // whole lines
	Current  template.HTML // the current line
	Skipped  int64         // bytes before
	Empty    bool
	Complete bool
	Problem  string
}

// Note is a remark about the stream; empty if none is needed.
func (v streamView) Note() string {
	switch {
	case v.Problem != "":
		return "Not read: " + v.Problem
	case v.Empty && v.Complete:
		return "Nothing was written."
	case v.Empty:
		return "Nothing has been written yet."
	}
	return ""
}

// view returns what is new, or, if all is set, everything.
func (o *output) view(all bool) streamView {
	v := streamView{ID: o.id, Name: o.name, Complete: o.complete, Problem: o.problem, Empty: o.next == 0}
	if all {
		v.Skipped = o.skipped
	}
	v.Done, v.Current = template.HTML(o.terminal.take()), template.HTML(o.terminal.current()) //nolint:gosec // escaped by the terminal
	return v
}

// read reads on, the first time from near the end.
func (o *output) read(ctx context.Context) error {
	offset, limit := o.next, int64(stepSize)
	if !o.begun {
		offset, limit = -tailSize, tailSize
	}
	chunk, err := o.engine.Output(ctx, o.id, o.name, offset, limit)
	if err != nil {
		return err
	}
	data := chunk.Data
	switch {
	case !o.begun && chunk.Offset > 0: // start with a whole line
		n := bytes.IndexByte(data, '\n') + 1
		data, o.skipped = data[n:], chunk.Offset+int64(n)
	case chunk.Dropped > 0:
		_, _ = o.terminal.Write([]byte("\n[" + bytesText(chunk.Dropped) + " were not kept]\n"))
	}
	_, _ = o.terminal.Write(data)
	o.begun, o.next, o.complete, o.problem = true, chunk.Next, chunk.Complete, ""
	return nil
}

// followOutput sends what the stream has, and what follows, until it is
// complete or, once over is closed, cannot be read. If a task writes faster
// than can be shown, only the end is sent from time to time. Events are named
// after the stream: NAME-all replaces everything, NAME adds whole lines,
// NAME-line is the current line, NAME-note the remark about it.
func (p *pages) followOutput(ctx context.Context, id, name string, over <-chan struct{}, event func(name, html string) error) error {
	o := newOutput(p.Engine, id, name)
	told, wait := streamView{}, quickPause
	for whole := true; ctx.Err() == nil; {
		before := o.next
		if err := o.read(ctx); err != nil {
			o.problem = words.In(err.Error())
		}
		if !whole && o.next-before >= stepSize {
			o, whole = newOutput(p.Engine, id, name), true
			continue
		}
		v := o.view(whole)
		if err := p.sendOutput(v, told, whole && o.begun, event); err != nil {
			return err
		}
		if told = v; o.begun {
			whole = false
		}
		if o.complete || o.problem != "" && closed(over) {
			return nil
		}
		if wait = min(wait*3/2, slowPause); o.next > before {
			wait = quickPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-over: // nothing will follow
			wait = quickPause
			pause(ctx, wait)
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// sendOutput sends what differs from what was sent before.
func (p *pages) sendOutput(v, told streamView, whole bool, event func(name, html string) error) error {
	if whole {
		html, err := p.fragment("job", "terminal", v)
		if err != nil {
			return err
		}
		if err := event(v.Name+"-all", html); err != nil {
			return err
		}
	} else if v.Done != "" {
		if err := event(v.Name, `<span class="piece">`+string(v.Done)+`</span>`); err != nil {
			return err
		}
	}
	if !whole && v.Current != told.Current {
		if err := event(v.Name+"-line", string(v.Current)); err != nil {
			return err
		}
	}
	if v.Note() == told.Note() {
		return nil
	}
	return event(v.Name+"-note", template.HTMLEscapeString(v.Note()))
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
