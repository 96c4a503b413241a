// Package vmpage is what passes between clients and a web server in a VM, which is hostile, at a
// host of its own below a domain: nothing that it says is about another host, and none of
// the cookies reaches it that another VM has set for the whole domain. It knows no VM, and not
// who may see a page.
package vmpage

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"

	"linus/internal/sleep"
)

// Alone leaves out what precedes a response and what follows its body: headers that nobody has looked
// at, and which no page can read.
type Alone struct{ http.RoundTripper }

// RoundTrip is for httputil.ReverseProxy.
func (t Alone) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil { // the proxy's, which would pass them on, without end
		trace.Got1xxResponse = nil
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	out := *resp // the body's end sets the other's trailers
	out.Trailer = nil
	out.Header.Del("Trailer")
	return &out, nil
}

// CancelWhen cancels a request that is over, which is asked every so often until ctx ends: a connection
// that the VM keeps is no proof that it may go on.
func CancelWhen(ctx context.Context, every time.Duration, cancel func(), over func() bool) {
	for sleep.For(ctx, every) == nil {
		if over() {
			cancel()
		}
	}
}

// Tunnel is a connection into a VM.
type Tunnel interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Conn is a tunnel as net/http has its connections. Its times are bounded by closing it.
type Conn struct{ Tunnel }

// LocalAddr is for http.Transport, as are the others.
func (Conn) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (Conn) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (Conn) SetDeadline(time.Time) error      { return nil }
func (Conn) SetReadDeadline(time.Time) error  { return nil }
func (Conn) SetWriteDeadline(time.Time) error { return nil }

// beyondHost are headers of a response that reach beyond its host, or a proxy before this server.
var beyondHost = []string{
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints", "Set-Cookie2", "Strict-Transport-Security",
	"X-Accel-Buffering", "X-Accel-Charset", "X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Redirect", "X-Lighttpd-Send-File", "X-Lighttpd-Send-Tempfile", "X-Reproxy-Url", "X-Sendfile",
}

// OwnCookies is what the names of cookies begin with that a VM neither sets nor gets.
const OwnCookies = "linus-"

// A cookie that a page sets by a script may be for all hosts of the domain, and so come to
// another VM's, and nothing in a request says so. Those that a VM itself has set are known by
// a second cookie, which has a MAC of both its name and its value: only they reach it.
const markCookie = OwnCookies + "mark-"

const maxCookies = 50 // set by one response

// Host is a host of a VM, known by how it makes a MAC of a text.
type Host func(text string) string

// From leaves in the headers of a VM's response what is about its own host, cookies with their
// marks.
func (mac Host) From(h http.Header) {
	set := h["Set-Cookie"]
	h.Del("Set-Cookie")
	for _, name := range beyondHost {
		h.Del(name)
	}
	for _, line := range set[:min(len(set), maxCookies)] {
		pair, rest, _ := strings.Cut(line, ";")
		name, value, ok := strings.Cut(pair, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" || isOwnCookie(name) {
			continue
		}
		attributes := ""
		for a := range strings.SplitSeq(rest, ";") {
			if key, _, _ := strings.Cut(a, "="); !strings.EqualFold(strings.TrimSpace(key), "domain") && strings.TrimSpace(a) != "" {
				attributes += "; " + strings.TrimSpace(a)
			}
		}
		h.Add("Set-Cookie", name+"="+value+attributes)
		h.Add("Set-Cookie", markCookie+name+"="+mac(name+"="+value)+attributes+"; HttpOnly")
	}
}

func isOwnCookie(name string) bool {
	name = strings.ToLower(name)
	name = strings.TrimPrefix(strings.TrimPrefix(name, "__host-"), "__secure-")
	return strings.HasPrefix(name, OwnCookies)
}

// To leaves in the headers of a request those cookies that the VM has set at its host.
func (mac Host) To(h http.Header) {
	var kept, all []string
	marks := map[string]bool{}
	for _, line := range h["Cookie"] {
		for c := range strings.SplitSeq(line, ";") {
			c = strings.TrimSpace(c)
			if marked, ok := strings.CutPrefix(c, markCookie); ok {
				marks[marked] = true
			} else if name, _, _ := strings.Cut(c, "="); !isOwnCookie(name) {
				all = append(all, c)
			}
		}
	}
	for _, c := range all {
		name, _, ok := strings.Cut(c, "=")
		if ok && marks[name+"="+mac(c)] {
			kept = append(kept, c)
		}
	}
	if h.Del("Cookie"); len(kept) > 0 {
		h.Set("Cookie", strings.Join(kept, "; "))
	}
}
