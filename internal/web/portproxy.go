package web

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vmpage"
)

// Limits of what passes between a browser and a port of a VM.
const (
	portHeaders = 64 << 10         // bytes of a response's headers
	portReady   = 50 * time.Second // until the VM accepts a connection, which resumes the VM; less than proxies wait
	portAnswer  = 2 * time.Minute  // until the response's headers arrive
	portIdle    = 20 * time.Second
	portCheck   = 5 * time.Second // between two checks whether a stream may continue
	portOpen    = 48              // requests to one port at once; an SSH connection to a VM has 64
)

const noPort = "There is no such port, or its VM is gone."

// errNotReady means that the VM has not accepted a connection in time. What the connection has
// started, such as resuming the VM, continues.
var errNotReady = errors.New("the VM is not ready yet")

// reach serves a request to a port for a principal, as long as still returns true. A nil still
// never ends the request.
func (a *api) reach(w http.ResponseWriter, r *http.Request, v portRequest, who job.Principal, still func() bool) {
	giveTime(w, r, uploadTime)
	a.pages.serveFor(who, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port, err := a.portOf(r.Context(), who, v.id)
		if err != nil {
			a.portFailed(w, r, v, err)
			return
		}
		leave, ok := a.pages.asking.Enter(job.PortRef+v.id, portOpen)
		if !ok {
			w.Header().Set("Retry-After", "5")
			v.fail(w, http.StatusServiceUnavailable, fmt.Sprintf("Too many requests: %d are open at port %s; try again when some have ended", portOpen, port.Name))
			return
		}
		defer leave()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if body, ok := r.Body.(*pacedBody); ok { // before its end, the server does not see a client leave
			defer time.AfterFunc(uploadTime, func() {
				if !body.hasEnded() {
					cancel()
				}
			}).Stop()
		}
		go vmpage.CancelWhen(ctx, portCheck, cancel, func() bool {
			_, err := a.portOf(ctx, who, v.id)
			return still != nil && !still() || isUnknown(err)
		})
		proxy := httputil.ReverseProxy{
			Transport: vmpage.Alone{RoundTripper: a.ports.transport}, FlushInterval: -1, ErrorLog: quiet(a.Log),
			Rewrite:        func(p *httputil.ProxyRequest) { a.toVM(p, v, port.Port) },
			ModifyResponse: func(resp *http.Response) error { return a.fromVM(resp, v, port.Port) },
			ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { a.portFailed(w, r, v, err) },
		}
		proxy.ServeHTTP(w, r.WithContext(ctx))
	}), w, r)
}

// isUnknown reports whether, to the caller, there is no such port.
func isUnknown(err error) bool {
	var field *job.FieldError
	return errors.Is(err, job.ErrNotFound) || errors.Is(err, job.ErrNotAllowed) || errors.As(err, &field) && field.Fault == job.FaultUnknown
}

// portFailed responds with why a port cannot be reached. The VM may have influenced the text.
func (a *api) portFailed(w http.ResponseWriter, r *http.Request, v portRequest, err error) {
	var field *job.FieldError
	switch {
	case r.Context().Err() != nil: // the client is gone or lost its permission
		v.fail(w, http.StatusServiceUnavailable, "This cannot continue")
	case errors.Is(err, job.ErrUnauthorized):
		w.Header().Set("WWW-Authenticate", `Bearer realm="linus"`)
		v.fail(w, http.StatusUnauthorized, "Unauthorized: log in to linus again")
	case errors.Is(err, job.ErrNotAllowed), errors.Is(err, job.ErrNoScope):
		v.fail(w, http.StatusForbidden, err.Error())
	case isUnknown(err):
		v.fail(w, http.StatusNotFound, noPort)
	case errors.Is(err, errNotReady):
		w.Header().Set("Retry-After", "5")
		if isLink(r) && isBrowser(r) {
			w.Header().Set("Refresh", "5") // the browser retries by itself
		}
		v.fail(w, http.StatusServiceUnavailable, fmt.Sprintf("The VM is not ready after %s: it is being resumed, or its host is busy; try again in some seconds", portReady))
	case errors.As(err, &field), errors.Is(err, job.ErrUnchecked), job.IsEngineFault(err):
		v.fail(w, http.StatusServiceUnavailable, words.In(err.Error()))
	default:
		a.Log.Debug("a port of a VM does not answer", "port", v.id, "err", err)
		v.fail(w, http.StatusBadGateway, "The program at this port does not answer as a web server does")
	}
}

func (v portRequest) fail(w http.ResponseWriter, code int, text string) {
	v.restrict(w.Header())
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // fails only if the client is gone
}

// portTransport returns a transport to ports of VMs. The host in a request's URL is the port's ID.
func portTransport(e job.Engine) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			id, number, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			port, err := strconv.Atoi(number)
			if err != nil {
				return nil, err
			}
			timed, end := context.WithTimeoutCause(ctx, portReady, errNotReady)
			defer end()
			t, err := e.DialVM(timed, job.PortRef+id, port)
			if err != nil && errors.Is(context.Cause(timed), errNotReady) {
				return nil, errNotReady
			}
			if err != nil {
				return nil, err
			}
			return vmpage.Conn{Tunnel: t}, nil
		},
		DisableCompression: true, MaxIdleConnsPerHost: 8, IdleConnTimeout: portIdle,
		ResponseHeaderTimeout: portAnswer, MaxResponseHeaderBytes: portHeaders, ExpectContinueTimeout: time.Second,
	}
}

