package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/view"
)

func (s shape) follows() bool { return s.Verb == job.VerbWatch.Verb || s.Verb == job.VerbOutput.Verb }

// eventsAlive is the longest silence on a stream of events, after which a comment is sent.
const eventsAlive = 15 * time.Second

// stream serves a job's events, or its output, as server-sent events. The last event is end. A
// client that was cut off continues with Last-Event-ID.
func (s shape) stream(w http.ResponseWriter, r *http.Request, in any, call func(context.Context, any) (any, error)) {
	last := r.Header.Get("Last-Event-ID")
	at, err := strconv.ParseInt(last, 10, 64)
	if last != "" && (err != nil || at < 0) {
		s.fail(w, r, &job.FieldError{Field: "Last-Event-ID", Problem: fmt.Sprintf("%.80q is not the ID of an event", last), Remedy: "give the id of the last one that was received"})
		return
	}
	e := &eventStream{w: w, s: s}
	switch in := in.(type) {
	case job.Watching:
		if last != "" {
			in.After = at
		}
		err = e.events(r.Context(), in, call)
	case job.Stretch:
		if last != "" {
			in.Offset = at
		}
		err = e.output(r.Context(), in, call)
	}
	switch {
	case err == nil || r.Context().Err() != nil:
	case !e.begun:
		s.fail(w, r, err)
	default:
		_, p := encodeError(err)
		_ = e.send("", "error", s.public(p))
	}
}

type eventStream struct {
	w     http.ResponseWriter
	s     shape
	begun bool
}

// events sends a job's events as they happen, and then the job.
func (e *eventStream) events(ctx context.Context, in job.Watching, call func(context.Context, any) (any, error)) error {
	for {
		alive, cancel := context.WithTimeout(ctx, eventsAlive)
		out, err := call(alive, in)
		cancel()
		if err != nil {
			return err
		}
		watched := out.(job.WatchedJob)
		for _, event := range watched.Events {
			in.After = event.Seq
			if err := e.send(strconv.FormatInt(event.Seq, 10), event.Kind, view.Of(event)); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case len(watched.Events) > 0:
		case watched.Job.Done():
			return e.send("", "end", view.Of(watched.Job))
		default:
			if err := e.comment(); err != nil {
				return err
			}
		}
	}
}

// output sends a task's output as it arrives. The ID of each piece is the offset after it.
func (e *eventStream) output(ctx context.Context, in job.Stretch, call func(context.Context, any) (any, error)) error {
	in.Limit = maxFrame
	silent := time.Now()
	for wait := soonestLook; ; {
		out, err := call(job.Following(ctx, wait/2), in)
		if err != nil {
			return err
		}
		c := out.(job.Chunk)
		in.Offset = c.Next
		if len(c.Data) > 0 || c.Dropped > 0 {
			wait, silent = soonestLook, time.Now()
			piece := map[string]any{"offset": c.Offset, "next_offset": c.Next, "text": strings.ToValidUTF8(string(c.Data), string(utf8.RuneError))}
			if !utf8.Valid(c.Data) {
				piece["base64"] = c.Data
			}
			if c.Dropped > 0 {
				piece["dropped_bytes"] = c.Dropped
			}
			if err := e.send(strconv.FormatInt(c.Next, 10), "output", piece); err != nil {
				return err
			}
		}
		switch {
		case c.Complete:
			return e.send("", "end", map[string]int64{"next_offset": c.Next})
		case len(c.Data) > 0:
			continue
		case time.Since(silent) > eventsAlive || !e.begun:
			if err := e.comment(); err != nil {
				return err
			}
			silent = time.Now()
		}
		if sleep.For(ctx, wait) != nil {
			return nil
		}
		wait = min(wait*3/2, latestLook)
	}
}

// begin sets the headers of the response.
func (e *eventStream) begin() {
	if !e.begun {
		e.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		e.w.Header().Set("Cache-Control", "no-store")
		e.w.Header().Set("X-Accel-Buffering", "no")
		e.begun = true
	}
}

func (e *eventStream) comment() error { return e.write(":\n\n") }

func (e *eventStream) send(id, kind string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return e.write(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", id, kind, text))
}

func (e *eventStream) write(text string) error {
	e.begin()
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(e.w).Flush()
}
