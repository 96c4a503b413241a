// Package vmpage filters what passes between clients and a hostile web server in a VM, which has a
// host of its own below a domain. Nothing that the server says affects another host, and no cookie
// that another VM has set for the whole domain reaches it. The package knows neither the VM nor who
// may see a page.
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

// Alone drops informational responses and trailers, whose headers nobody has checked and no page
// can read.
type Alone struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper, for httputil.ReverseProxy.
func (t Alone) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil { // the proxy's trace would pass on any number of them
		trace.Got1xxResponse = nil
	}
	resp, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	out := *resp // a copy, as the end of the body sets the original's trailers
	out.Trailer = nil
	out.Header.Del("Trailer")
	return &out, nil
}

// CancelWhen calls over at intervals until ctx ends, and cancels the request if it is over. A
// connection that the VM keeps open does not prove that the request may continue.
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

// Conn is a tunnel as a net.Conn for net/http. It has no deadlines: closing it ends reads and
// writes.
type Conn struct{ Tunnel }

// LocalAddr and the methods below exist for http.Transport.
func (Conn) LocalAddr() net.Addr              { return &net.UnixAddr{Net: "unix"} }
func (Conn) RemoteAddr() net.Addr             { return &net.UnixAddr{Net: "unix"} }
func (Conn) SetDeadline(time.Time) error      { return nil }
func (Conn) SetReadDeadline(time.Time) error  { return nil }
func (Conn) SetWriteDeadline(time.Time) error { return nil }

// beyondHost are response headers that affect more than their host, or a proxy in front of this
// server.
var beyondHost = []string{
	"Alt-Svc", "Clear-Site-Data", "Nel", "Public-Key-Pins", "Report-To", "Reporting-Endpoints", "Set-Cookie2", "Strict-Transport-Security",
	"X-Accel-Buffering", "X-Accel-Charset", "X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Redirect", "X-Lighttpd-Send-File", "X-Lighttpd-Send-Tempfile", "X-Reproxy-Url", "X-Sendfile",
}

// OwnCookies is the prefix of cookie names that a VM can neither set nor receive.
const OwnCookies = "linus-"

// A script of a page can set a cookie for all hosts of the domain. Such a cookie reaches other VMs'
// hosts, and nothing in the request says so. The cookies that a VM itself has set are therefore
// marked by a second cookie with a MAC of their name and value: only marked cookies reach the VM.
const markCookie = OwnCookies + "mark-"

const maxCookies = 50 // set by one response

// Host is the host of a VM. It computes the host's MAC of a text.
type Host func(text string) string

// From removes what affects other hosts from the headers of a VM's response, and marks its cookies.
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

// To removes all cookies from the headers of a request but those that the VM has set at its host.
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
