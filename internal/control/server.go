package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"linus/internal/job"
)

// Server serves clients on a unix socket.
type Server struct {
	engine  job.Engine
	o       Options
	http    *http.Server
	clients atomic.Int64
	cancel  context.CancelCauseFunc

	mu     sync.Mutex
	going  bool              // no more calls are accepted
	asking map[net.Conn]bool // connections of clients that want to replace the engine
}

// Options of a Server.
type Options struct {
	Info Info   // without an ID
	Stop func() // called for each request to stop the engine
	// Drain is called when a client asks the engine to stop once its jobs have ended.
	Drain func(context.Context) error
	// Idle reports whether stopping now would interrupt nothing. Nil: never idle.
	Idle func(context.Context) bool
	Log  *slog.Logger
}

// NewServer returns a server for the engine.
func NewServer(engine job.Engine, o Options) *Server {
	o.Info.ID = rand.Text()
	base, cancel := context.WithCancelCause(context.Background()) // cancelled by Close
	s := &Server{engine: engine, o: o, cancel: cancel, asking: map[net.Conn]bool{}}
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
		ConnState: func(conn net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.clients.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.ask(conn, false) // first, so that in between it counts as a client rather than as minus one
				s.clients.Add(-1)
			case http.StateActive, http.StateIdle:
			}
		},
	}
	return s
}

// Clients returns the number of connections. A Client keeps one open as long as it lives, so 0
// means that no client is connected.
func (s *Server) Clients() int { return int(s.clients.Load()) }

// Serve serves the listener until Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve clients: %w", err)
	}
	return nil
}

// Close ends long polls, finishes the other requests within ctx, and stops.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.going = true
	s.mu.Unlock()
	s.cancel(ErrStopped)
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// engineHeader is the Info.ID of the engine that a call is for.
const engineHeader = "Linus-Engine"

// clientHeader is the calling client's name, as in job.Client; default: commandLine.
const (
	clientHeader = "Linus-Client"
	commandLine  = "cli"
)

// handler serves the verbs and the calls to the process.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range slices.Concat(verbs(named(s.engine)), process(s)) {
		handle(mux, r, s)
	}
	return mux
}

func handle(mux *http.ServeMux, at row, s *Server) {
	mux.HandleFunc(at.method+" "+at.path, func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		s.ask(conn, at.Verb == yieldVerb)
		if s.gone(r.Header.Get(engineHeader)) {
			at.fail(w, r, ErrNoEngine)
			return
		}
		if !at.streams() {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		client := cmp.Or(r.Header.Get(clientHeader), commandLine)
		ctx := job.WithPrincipal(r.Context(), job.Operator()) // only its owner can open the socket
		at.serve(w, r.WithContext(job.WithClient(ctx, client)))
	})
}

func (s *Server) tell(context.Context) (Info, error) { return s.o.Info, nil }

func (s *Server) end(context.Context) (job.None, error) {
	s.o.Stop()
	return job.None{}, nil
}

func (s *Server) drain(ctx context.Context) (job.None, error) { return job.None{}, s.o.Drain(ctx) }

// gone reports whether to refuse a call: it is for another engine, or this one is stopping.
func (s *Server) gone(wanted string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.going || wanted != "" && wanted != s.o.Info.ID
}

type connKey struct{}

// ask records whether a connection's last call asked to replace the engine.
func (s *Server) ask(conn net.Conn, asks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asks {
		s.asking[conn] = true
	} else {
		delete(s.asking, conn)
	}
}

// yield stops a background engine unless somebody needs it.
func (s *Server) yield(ctx context.Context) (yielded, error) {
	if !s.o.Info.Background || !s.Retire(ctx) {
		return yielded{}, nil
	}
	s.o.Stop()
	return yielded{Ends: true}, nil
}

// Retire reports whether nobody needs the engine: it is idle, and only clients that want to replace
// it are connected. If so, it accepts no more calls, atomically with the check, and the caller must
// stop it. A call in progress, and a client between two calls, have a connection and so count.
func (s *Server) Retire(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.going = s.going || s.Clients() <= len(s.asking) && s.o.Idle != nil && s.o.Idle(ctx)
	return s.going
}
