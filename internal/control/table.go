package control

import (
	"context"
	"errors"
	"reflect"
	"time"

	"linus/internal/job"
)

// verbs returns an engine's verbs, and Artifacts and Terminal, which combine some of them.
func verbs(e job.Engine) []row {
	var all []row
	for _, v := range job.Verbs() {
		s := shapeOf(v)
		of := e // not wrapped: inputs and results are large, and each wrapper copies them
		if v == job.VerbWatch.Verb {
			of = polled{e}
		}
		call := func(ctx context.Context, in any) (any, error) { return do(ctx, v, of, in) }
		if s.socket() {
			all = append(all, socket(s, dialVM(call)))
			continue
		}
		all = append(all, route(s, call))
		switch v { // to stand beside these verbs in the document
		case job.VerbOpenArtifact.Verb:
			all = append(all, route(shapeOf(artifactsVerb), func(ctx context.Context, in any) (any, error) {
				j, err := e.Job(ctx, in.(jobRef).ID)
				return leftFiles{j.Artifacts, j.SkippedArtifacts}, err
			}))
		case job.VerbResize.Verb:
			all = append(all, socket(shapeOf(terminalVerb), func(ctx context.Context, in any, accept accepting) error {
				return serveTerminal(ctx, e, in.(terminalRef), accept)
			}))
		}
	}
	return all
}

// do calls a verb. It implements the options that requests have in addition to the verb's input.
func do(ctx context.Context, v *job.Verb, e job.Engine, in any) (any, error) {
	switch asked := in.(type) {
	case job.Submission:
		if err := job.Within("wait_seconds", int64(asked.Wait), 0, int64(longestPoll/time.Second)); err != nil {
			return nil, err
		}
		out, err := v.Do(ctx, e, in)
		made, is := out.(job.Job)
		if err != nil || asked.Wait == 0 || !is {
			return out, err
		}
		timed, cancel := context.WithTimeout(ctx, time.Duration(asked.Wait)*time.Second)
		defer cancel()
		_, ended, err := polled{e}.Watch(timed, made.ID, job.OnlyEnd)
		return ended, err
	case job.Query:
		none := reflect.Zero(v.Out).Interface()
		if _, err := v.Select(none, asked); err != nil { // check the query before doing any work
			return nil, err
		}
		out, err := v.Do(ctx, e, job.None{})
		if err != nil {
			return out, err
		}
		return v.Select(out, asked)
	}
	return v.Do(ctx, e, in)
}

// Operations that have the form of a verb, but are not verbs of the engine.
var (
	artifactsVerb = like[jobRef, leftFiles]("Artifacts", "listArtifacts", "List the files that were collected from a job, and those that were not kept", "GET /v1/jobs/{id}/artifacts", true)
	terminalVerb  = like[terminalRef, job.Tunnel]("Terminal", "openTerminal", "Open a task's terminal over a WebSocket", "GET /v1/jobs/{id}/terminal{?offset}", true) // until it is open, nothing has happened

	// Calls to the process that an engine runs in.
	infoVerb  = like[job.None, Info]("Info", "getInfo", "Get the engine's version, and who it takes the caller to be", "GET /v1/info", true)
	stopVerb  = like[job.None, job.None]("Stop", "stopEngine", "Stop the engine", "POST /v1/stop", true)
	drainVerb = like[job.None, job.None]("Drain", "drainEngine", "Stop the engine once its jobs have ended", "POST /v1/drain", true)
	yieldVerb = like[job.None, yielded]("Yield", "yieldEngine", "Stop the engine unless somebody needs it", "POST /v1/yield", false)
)

func like[In, Out any](name, id, does, route string, again bool) *job.Verb {
	return &job.Verb{Name: name, ID: id, Does: does, Route: route, Again: func(any) bool { return again }, In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out]()}
}

// process returns the rows of the calls to the engine's process.
func process(s *Server) []row {
	return []row{plain(infoVerb, s.tell), plain(stopVerb, s.end), plain(drainVerb, s.drain), plain(yieldVerb, s.yield)}
}

// plain returns the row of an operation without input.
func plain[Out any](v *job.Verb, call func(context.Context) (Out, error)) row {
	return route(shapeOf(v), func(ctx context.Context, _ any) (any, error) { return call(ctx) })
}

type jobRef struct {
	ID string `json:"id"`
}

// leftFiles is the result of Artifacts.
type leftFiles struct {
	Items []job.Artifact `json:"items"` // the files that can be fetched once the job has ended
	job.SkippedArtifacts
}

type terminalRef struct {
	ID     string `json:"id"`
	Offset int64  `json:"offset"`
}

type yielded struct {
	Ends bool `json:"ends"`
}

// longestPoll bounds one request of Watch; the client repeats it.
const longestPoll = 50 * time.Second

// polled is an engine whose Watch returns after longestPoll, with or without events.
type polled struct{ job.Engine }

func (p polled) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	ctx, cancel := context.WithTimeout(ctx, longestPoll)
	defer cancel()
	events, j, err := p.Engine.Watch(ctx, id, after)
	if err == nil && len(events) == 0 && errors.Is(context.Cause(ctx), ErrStopped) {
		err = ErrStopped // else the client would repeat the call and start another engine for it
	}
	return events, j, err
}
