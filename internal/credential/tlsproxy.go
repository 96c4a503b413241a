package credential

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
)

const (
	maxHeader   = 64 << 10
	dialTimeout = 15 * time.Second
	longest     = 15 * time.Minute // until a host begins to answer
	maxRequests = 256              // of one job at once
)

// TLSProxy ends the TLS connections of one job's VM to its credentials' hosts, and makes its own to
// these hosts. Its CA is only valid for these hosts, and the CA's key is not stored.
type TLSProxy struct {
	k       *Keeper
	o       TLSProxyOptions
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
	ours       bool     // connect from the engine, whatever the VM can reach
	cert       *tls.Certificate
}

// address returns the host as in requests and URLs.
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

// TLSProxyOptions are the options of a TLSProxy.
type TLSProxyOptions struct {
	Names  []string                // of the credentials that the job has named; those that were removed since are left out
	Record func(job.CredentialUse) // called with each request
	// Reach connects to an address that the VM may reach without the engine. It is used for hosts
	// that a job has chosen and, with Wide, which says that the VM may reach more than names, also
	// for those of agents' models. Nil: the engine connects to all hosts itself.
	Reach func(ctx context.Context, address string) (net.Conn, error)
	Wide  bool
}

// TLSProxy returns a TLSProxy for a job.
func (k *Keeper) TLSProxy(ctx context.Context, o TLSProxyOptions) (*TLSProxy, error) {
	l := &TLSProxy{k: k, o: o, targets: map[string]*target{}, conns: make(chan net.Conn), room: make(chan struct{}, maxRequests)}
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

func (l *TLSProxy) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if t := l.targets[address]; t == nil || t.ours || l.o.Reach == nil {
		return l.k.o.Dial(ctx, network, address)
	}
	return l.o.Reach(ctx, address)
}

type targetKey struct{}

// certificate returns the certificate of the connection's target, if the client means that host.
func certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	t := targetOf(hello.Conn)
	if hello.ServerName != "" && !t.is(hello.ServerName) {
		return nil, errors.New("it names a different host from the one it connected to")
	}
	return t.cert, nil
}

// CA returns the certificate that the VM must trust, as PEM.
func (l *TLSProxy) CA() []byte { return l.ca }

// Ends returns a function that takes over connections to a host and port; nil: not this proxy's.
func (l *TLSProxy) Ends(host, port string) func(net.Conn) {
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
func (l *TLSProxy) Close() {
	l.close.Do(func() {
		l.end()
		_ = l.server.Close()
		l.out.CloseIdleConnections()
	})
}

// near is a connection from the VM to a target.
type near struct {
	net.Conn
	target *target
}

func targetOf(c net.Conn) *target { return c.(near).target }

// incoming is the listener for the connections of Ends.
type incoming struct{ l *TLSProxy }

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
