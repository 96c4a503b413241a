// Package e2b serves the engine to programs that use sandboxes, in the protocol of E2B's clients: a
// sandbox is a VM. The package owns the routes, keys, shapes and bounds of that protocol, and
// passes requests to the program in the VM that answers for its processes and files. It knows
// nothing about that program except how to reach it.
package e2b

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"linus/internal/gate"
	"linus/internal/job"
	"linus/internal/vm"
)

// client is recorded as the client that asked for a sandbox.
const client = "e2b"

// Sandboxes gives access to the VMs that are sandboxes, beyond the verbs of the engine. It reads
// the VMs' rows, because clients ask often and the host is slow. IDs are those in VMs' markers.
type Sandboxes interface {
	// Sandboxes returns the sandboxes that the principal in ctx may see, oldest first.
	Sandboxes(ctx context.Context) ([]vm.VM, error)
	// Sandbox returns one sandbox, or job.ErrNotFound.
	Sandbox(ctx context.Context, id string) (vm.VM, error)
	// DialSandbox connects to the program that answers for a sandbox, and starts the program if it
	// does not run. The connection outlives ctx.
	DialSandbox(ctx context.Context, id string) (net.Conn, error)
	// BuildAlone keeps other engines from building a template until release is called. It fails if
	// another engine is building it.
	BuildAlone(ctx context.Context, template string) (release func(), err error)
}

// Builds keeps notes of builds for all engines of a database. Their IDs sort by time.
type Builds interface {
	// Build returns the note of a build, or job.ErrNotFound.
	Build(ctx context.Context, id string) (note string, err error)
	// NoteBuild writes a note, and deletes those with IDs before oldest.
	NoteBuild(ctx context.Context, id, note, oldest string) error
}

// Uploads keeps the archives that builds of templates copy. The key is a text that stands for the
// owner, and the hash that the owner has chosen.
type Uploads interface {
	// HasUpload reports whether an archive exists, and marks it as used now.
	HasUpload(ctx context.Context, owner, hash string) (bool, error)
	// OpenUpload opens an archive; ctx bounds reading it.
	OpenUpload(ctx context.Context, owner, hash string) (io.ReadCloser, error)
	// PutUpload stores an archive of size bytes, or replaces one, after removing archives not used
	// since old. It returns room false if the owner would have more than most bytes.
	PutUpload(ctx context.Context, owner, hash string, size, most int64, old time.Time, from io.Reader) (room bool, err error)
}

// Options of a server. TLS, Log and the fields that document a zero value may be left out.
type Options struct {
	Engine    job.Engine
	Sandboxes Sandboxes
	// Authenticate returns the principal of a key, or job.ErrUnauthorized.
	Authenticate func(ctx context.Context, key string) (job.Principal, error)
	// Holds reports whether an owner's sandboxes may still be used by their access tokens.
	Holds func(ctx context.Context, owner string) bool
	// Templates returns the templates of the host, RemoveTemplate removes one, and RenameTemplate
	// renames one to a name that is free. The host completes a rename that was interrupted.
	Templates      func(ctx context.Context) ([]vm.VM, error)
	RemoveTemplate func(ctx context.Context, name string) error
	RenameTemplate func(ctx context.Context, from, to string) error
	// Saved returns what the store knows of templates that were made of VMs.
	Saved func(ctx context.Context) ([]vm.SavedTemplate, error)
	// Builds keeps the engines' notes of their builds.
	Builds Builds
	// Uploads keeps what builds copy, for all engines of a database; nil: Files, for this engine.
	Uploads Uploads
	// Proxy runs a proxy, for the names that a VM may connect to, at port job.ProxyPort of its
	// loopback, until ctx ends or the connection to the VM is lost. It calls opened once it is
	// open.
	Proxy func(ctx context.Context, v vm.VM, opened func()) error
	// Entered is called once when clients begin to use a sandbox by its token; nil: never.
	Entered func(v vm.VM)
	// Domain, with a port if clients need one, is the domain whose subdomains are the hosts of
	// sandboxes' ports; empty: ports have no hosts. PublicPorts lets sandboxes that ask for it have
	// ports that need no token; PublicFirst makes that the default for sandboxes that do not say.
	// Secure: clients connect by HTTPS.
	Domain      string
	PublicPorts bool
	PublicFirst bool
	Secure      bool
	Files       string // directory for what builds of templates copy, if Uploads is nil
	// Spare returns an error if the disk with Files only has room for what runs; nil: no check.
	Spare    func() error
	Secret   []byte // key of the HMACs that are the sandboxes' access tokens
	Defaults job.Defaults
	TLS      *tls.Config // nil: plain HTTP
	Log      *slog.Logger

	bounds bounds // zero: defaultBounds
}

