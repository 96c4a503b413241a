package credential

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

const (
	maxHeader   = 64 << 10
	dialTimeout = 15 * time.Second
	longest     = 15 * time.Minute // until a host begins to answer
	caLife      = 60 * 24 * time.Hour
	maxRequests = 256 // of one job at once
)

// Leg is where the connections of one job's VM to its credentials' hosts end, and others to
// these hosts begin. Its CA vouches for these hosts alone; the key is nowhere but in memory.
type Leg struct {
	k       *Keeper
	o       LegOptions
	targets map[string]*target // by host:port
	ca      []byte             // PEM

	server *http.Server
	out    *http.Transport
	conns  chan net.Conn
	room   chan struct{}
	life   context.Context //nolint:containedctx // of all its requests
	end    context.CancelFunc
	close  sync.Once
}

// target is a host and port that the job has credentials for.
type target struct {
	host, port string
	names      []string // of credentials, the one with the longest path first
	ours       bool     // to be reached from here, whatever the VM reaches
	cert       *tls.Certificate
}

// address is the host as requests and URLs have it.
func (t *target) address() string {
	if t.port == "443" {
		return t.host
	}
	return net.JoinHostPort(t.host, t.port)
}

// is reports whether the host of a request is the target.
func (t *target) is(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(host), ":"+t.port)
	return strings.TrimSuffix(host, ".") == t.host
}

// LegOptions say what a Leg is for.
type LegOptions struct {
	Names  []string                // of the credentials that the job has named; those that were removed since are left out
	Record func(job.CredentialUse) // called with each request
	// Reach connects to an address that the VM may reach without us. Hosts that nobody has
	// vouched for are reached so, and with Wide, when that is more than names, those of agents'
	// models. Nil: all are reached from here.
	Reach func(ctx context.Context, address string) (net.Conn, error)
	Wide  bool
}

// Leg returns one for a job.
func (k *Keeper) Leg(ctx context.Context, o LegOptions) (*Leg, error) {
	l := &Leg{k: k, o: o, targets: map[string]*target{}, conns: make(chan net.Conn), room: make(chan struct{}, maxRequests)}
	var named []job.Credential
	for _, name := range o.Names {
		c, err := k.Credential(ctx, name)
		if errors.Is(err, job.ErrNotFound) || c.SSH() {
			continue
		}
		if err != nil {
			return nil, err
		}
		named = append(named, c)
	}
	slices.SortStableFunc(named, func(a, b job.Credential) int { return len(b.Path) - len(a.Path) })
	for _, c := range named {
		host, port := c.Target()
		at := net.JoinHostPort(host, port)
		if l.targets[at] == nil {
			l.targets[at] = &target{host: host, port: port}
		}
		t := l.targets[at]
		t.names = append(t.names, c.Name)
		t.ours = t.ours || !c.OfAgent() || !c.Chosen() && !o.Wide
	}
	if err := l.certify(); err != nil {
		return nil, fmt.Errorf("make a CA for a job's VM: %w", err)
	}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	l.out = &http.Transport{
		ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: longest, IdleConnTimeout: time.Minute,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: k.o.Roots},
		DialContext:     l.dial,
	}
	l.server = &http.Server{
		Handler: l, ReadHeaderTimeout: k.o.Header, IdleTimeout: k.o.Idle, MaxHeaderBytes: maxHeader, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true, GetCertificate: certificate},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, targetKey{}, targetOf(c.(*tls.Conn).NetConn()))
		},
	}
	go func() { _ = l.server.ServeTLS(incoming{l}, "", "") }()
	return l, nil
}

// dial connects to a target.
func (l *Leg) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if t := l.targets[address]; t == nil || t.ours || l.o.Reach == nil {
		return l.k.o.Dial(ctx, network, address)
	}
	return l.o.Reach(ctx, address)
}

type targetKey struct{}

// certify makes the CA and the targets' certificates, and forgets the CA's key.
func (l *Leg) certify() error {
	from, until := time.Now().Add(-24*time.Hour), time.Now().Add(caLife) // a VM's clock may be wrong
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial := func() *big.Int {
		n := make([]byte, 16)
		_, _ = rand.Read(n) // it never fails
		return new(big.Int).SetBytes(n)
	}
	var hosts []string
	for _, t := range l.targets {
		hosts = append(hosts, t.host)
	}
	slices.Sort(hosts)
	everywhere := []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	ca := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "linus: credentials of one job"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: slices.Compact(hosts), ExcludedIPRanges: everywhere,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return err
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	l.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, t := range l.targets {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		leaf := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: t.host[:min(len(t.host), 64)]}, DNSNames: []string{t.host}, NotBefore: from, NotAfter: until,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, own.Public(), key)
		if err != nil {
			return err
		}
		t.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	}
	return nil
}

// certificate returns the one of the host that a connection was opened to, if that is the
// host which the client means.
func certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	t := targetOf(hello.Conn)
	if hello.ServerName != "" && !t.is(hello.ServerName) {
		return nil, errors.New("it means another host than it has connected to")
	}
	return t.cert, nil
}

// CA is the certificate that the VM has to trust.
func (l *Leg) CA() []byte { return l.ca }

// Ends returns what takes a connection to a host and port; nil if it is not ended here.
func (l *Leg) Ends(host, port string) func(net.Conn) {
	t := l.targets[net.JoinHostPort(host, port)]
	if t == nil {
		return nil
	}
	return func(c net.Conn) {
		select {
		case l.conns <- near{c, t}:
		case <-l.life.Done():
			_ = c.Close()
		}
	}
}

