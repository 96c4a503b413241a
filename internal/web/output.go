package web

import (
	"bytes"
	"cmp"
	"context"
	"html/template"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
)

const (
	tailSize        = 128 << 10 // bytes of a stream's end that a page starts with
	stepSize        = 256 << 10 // bytes read of a stream at a time
	quickPause      = 250 * time.Millisecond
	slowPause       = 1500 * time.Millisecond // when little is written
	firstOutputTime = 4 * time.Second         // after this the page is shown without the output
)

// together is the name of both streams as one output.
const together = "together"

// output is what a page shows of one stream, or of both as one: the end, and what follows.
type output struct {
	engine  job.Engine
	id      string
	name    string // of the stream, or together
	sources []*source
}

type source struct {
	name     string
	terminal terminal
	begun    bool
	next     int64  // the offset to read next
	skipped  int64  // bytes before what is shown
	complete bool   // nothing follows
	problem  string // why the last read failed
}

func newOutput(e job.Engine, id, name string) *output {
	o := &output{engine: e, id: id, name: name}
	if name != together {
		o.sources = []*source{{name: name}}
		return o
	}
	o.sources = []*source{{name: job.Stdout}, {name: job.Stderr}}
	return o
}

type streamView struct {
	ID, Name string
	Done     template.HTML // whole lines
	Current  template.HTML // the current line
	Skips    []skip
	Empty    bool
	Complete bool
	Problem  string
}

// skip is the number of bytes of a stream's beginning that are not shown.
type skip struct {
	Stream string
	Bytes  int64
}

// Together reports whether the output is both streams as one.
func (v streamView) Together() bool { return v.Name == together }

// Note returns a remark about the stream, or "".
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

// view returns what is new, or everything if all is set. If both streams are shown as one, lines
// are in the order in which they were read: what existed at the first read is stdout, then stderr.
func (o *output) view(all bool) streamView {
	v := streamView{ID: o.id, Name: o.name, Complete: true, Empty: true}
	for _, s := range o.sources {
		if all && s.skipped > 0 {
			v.Skips = append(v.Skips, skip{s.name, s.skipped})
		}
		done, current := s.terminal.take(), s.terminal.current()
		if o.name == together && s.name == job.Stderr {
			done, current = ofStderr(done), ofStderr(current)
		}
		if v.Current != "" && current != "" {
			current = "\n" + current
		}
		v.Done += template.HTML(done)       //nolint:gosec // escaped by the terminal
		v.Current += template.HTML(current) //nolint:gosec // escaped by the terminal
		v.Complete, v.Empty = v.Complete && s.complete, v.Empty && s.next == 0
		v.Problem = cmp.Or(v.Problem, s.problem)
	}
	return v
}

func ofStderr(html string) string {
	if html == "" {
		return ""
	}
	return `<span class="of-stderr">` + html + `</span>`
}

// read reads more of each stream, the first time from near its end. It returns the largest number
// of bytes read from a stream.
func (o *output) read(ctx context.Context) (most int64) {
	for _, s := range o.sources {
		before := s.next
		if err := s.read(ctx, o.engine, o.id); err != nil {
			s.problem = words.In(err.Error())
		}
		most = max(most, s.next-before)
	}
	return most
}

// begun reports whether every stream has been read at least once.
func (o *output) begun() bool {
	return !slices.ContainsFunc(o.sources, func(s *source) bool { return !s.begun })
}

func (s *source) read(ctx context.Context, e job.Engine, id string) error {
	if s.complete {
		return nil
	}
	offset, limit := s.next, int64(stepSize)
	if !s.begun {
		offset, limit = -tailSize, tailSize
	}
	chunk, err := e.Output(ctx, id, s.name, offset, limit)
	if err != nil {
		return err
	}
	data := chunk.Data
	switch {
	case !s.begun && chunk.Offset > 0: // start with a whole line
		n := bytes.IndexByte(data, '\n') + 1
		data, s.skipped = data[n:], chunk.Offset+int64(n)
	case chunk.Dropped > 0:
		_, _ = s.terminal.Write([]byte("\n[" + bytesText(chunk.Dropped) + " were not kept]\n"))
	}
	_, _ = s.terminal.Write(data)
	s.begun, s.next, s.complete, s.problem = true, chunk.Next, chunk.Complete, ""
	return nil
}

// followOutput sends the output and what follows until it is complete or, once over is closed,
// cannot be read. If a task writes faster than can be shown, only the end is sent from time to
// time. Events are named after the stream: NAME-all replaces everything, NAME adds whole lines,
// NAME-line is the current line, and NAME-note is the remark.
func (p *pages) followOutput(ctx context.Context, id, name string, over <-chan struct{}, event func(name, html string) error) error {
	o := newOutput(p.Engine, id, name)
	told, wait := streamView{}, quickPause
	for whole := true; ctx.Err() == nil; {
		got := o.read(job.Following(ctx, quickPause/2))
		if !whole && got >= stepSize {
			o, whole = newOutput(p.Engine, id, name), true
			continue
		}
		v := o.view(whole)
		if err := p.sendOutput(v, told, whole && o.begun(), event); err != nil {
			return err
		}
		if told = v; o.begun() {
			whole = false
		}
		if v.Complete || v.Problem != "" && closed(over) {
			return nil
		}
		if wait = min(wait*3/2, slowPause); got > 0 {
			wait = quickPause
		}
		select {
		case <-ctx.Done():
		case <-over: // nothing will follow
			wait = quickPause
			_ = sleep.For(ctx, wait)
		case <-time.After(wait):
		}
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
