// Package web serves the engine over HTTP: the given MCP handler, a job's output and artifacts as
// plain downloads, and pages for a browser, all behind one token. It owns routes, authentication,
// limits and appearance, and knows nothing about MCP.
package web

import (
	"cmp"
	"context"
	"crypto/tls"
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

	"linus/internal/gate"
	"linus/internal/job"
	"linus/internal/view"
	"linus/internal/vm"
	"linus/internal/vmpage"
)

// MaxBody is the maximum size of a request, in bytes.
const MaxBody = job.MaxManifest

const (
	mcpPath   = "/mcp"
	apiPrefix = "/api/"
	// terminalPath is the WebSocket of a job's terminal, the only API operation that this server's
	// own pages use.
	terminalPath = "/api/v1/jobs/{id}/terminal"
)

// Options are the settings of a server. Token must not be empty.
type Options struct {
	Engine   job.Engine
	MCP      http.Handler // Streamable HTTP, served at /mcp
	Defaults job.Defaults // values of fields that manifests leave out, shown in forms

	// Processes returns what runs in a sandbox for its clients, as far as that is known. Nil: it
	// never is.
	Processes func(ctx context.Context, v vm.VM) []string
	API       http.Handler // served below /api/; nil: none
	Metrics   http.Handler // served at /metrics; nil: none
	// Hooks returns the handler of the signed events of a service whose queue a dispatcher serves,
	// by the dispatcher's name, or nil. Events are posted to /hooks/NAME. Nil: there are none.
	Hooks func(dispatcher string) http.Handler
	Token string // the operator's, in "Authorization: Bearer" and for a browser's login
	// Authenticate returns the principal of any other token in "Authorization: Bearer", or
	// job.ErrUnauthorized. Nil: there are no other tokens.
	Authenticate func(ctx context.Context, bearer string) (job.Principal, error)
	// Holder does the same for a token that a browser has logged in with, by the token's ID as in
	// job.Principal.
	Holder  func(ctx context.Context, token string) (job.Principal, error)
	Issuer  Issuer      // where users can log in, too; nil: nowhere
	OAuth   *OAuth      // where clients get tokens that Authenticate accepts; nil: nowhere
	Hosts   []string    // names of this server, besides addresses and localhost
	Origins []string    // origins whose pages may call /mcp in a browser, as in http://localhost:6274
	TLS     *tls.Config // of the server; nil: plain HTTP
	Log     *slog.Logger
	// URL returns this server's URL as browsers reach it, without a slash at its end. If it is nil
	// or returns "", the URL is not known, and ports of VMs are below the address of each request.
	URL func() string
	// PortDomain is the domain below which each exposed port of a VM has its own host name:
	// *.vm.example without the asterisk. Empty: ports are at paths, and their pages have no origin.
	PortDomain string
	Logouts    string // file that records which sessions were ended; empty: memory only
	Scope      string // makes sessions differ from those of servers with the same token; empty: Listen sets it to its address
	// Bodies limits the memory of request bodies, together with its other users. Nil: the server
	// has its own.
	Bodies *job.Bodies

	bounds bounds // zero: defaultBounds
}

// secure reports whether a request came by TLS, to this server or to a proxy before it. A request
// for the host in URL came by URL's scheme.
func (o Options) secure(r *http.Request) bool {
	if r.TLS != nil || o.URL == nil {
		return r.TLS != nil
	}
	host, ok := strings.CutPrefix(o.URL(), "https://")
	return ok && strings.EqualFold(host, r.Host)
}

// bounds limits the number of connections, and the concurrent requests of each principal.
type bounds struct {
	gate gate.Bounds
	each int
}

// defaultBounds lets a proxy on this machine use half of the connections. Each open page, terminal
// and stream is a request.
var defaultBounds = bounds{gate: gate.Bounds{All: 4096, Address: 1024, Loopback: 2048}, each: 1024}

type api struct {
	Options
	pages   *pages
	outputs *job.Bodies // those being sent
	ports   *ports
}

// Handler returns a server's handler.
func Handler(o Options) http.Handler {
	h, _ := handler(o)
	return h
}

// handler returns the handler of all routes. A response that is neither a page nor a file is JSON.
// idle closes the connections to VMs that wait for the next request.
func handler(o Options) (h http.Handler, idle func()) {
	o.Engine = job.Phrased(job.Shared(o.Engine), words)
	o.bounds = cmp.Or(o.bounds, defaultBounds)
	o.Bodies = cmp.Or(o.Bodies, new(job.Bodies))
	a := &api{Options: o, pages: newPages(o), outputs: &job.Bodies{Apart: true}, ports: newPorts(o.Engine)}
	served := paced(asked(a.exposed(a.sameSite(a.routes()))))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		view.Identify(w, r)
		served.ServeHTTP(w, r)
	}), a.ports.transport.CloseIdleConnections
}

