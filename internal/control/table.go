package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"linus/internal/job"
)

// verbs returns the operations of an engine: its verbs, and Terminal, which is made of some.
func verbs(e job.Engine) []row {
	var all []row
	for _, v := range job.Verbs() {
		s := newShape(v.Name, v.Route, v.In)
		s.out, s.repeatable, s.heavy = v.Out, v.Again, v.Heavy
		call := func(ctx context.Context, in any) (any, error) { return v.Do(ctx, polled{e}, in) }
		if v.Out == reflect.TypeFor[job.Tunnel]() {
			all = append(all, socket(s, dialVM(call)))
			continue
		}
		all = append(all, route(s, call))
		if v.Name == "Resize" { // beside it in the document
			terminal := newShape("Terminal", "GET /v1/jobs/{id}/terminal{?offset}", reflect.TypeFor[terminalRef]())
			all = append(all, socket(terminal, func(ctx context.Context, in any, accept accepting) error {
				return serveTerminal(ctx, e, in.(terminalRef), accept)
			}))
		}
	}
	return all
}

// process returns the calls to the process an engine runs in.
func process(s *Server) []row {
	return []row{
		plain("Info", "GET /v1/info", always, s.tell),
		plain("Stop", "POST /v1/stop", always, s.end),
		plain("Drain", "POST /v1/drain", always, s.drain),
		plain("Yield", "POST /v1/yield", never, s.yield),
	}
}

// terminalRef is the input of Terminal.
type terminalRef struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
}

// yielded is what Yield returns.
type yielded struct {
	Ends bool `json:"ends"`
}

// Whether a call may be repeated after its response was lost.
func always(any) bool { return true }
func never(any) bool  { return false }

// longestPoll bounds one request of Watch; the client repeats it.
const longestPoll = 50 * time.Second

// polled is an engine whose Watch returns after a while, with events or without.
type polled struct{ job.Engine }

func (p polled) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, longestPoll)
	defer cancel()
	events, j, err := p.Engine.Watch(ctx, id, after)
	if err == nil && len(events) == 0 && errors.Is(context.Cause(ctx), ErrStopped) {
		err = ErrStopped // so that the client does not repeat it and start another engine for it
	}
	return events, j, err
}

// artifactHeader is the header with an artifact's description.
const artifactHeader = "Linus-Artifact"

// sendFile sends an artifact. If reading it fails, the response is cut off.
func sendFile(w http.ResponseWriter, d job.Download) {
	defer func() { _ = d.File.Close() }()
	description, err := json.Marshal(d.About)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen: strings and numbers
	}
	w.Header().Set(artifactHeader, url.QueryEscape(string(description)))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(d.About.Size, 10))
	if _, err := io.Copy(w, d.File); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// receiveFile takes an artifact from its response; the reader closes it.
func receiveFile(resp *http.Response, d *job.Download) error {
	description, err := url.QueryUnescape(resp.Header.Get(artifactHeader))
	if err == nil {
		err = json.Unmarshal([]byte(description), &d.About)
	}
	d.File = resp.Body
	return err
}
