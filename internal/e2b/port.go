package e2b

import (
	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"linus/internal/envd"
	"linus/internal/gate"
	"linus/internal/job"
	"linus/internal/vm"
	"linus/internal/vmpage"
)

// Each port of a sandbox has a host of its own below Options.Domain: PORT-ID.DOMAIN. The server
// that listens there is hostile, and so are its pages: the hosts of other sandboxes are the same
// site. A client shows a token of the sandbox, in a header or, as browsers do, once in the query,
// after which a cookie of that one host replaces it.

const (
	trafficHeader  = "E2b-Traffic-Access-Token" // in lower case in the query
	visitCookie    = "__Host-" + vmpage.OwnCookies + "port"
	visitTime      = 12 * time.Hour
	publicVisitors = 2 // divisor: visitors without a token get this share of a sandbox's requests
)

// port is a TCP port of a sandbox. Number 0 cannot be reached.
type port struct {
	id     string
	number int
	named  bool // by headers, at this server's own host
}

func (p port) text() string { return strconv.Itoa(p.number) }

// portOf returns the port that a host names; false: the host names no port.
func (s *server) portOf(host string) (p port, ok bool) {
	domain, _, _ := strings.Cut(s.Domain, ":")
	host, _, _ = strings.Cut(strings.ToLower(host), ":")
	label, below := strings.CutSuffix(host, "."+domain)
	number, id, dashed := strings.Cut(label, "-")
	if domain == "" || !below || !dashed || strings.Trim(number, "0123456789") != "" {
		return p, false
	}
	return makePort(id, number), true
}

// makePort returns a port of a sandbox; its number is 0 if the text is not a usable number.
func makePort(id, number string) port {
	p := port{id: id}
	if n, err := strconv.ParseUint(number, 10, 16); err == nil && strconv.FormatUint(n, 10) == number && n != 22 { // SSH is reserved for the engine
		p.number = int(n)
	}
	return p
}

func (s *server) toPort(w http.ResponseWriter, r *http.Request, p port) error {
	if p.number == 0 {
		return &refusal{http.StatusNotFound, "no such port: give 1 to 65535, but not the SSH port"}
	}
	if p.number == envd.Port {
		r.Header.Set("E2b-Sandbox-Id", p.id)
		r.Header.Del("E2b-Sandbox-Port")
		return s.toSandbox(w, r)
	}
	known := s.mayVisit(r, p)
	if to := *r.URL; known && !p.named && r.Method == http.MethodGet && !isUpgrade(r.Header) && dropToken(&to) {
		s.welcome(w, p, to)
		return nil
	}
	refused := &refusal{http.StatusForbidden, "this needs a token of the sandbox: its trafficAccessToken in the header e2b-traffic-access-token, or in a browser once in the query"}
	if !known && (p.named || !s.PublicPorts || hasToken(r)) {
		return refused
	}
	v, err := s.reachable(r.Context(), p.id)
	switch {
	case errors.Is(err, job.ErrNotFound):
		s.goneSandbox(w, p.id)
		return nil
	case err != nil:
		return err
	case !known && !v.Sandbox().Public:
		return refused
	}
	if known {
		gate.Serves(r.Context())
	} else {
		leave, ok := s.asking.Enter("visitors of "+p.id, max(1, s.bounds.sandbox/publicVisitors))
		if !ok {
			return s.full(w)
		}
		defer leave()
	}
	shown := strings.ReplaceAll(cmp.Or(v.Sandbox().Host, "localhost:"+portMark), portMark, p.text())
	return s.pass(w, r, v, httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) { s.toPage(out, p, shown) },
		ModifyResponse: func(resp *http.Response) error {
			if p.named {
				return fromVM(resp)
			}
			w.Header().Del("X-Content-Type-Options") // the page sets these itself
			w.Header().Del("Cache-Control")
			if to, err := url.Parse(resp.Header.Get("Location")); err == nil && (to.Host == shown || to.Host == "localhost:"+p.text() || to.Host == "127.0.0.1:"+p.text()) {
				to.Scheme, to.Host, to.User, to.Path = "", "", nil, "/"+strings.TrimLeft(to.Path, "/\\")
				to.RawPath = ""
				resp.Header.Set("Location", to.String())
			}
			s.host(p).From(resp.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			field, ok := errors.AsType[*job.FieldError](err)
			switch {
			case r.Context().Err() != nil: // the client has gone, or the sandbox
				s.goneSandbox(w, p.id)
			case ok && field.Field != "port", job.IsEngineFault(err):
				s.Log.Debug("a port of a sandbox cannot be reached", "sandbox", p.id, "port", p.number, "err", err)
				s.fail(w, &refusal{http.StatusServiceUnavailable, "the sandbox cannot be reached at the moment: try again"})
			default:
				respond(w, http.StatusBadGateway, map[string]any{
					"sandboxId": p.id, "port": p.number, "code": http.StatusBadGateway,
					"message": "The sandbox runs, but no web server answers at port " + p.text(),
				})
			}
		},
	})
}