// routes returns the routes that linus help http lists.
func (a *api) routes() *mux.Router {
	r := mux.NewRouter().SkipClean(true)
	r.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, map[string]string{"status": "ok"})
	}).Methods(http.MethodGet, http.MethodHead)
	for _, path := range []string{mcpPath, mcpPath + "/"} {
		r.Handle(path, a.cors(a.authorized(a.limited(a.MCP))))
	}
	if a.OAuth != nil {
		for _, path := range metadataPaths {
			r.Handle(path, a.cors(http.HandlerFunc(a.metadata)))
		}
	}
	if a.API != nil {
		r.Handle(terminalPath, a.watched(a.API)).Methods(http.MethodGet)
		r.PathPrefix(apiPrefix).Handler(a.authorized(a.API))
	}
	r.Handle("/jobs/{id}/output", a.reading(a.output)).Methods(http.MethodGet, http.MethodHead)
	r.Handle("/jobs/{id}/artifacts/{path:(?s:.+)}", a.reading(a.artifact)).Methods(http.MethodGet, http.MethodHead)
	if a.Metrics != nil {
		r.Handle("/metrics", a.reading(a.Metrics.ServeHTTP)).Methods(http.MethodGet, http.MethodHead)
	}
	r.HandleFunc("/hooks/{dispatcher}", a.hook).Methods(http.MethodPost)
	r.PathPrefix(portsPrefix + "{port}").Handler(http.HandlerFunc(a.port))
	a.pages.routes(r)
	none := a.authorized(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "Not found: the routes are /mcp, /api/v1, /jobs/JOB_ID/output, /jobs/JOB_ID/artifacts/PATH, /metrics and /health; the pages start at /jobs")
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

// asked records the client that makes the request: a page, unless MCP says more.
func asked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(job.WithClient(r.Context(), "web")))
	})
}

// sameSite refuses requests that another site could make a browser send: under a foreign host name
// (DNS rebinding), or from a foreign origin, except to /mcp from Options.Origins. From elsewhere,
// only links may lead here.
func (a *api) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.isHost(r.Host) {
			refuse(w, r, http.StatusForbidden, fmt.Sprintf("Host %q is not this server's; name it in HTTP_HOSTS if it is", r.Host))
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" && !a.mayCall(r) {
			u, err := url.Parse(origin)
			if err != nil || !strings.EqualFold(u.Host, r.Host) || a.secure(r) && u.Scheme != "https" {
				refuse(w, r, http.StatusForbidden, fmt.Sprintf("Origin %q is not this server's; if its pages are to call /mcp, name it in HTTP_CORS_ORIGINS", origin))
				return
			}
		}
		if fromElsewhere(r) && !isLink(r) && !a.mayCall(r) {
			refuse(w, r, http.StatusForbidden, "A page of another site cannot load this")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// fromElsewhere reports whether the browser says that a page of another origin makes the request.
// isLink reports whether the browser would show the response as a page of its own.
func fromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

func isLink(r *http.Request) bool {
	mode, dest := r.Header.Get("Sec-Fetch-Mode"), r.Header.Get("Sec-Fetch-Dest")
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (mode == "" || mode == "navigate") && (dest == "" || dest == "document")
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

// authenticate returns the principal of a token, or job.ErrUnauthorized.
func (a *api) authenticate(ctx context.Context, bearer string) (job.Principal, error) {
	switch {
	case a.pages.sessions.isToken(bearer):
		return job.Operator(), nil
	case a.Authenticate == nil || bearer == "":
		return job.Principal{}, job.ErrUnauthorized
	}
	return a.Authenticate(ctx, bearer)
}

// authorized passes requests with a valid token to next, with its principal in the context.
func (a *api) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		p, err := job.Principal{}, job.ErrUnauthorized
		if strings.EqualFold(scheme, "Bearer") {
			p, err = a.authenticate(r.Context(), strings.TrimSpace(token))
		}
		switch {
		case errors.Is(err, job.ErrNoScope):
			w.Header().Set("WWW-Authenticate", a.OAuth.challenge(job.RoleRun, "insufficient_scope", ""))
			refuse(w, r, http.StatusForbidden, "Not allowed: the token has none of the scopes linus:read, linus:run and linus:admin")
		case errors.Is(err, job.ErrUnchecked):
			w.Header().Set("Retry-After", "10")
			refuse(w, r, http.StatusServiceUnavailable, "The token cannot be checked at the moment: try again")
		case errors.Is(err, job.ErrUnauthorized):
			problem := ""
			if token != "" {
				problem = "invalid_token"
			}
			w.Header().Set("WWW-Authenticate", a.OAuth.challenge(job.RoleRun, problem, reason(err)))
			refuse(w, r, http.StatusUnauthorized, "Unauthorized: send Authorization: Bearer and the token of linus serve")
		case err != nil:
			a.Log.Error("a token cannot be checked", "err", err)
			refuse(w, r, http.StatusServiceUnavailable, "The token cannot be checked at the moment: try again")
		default:
			giveTime(w, r, uploadTime)
			a.pages.serveFor(p, next, w, r)
		}
	})
}

// reading passes requests with a token, and those of logged-in browsers, to next.
func (a *api) reading(next http.HandlerFunc) http.Handler {
	program := a.authorized(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.pages.principal(r)
		if err != nil {
			program.ServeHTTP(w, r)
			return
		}
		a.pages.serveFor(p, next, w, r)
	})
}