// bounds limit the connections, and the concurrent requests per principal (each) and per sandbox.
type bounds struct {
	gate          gate.Bounds
	each, sandbox int

	links time.Duration // between two lists of sandboxes to find a link's signer, or of templates to find a missing one
	notes time.Duration // between two notes of a build
}

// An SSH connection to a VM has 64 channels, and other users need some.
var defaultBounds = bounds{gate: gate.Bounds{All: 4096, Address: 1024, Loopback: 2048}, each: 256, sandbox: 56, links: time.Second, notes: 2 * time.Second}

const (
	maxHeader  = 32 << 10
	maxRequest = 1 << 20          // bytes of a request to the control plane
	firstTime  = 10 * time.Second // for the body of a client that has not shown a key yet
	bodyTime   = 30 * time.Second // for the body of a request to the control plane
)

type server struct {
	Options
	asking gate.Counts
	ways   ways

	templates lookup[[]vm.VM]
	signers   lookup[map[string]string] // the tokens of sandboxes that may have signed a link, by sandbox ID
	builds    builds
	proxies   proxies
}

func newServer(o Options) *server {
	o.bounds = cmp.Or(o.bounds, defaultBounds)
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Engine = job.Phrased(o.Engine, words)
	if o.Uploads == nil {
		o.Uploads = &shelves{dir: o.Files}
	}
	s := &server{Options: o, templates: newLookup[[]vm.VM](), signers: newLookup[map[string]string]()}
	s.ways.of = map[string]*way{}
	s.builds.stop = make(chan struct{})
	s.proxies = proxies{look: make(chan struct{}, 1), open: map[string]chan struct{}{}, kept: map[string]proxy{}, last: map[string]chan struct{}{}}
	return s
}

// ServeHTTP serves requests to sandboxes, and those to the control plane.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	giveTime(w, r, firstTime)
	r = r.WithContext(job.WithClient(r.Context(), client))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if err := s.serve(w, r); err != nil {
		s.fail(w, err)
	}
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) error {
	if p, ok := s.portOf(r.Host); ok {
		return s.toPort(w, r, p)
	}
	if isForSandbox(r) {
		return s.toSandbox(w, r)
	}
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, uploads) {
		return s.upload(w, r)
	}
	ctx := r.Context()
	key := r.Header.Get("X-Api-Key")
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); key == "" && strings.EqualFold(scheme, "Bearer") {
		key = strings.TrimSpace(token)
	}
	p, err := job.Principal{}, job.ErrUnauthorized
	if key != "" {
		p, err = s.Authenticate(ctx, key)
	}
	switch {
	case errors.Is(err, job.ErrUnauthorized):
		return &refusal{http.StatusUnauthorized, "this is not a key of this server: linus token create NAME --e2b makes one, and clients send it as X-API-KEY (E2B_API_KEY)"}
	case err != nil:
		s.Log.Error("a key cannot be checked", "err", err)
		return &refusal{http.StatusServiceUnavailable, "the key cannot be checked at the moment: try again"}
	}
	leave, ok := s.asking.Enter("principal "+p.Name, s.bounds.each)
	if !ok {
		w.Header().Set("Retry-After", "1")
		return &refusal{http.StatusTooManyRequests, fmt.Sprintf("%d requests of %s are being served: try again when some have ended", s.bounds.each, p.Name)}
	}
	defer leave()
	gate.Serves(ctx)
	giveTime(w, r, bodyTime)
	r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
	ctx, end := job.ForPrincipal(ctx, p)
	defer end()
	return s.route(w, r.WithContext(ctx))
}

// giveTime limits how long a request's body may take from now on. Without a body the server already
// awaits the next request, and the deadline would end both, and all later ones on the connection.
func giveTime(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d)) // a test's recorder has no deadline
	}
}

