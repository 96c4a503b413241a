package credential

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// ServeHTTP serves a request of the VM to a target.
func (l *TLSProxy) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	t := r.Context().Value(targetKey{}).(*target)
	w := &patient{ResponseWriter: to, control: http.NewResponseController(to), idle: l.k.o.Idle}
	if r.Body != http.NoBody {
		_ = w.control.SetReadDeadline(time.Now().Add(l.k.o.Idle))
	}
	used := job.CredentialUse{Method: r.Method, Host: t.address(), Path: r.URL.EscapedPath()}
	refuse := func(status int, why string) {
		used.Status = status
		l.o.Record(used)
		http.Error(w, "linus: "+why, status)
	}
	select {
	case l.room <- struct{}{}:
		defer func() { <-l.room }()
	default:
		refuse(http.StatusServiceUnavailable, "the job has too many requests under way")
		return
	}
	switch {
	case r.Method == http.MethodTrace: // a host answers it with the request itself
		refuse(http.StatusMethodNotAllowed, "no TRACE")
		return
	case r.Method == http.MethodConnect || r.URL.Opaque != "":
		refuse(http.StatusMethodNotAllowed, "no tunnels through this host")
		return
	case !t.is(r.Host) || r.URL.Host != "" && !t.is(r.URL.Host):
		refuse(http.StatusMisdirectedRequest, "this connection is to "+t.address()+", and the request to another host")
		return
	}
	for _, name := range t.names {
		if l.with(w, r, t, name, &used) {
			return
		}
	}
	refuse(http.StatusForbidden, "no credential of the job is for this path of "+t.address())
}

// with serves a request with a credential, or returns false if the credential does not cover it.
func (l *TLSProxy) with(w *patient, r *http.Request, t *target, name string, used *job.CredentialUse) bool {
	ctx, c, end, err := l.k.begin(r.Context(), name)
	defer end()
	defer context.AfterFunc(l.life, end)() //nolint:contextcheck // the life of the VM, beside the request
	if errors.Is(err, job.ErrNotFound) || err == nil && (net.JoinHostPort(c.Target()) != net.JoinHostPort(t.host, t.port) || !c.Covers(used.Path)) {
		return false
	}
	used.Name = name
	value := ""
	if err == nil {
		value, err = l.k.value(c)
	}
	if err != nil {
		used.Status = http.StatusBadGateway
		l.o.Record(*used)
		l.k.o.Log.Warn("a credential cannot be used", "credential", name, "err", err)
		http.Error(w, "linus: credential "+name+" cannot be used; the engine's log says why", used.Status)
		return true
	}
	l.pass(w, r.WithContext(ctx), t, c, value, *used)
	return true
}

// known are the headers that pass to a host if only a path of it is allowed: from other headers
// some hosts take another path or method than the request's.
var known = lazyregexp.New(`(?i)^(accept(-charset|-encoding|-language)?|cache-control|connection|content-(digest|disposition|encoding|language|length|md5|range|type)` +
	`|date|digest|dnt|expect|if-(match|none-match|modified-since|unmodified-since|range)|last-event-id|origin|pragma|prefer|priority|range|te|transfer-encoding|upgrade|user-agent` +
	`|traceparent|tracestate|(x-)?(client-)?(request|correlation)-id|(x-)?idempotency-key|x-requested-with|sec-websocket-(extensions|key|protocol|version)` +
	`|anthropic-(beta|version|dangerous-direct-browser-access)|openai-(beta|organization|project)|x-stainless-[a-z-]+|x-app|x-goog-(api-client|user-project)` +
	`|x-github-api-version|git-protocol|mcp-(session-id|protocol-version|method|name)|npm-(auth-type|command|scope|session))$`)

func (l *TLSProxy) pass(w *patient, r *http.Request, t *target, c job.Credential, value string, used job.CredentialUse) {
	name, header, hidden := c.HeaderWith(value)
	hide := hiderOf(value, hidden)
	w.hide = hide
	said := sync.OnceFunc(func() { l.o.Record(used) })
	if r.Body != nil {
		body := &patientBody{ReadCloser: r.Body, p: w}
		defer body.Close() //nolint:errcheck // it is done
		r.Body = body
	}
	(&httputil.ReverseProxy{
		Transport: l.out, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "https", Host: net.JoinHostPort(t.host, t.port), Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery, ForceQuery: p.In.URL.ForceQuery}
			p.Out.Host = t.address()
			if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") { // another protocol could go anywhere
				p.Out.Header.Del("Upgrade")
				p.Out.Header.Del("Connection")
			}
			for header := range p.Out.Header {
				if strings.EqualFold(strings.ReplaceAll(header, "_", "-"), name) || c.Path != "" && !known.MatchString(header) {
					delete(p.Out.Header, header)
				}
			}
			p.Out.Trailer = nil
			p.Out.Header.Set("Accept-Encoding", "identity") // compressed bodies cannot be searched
			p.Out.Header.Set(name, header)
		},
		ModifyResponse: func(res *http.Response) error {
			used.Status = res.StatusCode
			said()
			hide.header(res.Header)
			hide.header(res.Trailer)
			res.Status = "" // the host's own words are not passed on
			if res.StatusCode != http.StatusSwitchingProtocols {
				res.Body = &hiding{ReadCloser: res.Body, hide: hide, trailer: func() { hide.header(res.Trailer) }}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			used.Status = http.StatusBadGateway
			why := "linus: " + t.address() + " cannot be reached"
			if errors.Is(context.Cause(r.Context()), errRemoved) {
				used.Status, why = http.StatusForbidden, "linus: "+errRemoved.Error()
			}
			said()
			text := []byte(err.Error()) // it may quote a malformed answer
			hide.bytes(text)
			l.k.o.Log.Debug("a request with a credential failed", "credential", c.Name, "err", string(text))
			http.Error(w, why, used.Status)
		},
	}).ServeHTTP(w, r)
}