// watched passes WebSockets to next: those of programs with a token, and those of this server's own
// pages in a logged-in browser, which cannot send a token. A browser says which page asks, and
// sameSite has compared that. The connection ends with the session.
func (a *api) watched(next http.Handler) http.Handler {
	program := a.authorized(next)
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go vmpage.CancelWhen(ctx, sessionCheck, cancel, func() bool { return a.pages.sessions.of(r) == "" })
		next.ServeHTTP(w, r.WithContext(ctx))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := a.pages.principal(r)
		if r.Header.Get("Origin") == "" || err != nil {
			program.ServeHTTP(w, r)
			return
		}
		a.pages.serveFor(p, page, w, r)
	})
}

// sessionCheck is how often a session with an open WebSocket is checked.
const sessionCheck = 2 * time.Second

// limited limits the size of a request's body, and the memory of all bodies together.
func (a *api) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > MaxBody {
			fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("Payload too large: the limit is %d bytes", MaxBody))
			return
		}
		leave, err := a.Bodies.Take(r.Context(), r.ContentLength)
		if err != nil { // the client is gone or lost its permission
			return
		}
		defer leave()
		r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		next.ServeHTTP(w, r)
	})
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // fails only if the client is gone
}

func fail(w http.ResponseWriter, code int, text string) {
	respond(w, code, map[string]string{"error": text})
}

// refuse is fail for any route: errors of API routes have the API's own format.
func refuse(w http.ResponseWriter, r *http.Request, code int, text string) {
	if !strings.HasPrefix(r.URL.Path, apiPrefix) {
		fail(w, code, text)
		return
	}
	word := strings.ToLower(strings.ReplaceAll(http.StatusText(code), " ", "_"))
	view.Problem{Code: word, Detail: text}.Send(w, code)
}

func (a *api) failed(w http.ResponseWriter, r *http.Request, err error) {
	var field *job.FieldError
	switch {
	case errors.Is(err, job.ErrNotAllowed):
		fail(w, http.StatusForbidden, err.Error())
	case errors.As(err, &field) && field.Field == "offset":
		fail(w, http.StatusBadRequest, words.In(err.Error()))
	case job.IsEngineFault(err):
		fail(w, http.StatusServiceUnavailable, words.In(err.Error()))
	case errors.Is(err, job.ErrNotFound), errors.As(err, &field):
		fail(w, http.StatusNotFound, words.In(err.Error()))
	case r.Context().Err() != nil: // the client is gone
	default:
		a.Log.Error("download failed", "job_id", mux.Vars(r)["id"], "err", err)
		fail(w, http.StatusInternalServerError, words.In(err.Error()))
	}
}

// Server serves the handler on a port of this machine.
type Server struct {
	gate   *gate.Gate
	http   *http.Server
	cancel context.CancelFunc
	idle   func() // closes idle connections to VMs
}

// Listen listens on addr, as host:port; port 0 picks any free port. It fails if the port is in use.
func Listen(ctx context.Context, addr string, o Options) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return listen(ctx, listener, o), nil
}

func listen(ctx context.Context, listener net.Listener, o Options) *Server {
	o.Scope = cmp.Or(o.Scope, listener.Addr().String())
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	h, idle := handler(o)
	s := &Server{gate: gate.New(listener, cmp.Or(o.bounds, defaultBounds).gate, "HTTP", o.Log), cancel: cancel, idle: idle}
	s.http = &http.Server{
		Handler:           h,
		TLSConfig:         o.TLS,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext:       gate.ConnContext,
		ConnState:         s.gate.ConnState,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		// No WriteTimeout: event streams stay open.
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Addr returns the address listened on.
func (s *Server) Addr() string { return s.gate.Addr().String() }

// Serve serves until Close; then it returns nil.
func (s *Server) Serve() error {
	serve := s.http.Serve
	if s.http.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
	}
	if err := serve(s.gate); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// Close ends the open streams, finishes the other requests within ctx, and stops.
func (s *Server) Close(ctx context.Context) error {
	s.cancel()
	s.gate.End()
	defer s.idle()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// maxEvent limits the body of an event, in bytes, and maxEvents how many events are read at once,
// since each is in memory before its sender is known.
const (
	maxEvent  = 1 << 20
	maxEvents = 64
)

// hook passes an event to a dispatcher's hook, which checks the signature instead of a token.
func (a *api) hook(w http.ResponseWriter, r *http.Request) {
	var to http.Handler
	if a.Hooks != nil {
		to = a.Hooks(mux.Vars(r)["dispatcher"])
	}
	if to == nil {
		fail(w, http.StatusNotFound, "Not found: no dispatcher of that name receives events here")
		return
	}
	leave, ok := a.pages.asking.Enter(":hooks", maxEvents) // no principal has that name
	if !ok {
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusTooManyRequests, fmt.Sprintf("%d events are being read: send it again", maxEvents))
		return
	}
	defer leave()
	r.Body = http.MaxBytesReader(w, r.Body, maxEvent)
	to.ServeHTTP(w, r)
}
