// Package web serves the engine over HTTP: the MCP handler it is given, a job's
// output and artifacts as plain downloads, and pages for a browser, all behind
// one token. It owns routes, authentication, limits and appearance, and knows
// nothing of MCP.
package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
)

// MaxBody is the maximum size of a request, in bytes.
const MaxBody = job.MaxManifest

const mcpPath = "/mcp"

// Options of a server. Token must not be empty.
type Options struct {
	Engine  job.Engine
	MCP     http.Handler // Streamable HTTP, served at /mcp
	Metrics http.Handler // served at /metrics; nil: none
	Token   string       // what "Authorization: Bearer" must contain, and what a browser logs in with
	Hosts   []string     // names of this server, besides addresses and localhost
	Origins []string     // whose pages a browser may let call /mcp: http://localhost:6274
	Log     *slog.Logger
	Logouts string // file that records which sessions were ended; empty: memory only
	Scope   string // distinguishes this server's sessions from those of others with the same token; Listen sets it to its address
	// SSHCommand is the shell command that logs in to a VM. Nil: linus vm ssh NAME.
	SSHCommand func(vm job.VM) string
}

type api struct {
	Options
	pages *pages
}

// Handler serves the routes. A response that is neither a page nor a file is
// JSON.
func Handler(o Options) http.Handler {
	o.Engine = job.Worded(o.Engine, words)
	a := &api{o, newPages(o)}
	return a.sameSite(asked(a.routes()))
}

// routes are the ones listed by linus help http.
func (a *api) routes() *mux.Router {
	r := mux.NewRouter().SkipClean(true)
	r.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, map[string]string{"status": "ok"})
	}).Methods(http.MethodGet, http.MethodHead)
	r.Handle(mcpPath, a.cors(a.authorized(limited(a.MCP))))
	r.Handle("/jobs/{id}/output", a.reading(a.output)).Methods(http.MethodGet, http.MethodHead)
	r.Handle("/jobs/{id}/artifacts/{path:(?s:.+)}", a.reading(a.artifact)).Methods(http.MethodGet, http.MethodHead)
	if a.Metrics != nil {
		r.Handle("/metrics", a.reading(a.Metrics.ServeHTTP)).Methods(http.MethodGet, http.MethodHead)
	}
	a.pages.routes(r)
	none := a.authorized(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "Not found: the routes are /mcp, /jobs/JOB_ID/output, /jobs/JOB_ID/artifacts/PATH, /metrics and /health; the pages start at /jobs")
	}))
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isBrowser(r) {
			a.pages.loggedIn(a.pages.notFound).ServeHTTP(w, r)
			return
		}
		none.ServeHTTP(w, r)
	})
	r.MethodNotAllowedHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", "GET, HEAD")
		fail(w, http.StatusMethodNotAllowed, "Method not allowed")
	})
	return r
}

// asked records which client makes the request: a page, unless MCP says more.
func asked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(job.WithClient(r.Context(), "web")))
	})
}

// sameSite refuses requests that another site could make a browser send: under
// a foreign host name (DNS rebinding), or from a foreign origin, except to /mcp
// from Options.Origins.
func (a *api) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.isHost(r.Host) {
			fail(w, http.StatusForbidden, fmt.Sprintf("Host %q is not this server's; name it in HTTP_HOSTS if it is", r.Host))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !a.mayCall(r) {
			u, err := url.Parse(origin)
			if err != nil || !strings.EqualFold(u.Host, r.Host) {
				fail(w, http.StatusForbidden, fmt.Sprintf("Origin %q is not this server's; if its pages are to call /mcp, name it in HTTP_CORS_ORIGINS", origin))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isHost reports whether the Host header names this server: by an address,
// which no foreign name can imitate, or by one of its names.
func (a *api) isHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "localhost" || slices.ContainsFunc(a.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// authorized passes requests with the token to next.
func (a *api) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || !a.pages.sessions.isToken(strings.TrimSpace(token)) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="linus"`)
			fail(w, http.StatusUnauthorized, "Unauthorized: send Authorization: Bearer and the token of linus serve")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// reading passes requests with the token, and of logged-in browsers, to next.
func (a *api) reading(next http.HandlerFunc) http.Handler {
	program := a.authorized(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.pages.sessions.of(r) != "" {
			next(w, r)
			return
		}
		program.ServeHTTP(w, r)
	})
}

// limited bounds the request's body.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > MaxBody {
			fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("Payload too large: the limit is %d bytes", MaxBody))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		next.ServeHTTP(w, r)
	})
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

func fail(w http.ResponseWriter, code int, text string) {
	respond(w, code, map[string]string{"error": text})
}

// failed sends an engine's error.
func (a *api) failed(w http.ResponseWriter, r *http.Request, err error) {
	var field *job.FieldError
	switch {
	case errors.Is(err, job.ErrNotFound), errors.As(err, &field):
		fail(w, http.StatusNotFound, words.In(err.Error()))
	case r.Context().Err() != nil: // the client is gone
	default:
		a.Log.Error("download failed", "job_id", mux.Vars(r)["id"], "err", err)
		fail(w, http.StatusInternalServerError, words.In(err.Error()))
	}
}

// Server is the handler on a port of this machine.
type Server struct {
	listener net.Listener
	http     *http.Server
	cancel   context.CancelFunc
}

// Listen listens on addr, host:port; port 0 is any free one. It fails if the
// port is in use.
func Listen(ctx context.Context, addr string, o Options) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	o.Scope = cmp.Or(o.Scope, listener.Addr().String())
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &Server{listener: listener, cancel: cancel, http: &http.Server{
		Handler:           Handler(o),
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// No WriteTimeout: event streams stay open.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}}, nil
}

// Addr is the address listened on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve returns until Close; then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// Close ends the open streams, finishes the other requests within ctx, and
// stops.
func (s *Server) Close(ctx context.Context) error {
	s.cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}
