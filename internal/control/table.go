package control

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"linus/internal/job"
)

// verbs returns the operations of an engine: its verbs, and Artifacts and Terminal, which are
// made of some.
func verbs(e job.Engine) []row {
	var all []row
	for _, v := range job.Verbs() {
		at, in := v.Route, v.In
		if v.Select != nil {
			at, in = at+"{?"+strings.Join(v.List.Params, ",")+"}", reflect.TypeFor[job.Query]()
		}
		s := newShape(v.Name, at, in)
		s.id, s.does, s.out, s.repeatable, s.heavy, s.makes, s.at, s.key = v.ID, v.Does, v.Out, v.Again, v.Heavy, v.Makes, v.At, v.Key
		if s.key == "" && v.Out.Kind() == reflect.Slice {
			s.key = "items"
		}
		call := func(ctx context.Context, in any) (any, error) { return do(ctx, v, polled{e}, in) }
		if v.Out == reflect.TypeFor[job.Tunnel]() {
			all = append(all, socket(s, dialVM(call)))
			continue
		}
		all = append(all, route(s, call))
		if v.Name == "OpenArtifact" {
			artifacts := newShape("Artifacts", "GET /v1/jobs/{id}/artifacts", reflect.TypeFor[jobRef]())
			artifacts.id, artifacts.does, artifacts.out, artifacts.repeatable = "listArtifacts", "List the files that a job has left, and those that were not kept", reflect.TypeFor[leftFiles](), always
			all = append(all, route(artifacts, func(ctx context.Context, in any) (any, error) {
				j, err := e.Job(ctx, in.(jobRef).ID)
				return leftFiles{j.Artifacts, j.SkippedArtifacts}, err
			}))
		}
		if v.Name == "Resize" { // beside it in the document
			terminal := newShape("Terminal", "GET /v1/jobs/{id}/terminal{?offset}", reflect.TypeFor[terminalRef]())
			terminal.id, terminal.does = "openTerminal", "Open a task's terminal, as a WebSocket"
			all = append(all, socket(terminal, func(ctx context.Context, in any, accept accepting) error {
				return serveTerminal(ctx, e, in.(terminalRef), accept)
			}))
		}
	}
	return all
}

// do calls a verb. What a request may ask for besides is done here, once.
func do(ctx context.Context, v *job.Verb, e polled, in any) (any, error) {
	switch in := in.(type) {
	case job.Submission:
		if err := job.Within("wait_seconds", int64(in.Wait), 0, int64(longestPoll/time.Second)); err != nil {
			return nil, err
		}
		out, err := v.Do(ctx, e, in)
		made, is := out.(job.Job)
		if err != nil || in.Wait == 0 || !is {
			return out, err
		}
		timed, cancel := context.WithTimeout(ctx, time.Duration(in.Wait)*time.Second)
		defer cancel()
		_, ended, err := e.Watch(timed, made.ID, job.OnlyEnd)
		return ended, err
	case job.Query:
		none := reflect.Zero(v.Out).Interface()
		if _, err := v.Select(none, in); err != nil { // before anything is done for it
			return nil, err
		}
		out, err := v.Do(ctx, e, job.None{})
		if err != nil {
			return out, err
		}
		return v.Select(out, in)
	}
	return v.Do(ctx, e, in)
}

// process returns the calls to the process an engine runs in.
func process(s *Server) []row {
	return []row{
		plain("Info", "getInfo", "Get the engine's version, and whom it takes the caller for", "GET /v1/info", always, s.tell),
		plain("Stop", "stopEngine", "Stop the engine", "POST /v1/stop", always, s.end),
		plain("Drain", "drainEngine", "Stop the engine once its jobs have ended", "POST /v1/drain", always, s.drain),
		plain("Yield", "yieldEngine", "Stop the engine unless somebody needs it", "POST /v1/yield", never, s.yield),
	}
}

// jobRef is the input of Artifacts.
type jobRef struct {
	ID string `json:"id"`
}

// leftFiles is the result of Artifacts.
type leftFiles struct {
	Items []job.Artifact `json:"items"` // what can be fetched, once the job has ended
	job.SkippedArtifacts
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
