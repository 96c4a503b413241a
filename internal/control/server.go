package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"linus/internal/job"
)

// Server serves clients on a unix socket.
type Server struct {
	engine  job.Engine
	info    Info
	stop    func()
	http    *http.Server
	clients atomic.Int64
	cancel  context.CancelCauseFunc
}

// NewServer makes a server of the engine. stop is called, once per request,
// when a client asks the engine to end.
func NewServer(engine job.Engine, info Info, stop func(), log *slog.Logger) *Server {
	base, cancel := context.WithCancelCause(context.Background()) // ended by Close
	s := &Server{engine: engine, info: info, stop: stop, cancel: cancel}
	s.http = &http.Server{
		Handler:           s.handler(),
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

// handler serves both tables.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range verbs() {
		handle(mux, r, s.engine)
	}
	for _, r := range process() {
		handle(mux, r, s)
	}
	return mux
}

func handle[E any](mux *http.ServeMux, at row[E], e E) {
	mux.HandleFunc(at.method+" "+at.path, func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		client := cmp.Or(r.Header.Get(clientHeader), commandLine)
		at.serve(e, w, r.WithContext(job.WithClient(r.Context(), client)))
	})
}

func (s *Server) tell(context.Context) (Info, error) { return s.info, nil }

func (s *Server) end(context.Context) (none, error) {
	s.stop()
	return none{}, nil
}