func quiet(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }

// local returns the origin that the program at the port sees, as if its page were opened in the VM.
// Many programs refuse other hosts, and origins that do not match.
func local(port int) string { return "http://localhost:" + strconv.Itoa(port) }

func (a *api) toVM(p *httputil.ProxyRequest, v portRequest, port int) {
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", fmt.Sprintf("%s:%d", v.id, port), fmt.Sprintf("localhost:%d", port)
	rest := "/" + strings.TrimPrefix(strings.TrimPrefix(p.In.URL.EscapedPath(), v.prefix), "/")
	out.URL.RawPath, out.URL.RawQuery = rest, p.In.URL.RawQuery
	out.URL.Path, _ = url.PathUnescape(rest) // it was escaped
	h := out.Header
	p.SetXForwarded()
	if v.secure {
		h.Set("X-Forwarded-Proto", "https")
	}
	h.Del("X-Forwarded-Prefix")
	if v.prefix != "" {
		h.Set("X-Forwarded-Prefix", v.prefix)
	}
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
	}
	if bearer := bearerOf(p.In); bearer != "" && a.isOurs(p.In.Context(), bearer) {
		h.Del("Authorization")
	}
	if h.Get("Origin") != "" {
		h.Set("Origin", local(port)) // mayAsk has compared it
	}
	if rest, ok := strings.CutPrefix(h.Get("Referer"), v.origin+"/"); ok {
		h.Set("Referer", local(port)+"/"+rest)
	} else {
		h.Del("Referer")
	}
	if v.prefix == "" {
		a.pages.sessions.host(v).To(h)
	} else {
		h.Del("Cookie")
	}
}

// bearerOf returns the token in "Authorization: Bearer", or "".
func bearerOf(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// isOurs reports whether a token is, or was, meant for this server. Other tokens are between the
// page and its program.
func (a *api) isOurs(ctx context.Context, bearer string) bool {
	if job.IsToken(bearer) || a.pages.sessions.isToken(bearer) {
		return true
	}
	if a.OAuth == nil {
		return false
	}
	_, err := a.authenticate(ctx, bearer)
	return !errors.Is(err, job.ErrUnauthorized)
}

// sandboxHeaders are the response headers that affect nothing but the response. All others,
// including those yet to be invented, could affect this server's own origin.
var sandboxHeaders = map[string]bool{
	"Accept-Ranges": true, "Age": true, "Cache-Control": true, "Connection": true, "Content-Disposition": true, "Content-Encoding": true, "Content-Language": true,
	"Content-Length": true, "Content-Range": true, "Content-Security-Policy": true, "Content-Type": true, "Date": true, "Etag": true, "Expires": true, "Last-Modified": true,
	"Location": true, "Retry-After": true, "Sec-Websocket-Accept": true, "Sec-Websocket-Extensions": true, "Sec-Websocket-Protocol": true, "Upgrade": true, "Vary": true,
	"X-Content-Type-Options": true,
}

func (a *api) fromVM(resp *http.Response, v portRequest, port int) error {
	h := resp.Header
	if to := h.Get("Location"); to != "" {
		h.Set("Location", v.outside(to, port))
	}
	if v.prefix == "" {
		a.pages.sessions.host(v).From(h)
	} else {
		for name := range h {
			if !sandboxHeaders[name] {
				delete(h, name)
			}
		}
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Content-Type"))), "multipart/") {
			h.Set("Content-Type", "application/octet-stream") // its parts would have headers of their own
		}
	}
	v.restrict(h)
	return nil
}

// restrict sets the headers that isolate a page.
func (v portRequest) restrict(h http.Header) {
	if v.prefix == "" {
		h.Set("Origin-Agent-Cluster", "?1") // document.domain cannot merge two hosts into one origin
		h.Add("Content-Security-Policy", "frame-ancestors 'self'")
		if !v.secure {
			h.Set("Referrer-Policy", "same-origin") // provesOrigin reads the Referer
		}
		return
	}
	h.Add("Content-Security-Policy", "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads allow-pointer-lock")
	h.Set("Referrer-Policy", "no-referrer") // the path contains the grant
	v.allow(h)
}

// allow lets a page without an origin read what it loads from its own port.
func (v portRequest) allow(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "null")
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Add("Vary", "Origin")
}

// outside returns where a redirect of the VM leads the browser.
func (v portRequest) outside(to string, port int) string {
	u, err := url.Parse(to)
	if err != nil {
		return v.prefix + "/"
	}
	if u.Host == fmt.Sprintf("localhost:%d", port) || u.Host == fmt.Sprintf("127.0.0.1:%d", port) || v.prefix == "" && u.Host != "" && strings.HasSuffix(v.origin, "://"+u.Host) {
		u.Scheme, u.Host, u.User = "", "", nil
	}
	if u.Scheme == "" && u.Host == "" && strings.HasPrefix(u.Path, "/") {
		u.Path, u.RawPath = v.prefix+"/"+strings.TrimLeft(u.Path, "/\\"), ""
	}
	return u.String()
}

// host returns the vmpage.Host of a port that has a host name of its own.
func (s sessions) host(v portRequest) vmpage.Host {
	return func(text string) string { return s.mac("cookie "+v.id, text) }
}