// refusal is an error with an HTTP status.
type refusal struct {
	code int
	text string
}

func (e *refusal) Error() string { return e.text }

func invalid(field, problem, remedy string) error {
	return &job.FieldError{Field: field, Problem: problem, Remedy: remedy}
}

var errNoSandbox = &refusal{http.StatusNotFound, "there is no such sandbox: it was never there, has ended, or is another's"}

func fault(err error) (int, string) {
	var (
		refused  *refusal
		field    *job.FieldError
		all      *job.InvalidError
		host     *job.HostError
		denied   *job.DeniedError
		narrowed *job.NarrowedError
		large    *http.MaxBytesError
	)
	switch {
	case errors.As(err, &refused):
		return refused.code, refused.text
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", large.Limit)
	case errors.Is(err, job.ErrNotFound):
		return errNoSandbox.code, errNoSandbox.text
	case errors.As(err, &all):
		return http.StatusBadRequest, words.In(err.Error())
	case errors.As(err, &field):
		codes := map[job.Fault]int{job.FaultUnknown: http.StatusNotFound, job.FaultState: http.StatusConflict, job.FaultLimit: http.StatusTooManyRequests}
		return cmp.Or(codes[field.Fault], http.StatusBadRequest), words.In(err.Error())
	case errors.As(err, &denied), errors.As(err, &narrowed), errors.Is(err, job.ErrNotAllowed):
		return http.StatusForbidden, words.In(err.Error())
	case errors.Is(err, job.ErrUnauthorized):
		return http.StatusUnauthorized, err.Error()
	case errors.As(err, &host), job.IsEngineFault(err):
		return http.StatusServiceUnavailable, words.In(err.Error())
	}
	return http.StatusInternalServerError, words.In(err.Error())
}

// fail answers with an error in the protocol's format.
func (s *server) fail(w http.ResponseWriter, err error) {
	code, text := fault(err)
	if code >= http.StatusInternalServerError {
		s.Log.Warn("a request for a sandbox failed", "status", code, "err", err)
	}
	respond(w, code, map[string]any{"code": code, "message": text})
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

// decode reads a request's body, which may be missing. It ignores unknown fields, which newer
// clients send. Known fields for features that linus lacks are refused elsewhere, by name.
func decode(r *http.Request, into any) error {
	err := json.NewDecoder(r.Body).Decode(into)
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return err
	}
	return &refusal{http.StatusBadRequest, "the request's body is not the JSON that is expected: " + err.Error()}
}

// words are this protocol's names for the actions in errors and remedies. The other actions are
// named as commands for the operator.
var words = job.Words{
	job.ListVMs:   "Sandbox.list",
	job.StartVM:   "Sandbox.connect",
	job.ResumeVM:  "Sandbox.connect",
	job.DestroyVM: "Sandbox.kill",
}

// Server serves the protocol at an address.
type Server struct {
	http   *http.Server
	gate   *gate.Gate
	face   *server
	cancel context.CancelFunc

	keeping sync.WaitGroup
}

// Listen listens on addr, host:port; port 0 means any free port.
func Listen(ctx context.Context, addr string, o Options) (*Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	face := newServer(o)
	s := &Server{gate: gate.New(l, face.bounds.gate, "E2B", face.Log), face: face, cancel: cancel}
	s.keeping.Go(func() { face.keepProxies(base) })
	s.keeping.Go(func() { face.finishBuilds(base) })
	s.http = &http.Server{
		Handler: face, TLSConfig: o.TLS,
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: gate.ConnContext, ConnState: s.gate.ConnState,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: maxHeader,
		// No WriteTimeout: streams stay open.
		ErrorLog: slog.NewLogLogger(face.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.gate.Addr().String() }

// Serve serves until Close, and then returns nil.
func (s *Server) Serve() error {
	serve := s.http.Serve
	if s.http.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
	}
	if err := serve(s.gate); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve sandboxes: %w", err)
	}
	return nil
}

// Close ends the open streams, finishes the other requests within ctx, and stops.
func (s *Server) Close(ctx context.Context) error {
	s.cancel()
	s.gate.End()
	defer s.face.ways.close()
	s.face.builds.close()
	s.keeping.Wait()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}
