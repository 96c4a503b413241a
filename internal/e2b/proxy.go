package e2b

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/envd"
	"linus/internal/gate"
	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
	"linus/internal/vmpage"
)

// Requests to a sandbox go to the program in its VM, over SSH. That program and all its answers are
// hostile: this file decides who may ask it, and only the asking client gets its answer.

const (
	answerTime = 2 * time.Minute  // until the headers of an answer arrive
	idleTime   = 30 * time.Second // until an unused connection to a VM is closed
	vmHeaders  = 64 << 10         // bytes of an answer's headers
	lookTime   = 2 * time.Second  // between two checks whether a stream may continue
)

// isForSandbox reports whether a request is for the program in a sandbox: it names a sandbox, or is
// a signed link, which does not contain the sandbox's name.
func isForSandbox(r *http.Request) bool {
	return r.Header.Get("E2b-Sandbox-Id") != "" || r.URL.Path == "/files" && r.URL.Query().Has("signature")
}

// isOpen reports whether clients may request a path of the program in the VM. The other paths are
// for this server only.
func isOpen(path string) bool {
	switch path {
	case "/health", "/metrics", "/envs", "/files":
		return true
	}
	for _, service := range []string{"/process.Process/", "/filesystem.Filesystem/"} {
		if method, ok := strings.CutPrefix(path, service); ok {
			return strings.Trim(method, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		}
	}
	return false
}

// goneSandbox tells a client that a sandbox does not exist, or does not run.
func (s *server) goneSandbox(w http.ResponseWriter, id string) {
	respond(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": "The sandbox was not found", "code": http.StatusBadGateway})
}

// toSandbox passes a request to the program in a sandbox, or to the port that a header names.
func (s *server) toSandbox(w http.ResponseWriter, r *http.Request) error {
	if number := r.Header.Get("E2b-Sandbox-Port"); number != "" && number != strconv.Itoa(envd.Port) {
		p := makePort(r.Header.Get("E2b-Sandbox-Id"), number)
		p.named = true
		return s.toPort(w, r, p)
	}
	id, err := s.mayReach(r)
	if err != nil {
		return err
	}
	v, err := s.reachable(r.Context(), id)
	switch {
	case errors.Is(err, job.ErrNotFound), err == nil && stateOf(v) == paused && r.URL.Path == "/health": // /health asks whether it runs
		s.goneSandbox(w, id)
		return nil
	case err != nil:
		return err
	}
	if !isOpen(r.URL.Path) {
		return &refusal{http.StatusNotFound, "a sandbox answers for its processes and files here: for a port of it, use the host that getHost returns, or linus vm port expose " + v.Name}
	}
	gate.Serves(r.Context())
	return s.pass(w, r, v, httputil.ReverseProxy{
		Rewrite:        toVM,
		ModifyResponse: fromVM,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var field *job.FieldError
			switch {
			case r.Context().Err() != nil: // the client has gone, or the sandbox
				s.goneSandbox(w, id)
			case errors.As(err, &field) && field.Fault == job.FaultLimit, job.IsEngineFault(err):
				s.fail(w, err)
			default:
				s.Log.Debug("a sandbox does not answer", "sandbox", id, "err", err)
				s.goneSandbox(w, id)
			}
		},
	})
}

// full refuses a request that exceeds a sandbox's limit.
func (s *server) full(w http.ResponseWriter) error {
	w.Header().Set("Retry-After", "1")
	return &refusal{http.StatusTooManyRequests, fmt.Sprintf("%d requests to this sandbox are open, commands and watchers included: end some first", s.bounds.sandbox)}
}

// mayReach returns the ID of the sandbox whose token the request has, or whose token has signed it.
// Other clients do not learn whether the sandbox exists.
func (s *server) mayReach(r *http.Request) (id string, err error) {
	refused := &refusal{http.StatusUnauthorized, "this needs the access token of the sandbox, which creating it or connecting to it returns"}
	id = r.Header.Get("E2b-Sandbox-Id")
	if token := r.Header.Get("X-Access-Token"); token != "" {
		if vmOf(id) == "" || !s.isAccessToken(id, token) {
			return "", refused
		}
		return id, nil
	}
	link, ok := signatureOf(r)
	switch {
	case r.URL.Path == "/health" && vmOf(id) == "":
		return id, nil // the answer says that it is gone
	case !ok:
		return "", refused
	case id != "":
		ok = vmOf(id) != "" && link.by(s.accessToken(id))
	default: // the sandbox whose token signed the link
		id, err = s.signer(r.Context(), link)
		ok = id != ""
	}
	switch {
	case err != nil:
		return "", err
	case !ok:
		return "", &refusal{http.StatusUnauthorized, "invalid signature"}
	case link.expired():
		return "", &refusal{http.StatusUnauthorized, "signature is already expired"}
	}
	return id, nil
}

// signer returns the sandbox whose token has signed a link; empty: none has. The client is not
// authenticated yet, so it waits for a list of the sandboxes, made once per bounds.links at most.
func (s *server) signer(ctx context.Context, link signed) (string, error) {
	id := link.signer(s.signers.last())
	for asked := time.Now(); id == ""; {
		tokens, listed, err := s.signers.get(ctx, s.bounds.links, s.tokens)
		if id = link.signer(tokens); id != "" || err != nil || listed.After(asked) {
			return id, err
		}
		if err := sleep.For(ctx, time.Until(listed.Add(s.bounds.links))); err != nil {
			return "", err
		}
	}
	return id, nil
}

func (s *server) tokens(ctx context.Context) (map[string]string, error) {
	all, err := s.Sandboxes.Sandboxes(job.WithPrincipal(ctx, job.Operator()))
	tokens := map[string]string{}
	for _, v := range all {
		id := vm.SandboxID(v.Job)
		tokens[id] = s.accessToken(id)
	}
	return tokens, err
}

func (g signed) signer(tokens map[string]string) string {
	for id, token := range tokens {
		if g.by(token) {
			return id
		}
	}
	return ""
}

// asOwner returns a ctx in which the sandbox's owner acts: a token acts as the owner.
func asOwner(ctx context.Context, v vm.VM) context.Context {
	p := job.Operator()
	if owner := v.OwnedBy(); owner != "" {
		p = job.Principal{Name: owner, Role: job.RoleRun}
	}
	return job.WithPrincipal(ctx, p)
}

// reachable returns a sandbox that its token may use and that runs, or is resumed by a request.
// Otherwise it returns job.ErrNotFound.
func (s *server) reachable(ctx context.Context, id string) (vm.VM, error) {
	v, err := s.Sandboxes.Sandbox(job.WithPrincipal(ctx, job.Operator()), vmOf(id))
	if err == nil {
		is := stateOf(v)
		if is == gone || is == paused && v.Sandbox().Wakes == 0 || !s.Holds(ctx, v.OwnedBy()) {
			err = job.ErrNotFound
		}
	}
	return v, err
}

// toVM rewrites a client's request for the VM, without keys and without headers that are between
// the client and this server.
func toVM(p *httputil.ProxyRequest) {
	h := p.Out.Header
	if h.Get("X-Access-Token") == "" { // it has a signature, which also covers the user
		h.Del("Authorization")
	}
	for _, name := range []string{"X-Access-Token", "X-Api-Key", "Cookie", "E2b-Sandbox-Id", "E2b-Sandbox-Port", "Upgrade", "Connection"} {
		h.Del(name)
	}
	if scheme, _, _ := strings.Cut(h.Get("Authorization"), " "); !strings.EqualFold(scheme, "Basic") { // Basic names the user in the VM
		h.Del("Authorization")
	}
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "sandbox", "sandbox"
	p.Out.URL.RawPath = "" // isOpen has checked Path
	q := p.Out.URL.Query()
	if q.Has("signature") {
		q.Del("signature")
		q.Del("signature_expiration")
		p.Out.URL.RawQuery = q.Encode()
	}
}

// vmHeader has the headers that describe an answer's body. Others would be about this server.
var vmHeader = map[string]bool{
	"Accept-Ranges": true, "Content-Disposition": true, "Content-Encoding": true, "Content-Length": true, "Content-Range": true, "Content-Type": true, "Date": true,
	"Etag": true, "Last-Modified": true, "Retry-After": true, "Vary": true,
}

// fromVM filters the VM's answer for the client.
func fromVM(resp *http.Response) error {
	for name := range resp.Header {
		if !vmHeader[name] && !strings.HasPrefix(name, "Connect-") && !strings.HasPrefix(name, "Trailer-") {
			delete(resp.Header, name)
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.StatusCode >= 300 && resp.StatusCode < 400 && resp.StatusCode != http.StatusNotModified {
		return errors.New("the sandbox answers with a redirect")
	}
	resp.Header.Set("Content-Security-Policy", "sandbox; default-src 'none'") // a signed link may open a page
	return nil
}

// way holds the connections to the program and the ports of one sandbox.
type way struct {
	transport *http.Transport
	used      time.Time
}

type ways struct {
	mu sync.Mutex
	of map[string]*way
}

// to returns the way to a sandbox, and whether it is new. It closes ways not used for a while.
func (a *ways) to(s *server, id string) (w *way, begins bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for other, w := range a.of {
		if other != id && now.Sub(w.used) > 2*idleTime { // pending requests end by themselves
			w.transport.CloseIdleConnections()
			delete(a.of, other)
		}
	}
	if w = a.of[id]; w == nil {
		begins = true
		w = &way{transport: &http.Transport{
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				number, ok := strings.CutPrefix(addr, "localhost:")
				if !ok {
					return s.Sandboxes.DialSandbox(ctx, vmOf(id))
				}
				port, err := strconv.Atoi(number)
				if err != nil {
					return nil, err
				}
				ctx, cancel := context.WithTimeout(ctx, answerTime)
				defer cancel()
				t, err := s.Engine.DialVM(ctx, vmOf(id), port)
				if err != nil {
					return nil, err
				}
				return vmpage.Conn{Tunnel: t}, nil
			},
			DisableCompression: true, MaxIdleConns: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: idleTime,
			ResponseHeaderTimeout: answerTime, MaxResponseHeaderBytes: vmHeaders, ExpectContinueTimeout: time.Second,
		}}
		a.of[id] = w
	}
	w.used = now
	return w, begins
}

// there returns the way to a sandbox if it is in use, or nil.
func (a *ways) there(id string) *way {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.of[id]; w != nil && time.Since(w.used) <= 2*idleTime {
		return w
	}
	return nil
}

func (a *ways) drop(id string) {
	a.mu.Lock()
	w := a.of[id]
	delete(a.of, id)
	a.mu.Unlock()
	if w != nil {
		w.transport.CloseIdleConnections()
	}
}

func (a *ways) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.of {
		w.transport.CloseIdleConnections()
	}
}

// initialize sends settings to the program in a sandbox, and starts it if it does not run.
func (s *server) initialize(ctx context.Context, v vm.VM, with envd.Init) (err error) {
	body, err := json.Marshal(with)
	if err != nil {
		return err
	}
	conn, err := s.Sandboxes.DialSandbox(ctx, v.Job)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/init", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if err := r.Write(conn); err != nil {
		return fmt.Errorf("set up the sandbox: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(http.MaxBytesReader(nil, conn, vmHeaders)), r)
	if err != nil {
		return fmt.Errorf("set up the sandbox: %w", err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("set up the sandbox: the program in the VM answered %d", resp.StatusCode)
	}
	return nil
}