// pass passes a request to a sandbox through proxy, while the sandbox may be used.
func (s *server) pass(w http.ResponseWriter, r *http.Request, v vm.VM, proxy httputil.ReverseProxy) error {
	id := vm.SandboxID(v.Job)
	leave, ok := s.asking.Enter("sandbox "+id, s.bounds.sandbox)
	if !ok {
		return s.full(w)
	}
	defer leave()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(asOwner(r.Context(), v))
	defer cancel()
	if stateOf(v) == paused {
		waking, done := context.WithTimeout(ctx, makingTime)
		_, err := s.resumed(waking, v, v.Sandbox().Wakes)
		done()
		if err != nil {
			return err
		}
	}
	// Streams go both ways. An answer may begin before the request has ended; without full duplex
	// the server would then close the body and cut the request off.
	_ = control.EnableFullDuplex()                            // HTTP/2 always does
	go vmpage.CancelWhen(ctx, lookTime, cancel, func() bool { // the sandbox ends, or may no longer be used
		v, err := s.reachable(ctx, id)
		return errors.Is(err, job.ErrNotFound) || err == nil && stateOf(v) != running
	})
	way, begins := s.ways.to(s, id)
	if begins && s.Entered != nil {
		s.Entered(v)
	}
	proxy.Transport, proxy.FlushInterval = vmpage.Alone{RoundTripper: way.transport}, -1
	proxy.ErrorLog = slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug)
	r = r.WithContext(ctx)
	if r.ProtoMajor == 1 && r.Body != http.NoBody {
		body := &followed{ReadCloser: r.Body}
		r.Body, w = body, lastAnswer{w, body}
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// followed is the body of a request that records whether all of it was read.
type followed struct {
	io.ReadCloser
	whole atomic.Bool
}

func (b *followed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.whole.Store(true)
	}
	return n, err
}

// lastAnswer closes the connection unless the request was read before the answer began. Otherwise
// net/http would read the rest of it and await the next request at the same time, and panic.
type lastAnswer struct {
	http.ResponseWriter
	to *followed
}