// Close ends all connections.
func (l *Leg) Close() {
	l.close.Do(func() {
		l.end()
		_ = l.server.Close()
		l.out.CloseIdleConnections()
	})
}

// near is a connection from the VM.
type near struct {
	net.Conn
	target *target
}

func targetOf(c net.Conn) *target { return c.(near).target }

// incoming is the listener behind Ends.
type incoming struct{ l *Leg }

func (i incoming) Accept() (net.Conn, error) {
	select {
	case c := <-i.l.conns:
		return c, nil
	case <-i.l.life.Done():
		return nil, net.ErrClosed
	}
}
func (i incoming) Close() error   { return nil }
func (i incoming) Addr() net.Addr { return &net.UnixAddr{Name: "credential", Net: "unix"} }

// ServeHTTP does one request.
func (l *Leg) ServeHTTP(to http.ResponseWriter, r *http.Request) {
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
	case r.Method == http.MethodTrace: // it is answered with what was sent
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

// with does a request with a credential, unless that is not for it.
func (l *Leg) with(w *patient, r *http.Request, t *target, name string, used *job.CredentialUse) bool {
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

// elsewhere are headers in which some hosts find another path than the request's.
var elsewhere = lazyregexp.New(`(?i)^(destination|x-forwarded-.*|x-(envoy-)?(original|rewrite)-(ur[il]|path))$`)

// pass passes a request on with a credential.
func (l *Leg) pass(w *patient, r *http.Request, t *target, c job.Credential, value string, used job.CredentialUse) {
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
				if plain := strings.ReplaceAll(header, "_", "-"); strings.EqualFold(plain, name) || c.Path != "" && elsewhere.MatchString(plain) {
					delete(p.Out.Header, header)
				}
			}
			p.Out.Trailer = nil
			p.Out.Header.Set("Accept-Encoding", "identity") // what is compressed cannot be looked through
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
			text := []byte(err.Error()) // of what is no HTTP it has some
			hide.bytes(text)
			l.k.o.Log.Debug("a request with a credential failed", "credential", c.Name, "err", string(text))
			http.Error(w, why, used.Status)
		},
	}).ServeHTTP(w, r)
}

// patient ends a request of which no byte passes for some time.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
	hide    hider
}

func (p *patient) WriteHeader(code int) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.idle))
	p.hide.header(p.Header()) // of an early hint, too
	p.ResponseWriter.WriteHeader(code)
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.idle))
	return p.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// patientBody is a request's body, which may be read after the request is done: there is no
// deadline to be set then.
type patientBody struct {
	io.ReadCloser
	p *patient

	mu     sync.Mutex
	closed bool
}

func (b *patientBody) until(deadline time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		_ = b.p.control.SetReadDeadline(deadline)
	}
}

func (b *patientBody) Read(to []byte) (int, error) {
	b.until(time.Now().Add(b.p.idle))
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, io.EOF) { // after another error, nobody waits for the rest
		b.until(time.Time{})
	}
	return n, err
}

// Close is called before the request is done.
func (b *patientBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}

// hider makes stars of values, which a host may send back.
type hider [][]byte

// hiderOf returns one for values, as they are and in quotes.
func hiderOf(values ...string) (h hider) {
	for _, value := range values {
		quoted := strconv.Quote(value)
		h = append(h, []byte(value), []byte(quoted[1:len(quoted)-1]))
	}
	return h
}

func (h hider) bytes(b []byte) {
	for _, value := range h {
		for at := 0; ; {
			i := bytes.Index(b[at:], value)
			if i < 0 {
				break
			}
			for j := range value {
				b[at+i+j] = '*'
			}
			at += i + len(value)
		}
	}
}

func (h hider) header(header http.Header) {
	header.Del("Set-Cookie") // a session would outlive the credential
	header.Del("Alt-Svc")    // past this proxy
	for _, values := range header {
		for i, v := range values {
			b := []byte(v)
			h.bytes(b)
			values[i] = string(b)
		}
	}
}

// open returns how many of the last bytes may be the beginning of a value.
func (h hider) open(b []byte) int {
	most := 0
	for _, value := range h {
		for n := min(len(value)-1, len(b)); n > most; n-- {
			if bytes.HasSuffix(b, value[:n]) {
				most = n
				break
			}
		}
	}
	return most
}

// hiding is a body without the value, of the same length: what may be the beginning of it
// waits for more, and nothing else does.
type hiding struct {
	io.ReadCloser
	hide    hider
	trailer func()
	held    []byte // read; the first ready bytes are looked through
	ready   int
	err     error
}

func (h *hiding) Read(to []byte) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	for h.ready == 0 && h.err == nil {
		chunk := make([]byte, 32<<10)
		n, err := h.ReadCloser.Read(chunk)
		h.held, h.err = append(h.held, chunk[:n]...), err
		h.hide.bytes(h.held)
		h.ready = len(h.held)
		if err == nil {
			h.ready -= h.hide.open(h.held)
		} else {
			h.trailer()
		}
	}
	n := copy(to, h.held[:h.ready])
	h.held, h.ready = h.held[n:], h.ready-n
	if h.ready == 0 && h.err != nil {
		return n, h.err
	}
	return n, nil
}
