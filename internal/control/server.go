package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"linus/internal/job"
)

// longestPoll bounds one request of Watch; the client asks again.
const longestPoll = 50 * time.Second

// Server returns clients on a unix socket.
type Server struct {
	http    *http.Server
	clients atomic.Int64
	cancel  context.CancelCauseFunc
}

// NewServer makes a server of the engine. stop is called, once per request,
// when a client asks the engine to end.
func NewServer(engine job.Engine, info Info, stop func(), log *slog.Logger) *Server {
	base, cancel := context.WithCancelCause(context.Background()) // ended by Close
	s := &Server{cancel: cancel}
	s.http = &http.Server{
		Handler:           handler(engine, info, stop),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.clients.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.clients.Add(-1)
			case http.StateActive, http.StateIdle:
			}
		},
	}
	return s
}

// Clients is the number of connections. A Client keeps one open as long as it
// lives, so none means that nobody is there.
func (s *Server) Clients() int { return int(s.clients.Load()) }

// Serve returns on the listener until Close; then it returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve clients: %w", err)
	}
	return nil
}

// Close ends long polls, finishes the other requests within ctx, and stops.
func (s *Server) Close(ctx context.Context) error {
	s.cancel(ErrStopped)
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// clientHeader says which client asks, in job.Client's words; without it, it is
// the command line.
const (
	clientHeader = "Linus-Client"
	commandLine  = "cli"
)

// handler is the engine's API.
func handler(engine job.Engine, info Info, stop func()) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(w http.ResponseWriter, r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			client := cmp.Or(r.Header.Get(clientHeader), commandLine)
			body, err := f(w, r.WithContext(job.WithClient(r.Context(), client)))
			answer(w, body, err)
		})
	}
	handle("GET /v1/info", func(http.ResponseWriter, *http.Request) (any, error) { return info, nil })
	handle("POST /v1/stop", func(http.ResponseWriter, *http.Request) (any, error) {
		stop()
		return struct{}{}, nil
	})
	handle("POST /v1/jobs", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var s job.Submission
		if err := decode(r, &s); err != nil {
			return nil, err
		}
		return engine.Submit(r.Context(), s)
	})
	handle("POST /v1/plan", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var s job.Submission
		if err := decode(r, &s); err != nil {
			return nil, err
		}
		return engine.Plan(r.Context(), s)
	})
	handle("GET /v1/jobs", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		q := r.URL.Query()
		limit, _ := strconv.Atoi(q.Get("limit"))
		return engine.List(r.Context(), job.Filter{Status: job.Status(q.Get("status")), Limit: limit, Cursor: q.Get("cursor")})
	})
	handle("GET /v1/jobs/{id}", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return engine.Job(r.Context(), r.PathValue("id"))
	})
	handle("GET /v1/jobs/{id}/result", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return engine.Result(r.Context(), r.PathValue("id"))
	})
	handle("POST /v1/jobs/{id}/cancel", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return struct{}{}, engine.Cancel(r.Context(), r.PathValue("id"))
	})
	handle("POST /v1/jobs/{id}/kill", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return engine.Kill(r.Context(), r.PathValue("id"), r.URL.Query().Get("signal"))
	})
	handle("GET /v1/jobs/{id}/output", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		q := r.URL.Query()
		offset, _ := strconv.ParseInt(q.Get("offset"), 10, 64)
		limit, _ := strconv.ParseInt(q.Get("limit"), 10, 64)
		return engine.Output(r.Context(), r.PathValue("id"), q.Get("stream"), offset, limit)
	})
	handle("POST /v1/jobs/{id}/input", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var in input
		if err := decode(r, &in); err != nil {
			return nil, err
		}
		return struct{}{}, engine.Input(r.Context(), r.PathValue("id"), in.Data, in.Closed)
	})
	handle("POST /v1/cleanup", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		age, err := time.ParseDuration(r.URL.Query().Get("older_than"))
		if err != nil {
			return nil, &job.FieldError{Field: "older_than", Problem: err.Error(), Remedy: "give a duration such as 24h"}
		}
		return engine.Cleanup(r.Context(), age)
	})
	mux.HandleFunc("GET /v1/jobs/{id}/artifacts/{path...}", func(w http.ResponseWriter, r *http.Request) {
		sendArtifact(w, r, engine)
	})
	handle("GET /v1/vms", func(_ http.ResponseWriter, r *http.Request) (any, error) { return engine.VMs(r.Context()) })
	handle("GET /v1/vms/{vm}", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return engine.VM(r.Context(), r.PathValue("vm"))
	})
	handle("POST /v1/vms/{vm}/{verb}", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		ctx, vm, snapshot := r.Context(), r.PathValue("vm"), r.URL.Query().Get("snapshot")
		switch verb := r.PathValue("verb"); verb {
		case "start":
			return engine.StartVM(ctx, vm)
		case "stop":
			return engine.StopVM(ctx, vm)
		case "destroy":
			return engine.DestroyVM(ctx, vm)
		case "forget":
			return engine.ForgetVM(ctx, vm)
		case "snapshot":
			return engine.SnapshotVM(ctx, vm, snapshot)
		case "revert":
			return engine.RevertVM(ctx, vm, snapshot)
		default:
			return nil, fmt.Errorf("a VM cannot %s", verb)
		}
	})
	handle("GET /v1/jobs/{id}/events", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
		ctx, cancel := context.WithTimeout(r.Context(), longestPoll)
		defer cancel()
		events, j, err := engine.Watch(ctx, r.PathValue("id"), after)
		if err == nil && len(events) == 0 && errors.Is(context.Cause(ctx), ErrStopped) {
			return nil, ErrStopped // else the client would ask again, and start another engine for it
		}
		return watched{Events: events, Job: j}, err
	})
	handle("GET /v1/host", func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return engine.CheckHost(r.Context())
	})
	return mux
}

// decode reads a request's body.
func decode(r *http.Request, v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields() // a newer client's field must not be dropped in silence
	if err := dec.Decode(v); err != nil {
		return &job.FieldError{Field: "request", Problem: err.Error(), Remedy: "if linus was updated, restart the engine: linus serve --stop"}
	}
	return nil
}

// artifactHeader carries an artifact's description beside its bytes.
const artifactHeader = "Linus-Artifact"

// sendArtifact returns a file as it is. One that breaks off is an answer that
// breaks off.
func sendArtifact(w http.ResponseWriter, r *http.Request, engine job.Engine) {
	file, about, err := engine.OpenArtifact(r.Context(), r.PathValue("id"), r.PathValue("path"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer func() { _ = file.Close() }()
	description, err := json.Marshal(about)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen: strings and numbers
	}
	w.Header().Set(artifactHeader, url.QueryEscape(string(description)))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(about.Size, 10))
	if _, err := io.Copy(w, file); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// answer sends body, or instead of it the error that there is.
func answer(w http.ResponseWriter, body any, err error) {
	code := http.StatusOK
	if err != nil {
		var f failure
		code, f = encodeError(err)
		body = map[string]failure{"error": f}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}