func (w lastAnswer) WriteHeader(code int) {
	if !w.to.whole.Load() {
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap supports http.ResponseController.
func (w lastAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// hasToken reports whether a request shows a token, valid or not.
func hasToken(r *http.Request) bool {
	return r.Header.Get("X-Access-Token")+r.Header.Get(trafficHeader)+r.URL.Query().Get(strings.ToLower(trafficHeader)) != ""
}

// mayVisit reports whether a request shows a token of the sandbox, or the cookie of the port's host
// in a request of that host's own page. If a token is shown, the cookie does not count.
func (s *server) mayVisit(r *http.Request, p port) bool {
	if vmOf(p.id) == "" {
		return false
	}
	if p.named || hasToken(r) {
		traffic := []byte(s.trafficToken(p.id))
		return s.isAccessToken(p.id, r.Header.Get("X-Access-Token")) || hmac.Equal(traffic, []byte(r.Header.Get(trafficHeader))) || hmac.Equal(traffic, []byte(r.URL.Query().Get(strings.ToLower(trafficHeader))))
	}
	for _, c := range r.CookiesNamed(visitCookie) {
		text, mac, _ := strings.Cut(c.Value, ".")
		until, err := strconv.ParseInt(text, 10, 64)
		if err == nil && time.Now().Unix() < until && hmac.Equal([]byte(s.visit(p, text)), []byte(mac)) {
			return isOwnPage(r)
		}
	}
	return false
}

// isOwnPage reports whether a browser says that the host's own page sent the request, or that it is
// a top-level navigation.
func isOwnPage(r *http.Request) bool {
	h := r.Header
	if origin := h.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	}
	site := h.Get("Sec-Fetch-Site")
	return site == "same-origin" || site == "none" || r.Method == http.MethodGet && h.Get("Sec-Fetch-Mode") == "navigate" && h.Get("Sec-Fetch-Dest") == "document"
}

// dropToken removes the token from a URL; false: there is none.
func dropToken(u *url.URL) bool {
	q := u.Query()
	if !q.Has(strings.ToLower(trafficHeader)) {
		return false
	}
	q.Del(strings.ToLower(trafficHeader))
	u.RawQuery = q.Encode()
	return true
}

// welcome sets a browser's cookie, and redirects to the URL without the token.
func (s *server) welcome(w http.ResponseWriter, p port, to url.URL) {
	until := strconv.FormatInt(time.Now().Add(visitTime).Unix(), 10)
	http.SetCookie(w, &http.Cookie{
		Name: visitCookie, Value: until + "." + s.visit(p, until), Path: "/", MaxAge: int(visitTime.Seconds()),
		HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode,
	})
	w.Header().Set("Referrer-Policy", "no-referrer")
	path := "/" + strings.TrimLeft(to.EscapedPath(), "/\\")
	if to.RawQuery != "" {
		path += "?" + to.RawQuery
	}
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusSeeOther)
}

func isUpgrade(h http.Header) bool { return strings.EqualFold(h.Get("Upgrade"), "websocket") }

// toPage rewrites a request as if it were made in the VM, without tokens and keys of this server.
func (s *server) toPage(out *httputil.ProxyRequest, p port, shown string) {
	h := out.Out.Header
	out.Out.URL.Scheme, out.Out.URL.Host, out.Out.Host = "http", "localhost:"+p.text(), shown
	out.Out.URL.RawQuery = out.In.URL.RawQuery
	_ = dropToken(out.Out.URL)
	out.SetXForwarded()
	if s.Secure {
		h.Set("X-Forwarded-Proto", "https")
	}
	for _, name := range []string{trafficHeader, "X-Access-Token", "X-Api-Key", "E2b-Sandbox-Id", "E2b-Sandbox-Port", "Referer"} {
		h.Del(name)
	}
	if !isUpgrade(h) {
		h.Del("Upgrade")
		h.Del("Connection")
	}
	if scheme, token, _ := strings.Cut(h.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		if _, err := s.Authenticate(out.In.Context(), strings.TrimSpace(token)); !errors.Is(err, job.ErrUnauthorized) || job.IsToken(strings.TrimSpace(token)) {
			h.Del("Authorization") // a key of this server; others are between the client and the page
		}
	}
	if u, err := url.Parse(h.Get("Origin")); err == nil && u.Host != "" && strings.EqualFold(u.Host, out.In.Host) {
		h.Set("Origin", "http://"+shown)
	}
	s.host(p).To(h)
}

// host returns the function that makes the marks of cookies of a port's host.
func (s *server) host(p port) vmpage.Host {
	return func(text string) string { return s.mac("cookie " + p.text() + "-" + p.id + " " + text) }
}

// visit returns the cookie's MAC, which replaces a sandbox's token at one port until a time.
func (s *server) visit(p port, until string) string {
	return s.mac("visit " + p.text() + "-" + p.id + " " + until)
}
