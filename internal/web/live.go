package web

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"linus/internal/sleep"
)

const pingTime = 15 * time.Second // between keep-alives on a quiet stream

// stream sends a page's changes to a browser as server-sent events. Each event is a part of the
// page, named after it, with its new HTML. A browser that reconnects gets everything again, so
// nothing depends on what was sent on an earlier connection.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	sent    map[string]string // the HTML last sent for each part
	at      time.Time         // of the last write; zero: nothing was sent yet
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, control: http.NewResponseController(w), sent: map[string]string{}}
}

// begin sends the response headers and the retry time once. An error shows at the next write.
func (s *stream) begin() {
	if !s.at.IsZero() {
		return
	}
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // for a proxy in between
	_, _ = fmt.Fprint(s.w, "retry: 1000\n\n")
	_ = s.control.Flush()
	s.at = time.Now()
}

// event sends one event, even if it repeats the last one.
func (s *stream) event(name, html string) error {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	for line := range strings.SplitSeq(strings.ReplaceAll(html, "\r", "&#13;"), "\n") {
		b.WriteString("data: " + line + "\n")
	}
	b.WriteByte('\n')
	return s.write(b.Bytes())
}

// part sends a part of the page if it differs from what was sent last.
func (s *stream) part(name, html string) error {
	if last, ok := s.sent[name]; ok && last == html {
		return nil
	}
	s.sent[name] = html
	return s.event(name, html)
}

// ping sends a keep-alive if nothing was sent for pingTime.
func (s *stream) ping() error {
	s.begin()
	if time.Since(s.at) < pingTime {
		return nil
	}
	return s.write([]byte(": ping\n\n"))
}

func (s *stream) write(data []byte) error {
	s.begin()
	s.at = time.Now()
	if _, err := s.w.Write(data); err != nil {
		return err
	}
	return s.control.Flush()
}

// section is a page with a part that changes.
type section struct {
	page, part string
	pause      time.Duration // between two reads
	view       func(*http.Request) (any, error)
}

func (p *pages) page(s section) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := s.view(r)
		if err != nil {
			p.failed(w, r, err)
			return
		}
		p.render(w, r, http.StatusOK, s.page, v)
	}
}

// live sends a section's part whenever it has changed, until the browser disconnects or the server
// stops. If the first read fails, the response is the error.
func (p *pages) live(s section) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		to := newStream(w)
		for {
			v, err := s.view(r)
			var html string
			if err == nil {
				html, err = p.fragment(s.page, s.part, v)
			}
			if err == nil {
				err = to.part(s.part, html)
			}
			if err == nil {
				err = to.ping()
			}
			switch {
			case err == nil:
			case to.at.IsZero():
				p.failed(w, r, err)
				return
			case r.Context().Err() == nil:
				p.Log.Debug("stream of a page ended", "path", r.URL.Path, "err", err)
				return
			default:
				return
			}
			if sleep.For(r.Context(), s.pause) != nil || p.sessions.of(r) == "" { // logged out in the meantime
				return
			}
		}
	}
}
