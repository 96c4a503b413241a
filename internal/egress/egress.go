// Package egress is the way out of VMs that may reach only names: an HTTP proxy that connects to port
// 443 by CONNECT and forwards plain HTTP to port 80. Each connection resolves its name here, once;
// addresses that are not public are then refused, and the checked address is the one dialled. Clients
// of the proxy are hostile: times and sizes are bounded. The package knows nothing of VMs and jobs.
package egress

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"linus/internal/job"
)

// Options say what a Proxy lets through.
type Options struct {
	Names  []string             // as in network.allow
	Any    bool                 // any name is allowed, at its public addresses
	Record func(job.Connection) // gets every connection that the proxy decides about, once when it is decided and once when it has ended; not nil

	// Ends returns the function that takes connections to a host and port, whatever else is
	// allowed, and ends their TLS; nil: they are treated like others. A nil Ends does so for all.
	Ends func(host, port string) func(net.Conn)
	// Anywhere connects to an address, without any decision, for VMs that may reach more than
	// names: it connects from inside the VM. Nil: only what is allowed is reached, from this machine.
	Anywhere func(ctx context.Context, address string) (net.Conn, error)

	Lookup func(context.Context, string) ([]netip.Addr, error)     // nil: this machine's resolver
	Dial   func(context.Context, netip.AddrPort) (net.Conn, error) // nil: TCP
	Own    func(netip.Addr) (bool, error)                          // whether an address is this machine's; nil: asks the kernel
	Idle   time.Duration                                           // longest time without a byte either way; 0: 5 min
	Header time.Duration                                           // longest time for a request's header to arrive; 0: 15 s
}

const (
	maxHeader   = 64 << 10
	maxBody     = 1 << 30 // bytes of a plain request
	dialTimeout = 15 * time.Second
)

// Proxy is one VM's way out.
type Proxy struct {
	o      Options
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
	close  sync.Once
	plain  *httputil.ReverseProxy
}

// New starts a Proxy, which can be reached only by Dial.
func New(o Options) *Proxy {
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name+".")
		}
	}
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", to.String())
		}
	}
	if o.Own == nil {
		o.Own = isOwn
	}
	o.Idle, o.Header = cmp.Or(o.Idle, 5*time.Minute), cmp.Or(o.Header, 15*time.Second)
	p := &Proxy{o: o, conns: make(chan net.Conn), done: make(chan struct{})}
	quiet := log.New(io.Discard, "", 0)
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: o.Header, IdleTimeout: o.Idle, MaxHeaderBytes: maxHeader, ErrorLog: quiet}
	p.plain = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Host = r.Out.URL.Host // the name that was checked
			r.Out.Header.Del("Upgrade")
			r.Out.Header.Del("Connection")
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: o.Idle, MaxResponseHeaderBytes: maxHeader,
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return p.open(ctx, addr, "80") },
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) { refuse(w, err) },
		ErrorLog:     quiet,
	}
	go func() { _ = p.server.Serve(memory{p}) }()
	return p
}

// Dial returns a connection to the proxy.
func (p *Proxy) Dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the proxy and its connections, except open tunnels: they end with the connection that
// carries them here.
func (p *Proxy) Close() {
	p.close.Do(func() {
		close(p.done)
		_ = p.server.Close()
	})
}

// memory is the listener that serves the connections of Dial.
type memory struct{ p *Proxy }

func (m memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.p.conns:
		return c, nil
	case <-m.p.done:
		return nil, net.ErrClosed
	}
}
func (m memory) Close() error   { return nil }
func (m memory) Addr() net.Addr { return &net.UnixAddr{Name: "proxy", Net: "unix"} }

// refusal is an error whose text is shown to the client.
type refusal struct{ why string }

func (r *refusal) Error() string { return r.why }

func refuse(w http.ResponseWriter, err error) {
	code, text := http.StatusBadGateway, "linus: it cannot be reached"
	if r := new(refusal); errors.As(err, &r) {
		code, text = http.StatusForbidden, "linus: "+r.why
	}
	http.Error(w, text, code)
}

// ServeHTTP serves one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	case r.URL.Scheme == "http" && r.URL.Host != "" && r.URL.User == nil:
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		p.plain.ServeHTTP(w, r)
	default:
		http.Error(w, "linus: this is a proxy: CONNECT, or an http:// URL", http.StatusBadRequest)
	}
}

// Connect connects to an address as a VM may by CONNECT.
func (p *Proxy) Connect(ctx context.Context, address string) (net.Conn, error) {
	return p.open(ctx, address, "443")
}

// open connects to a name and port, if both are allowed, and counts the bytes that pass.
func (p *Proxy) open(ctx context.Context, addr, only string) (net.Conn, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		name, port = addr, only
	}
	if p.o.Anywhere != nil {
		return p.o.Anywhere(ctx, net.JoinHostPort(name, port))
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	c := job.Connection{Name: name, Port: port}
	up, err := p.reach(ctx, name, port, only)
	if err != nil {
		c.Why = err.Error()
		if r := new(refusal); !errors.As(err, &r) {
			c.Why = "it cannot be reached"
		}
		p.o.Record(c)
		return nil, err
	}
	c.Allowed = true
	p.o.Record(c)
	return &counted{Conn: up, idle: p.o.Idle, c: c, end: p.o.Record}, nil
}

func (p *Proxy) reach(ctx context.Context, name, port, only string) (net.Conn, error) {
	switch {
	case job.EgressNameProblem(name) != "" || strings.HasPrefix(name, "*"):
		return nil, &refusal{"only names can be reached, such as example.com"}
	case port != only:
		return nil, &refusal{"only port 443 by CONNECT and port 80 of plain HTTP can be reached"}
	case !p.o.Any && !job.EgressAllows(p.o.Names, name):
		return nil, &refusal{"it is not in the job's network.allow"}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addresses, err := p.o.Lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	var failed error = &refusal{"its address is not public"}
	for _, a := range addresses {
		if a = a.Unmap(); !job.IsPublic(a) {
			continue
		}
		if own, err := p.o.Own(a); err != nil {
			failed = err
			continue
		} else if own {
			continue
		}
		n := uint16(443)
		if only == "80" {
			n = 80
		}
		up, err := p.o.Dial(ctx, netip.AddrPortFrom(a, n))
		if err == nil {
			return up, nil
		}
		failed = err
	}
	return nil, failed
}

// ends returns the function that takes connections to an address; nil: they are tunnelled.
func (p *Proxy) ends(address string) func(net.Conn) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || p.o.Ends == nil {
		return nil
	}
	return p.o.Ends(strings.ToLower(strings.TrimSuffix(host, ".")), port)
}

// connect serves a tunnel to port 443, or to the function that ends its TLS.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	if end := p.ends(r.Host); end != nil {
		if near, buffered := accept(w); near != nil {
			end(begun{near, buffered.Reader})
		}
		return
	}
	up, err := p.open(r.Context(), r.Host, "443")
	if err != nil {
		refuse(w, err)
		return
	}
	defer func() { _ = up.Close() }()
	near, buffered := accept(w)
	if near == nil {
		return
	}
	defer func() { _ = near.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, onlyReader{buffered.Reader})
		_ = up.Close()
	}()
	_, _ = io.Copy(near, up)
	_ = near.Close()
	_ = up.Close()
	<-done
}

// accept takes over a connection and confirms the tunnel; nil: the connection is lost.
func accept(w http.ResponseWriter) (net.Conn, *bufio.ReadWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "linus: CONNECT is for HTTP/1", http.StatusBadRequest)
		return nil, nil
	}
	near, buffered, err := hijacker.Hijack()
	if err != nil {
		return nil, nil
	}
	_ = near.SetDeadline(time.Time{})
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = near.Close()
		return nil, nil
	}
	return near, buffered
}

// begun is a connection from which something was already read.
type begun struct {
	net.Conn
	read io.Reader
}

func (b begun) Read(to []byte) (int, error) { return b.read.Read(to) }

// onlyReader hides WriteTo, which would copy a buffer's bytes without renewing the deadline.
type onlyReader struct{ r *bufio.Reader }

func (o onlyReader) Read(b []byte) (int, error) { return o.r.Read(b) }

// counted counts a connection's bytes, and ends it when idle.
type counted struct {
	net.Conn
	idle time.Duration
	end  func(job.Connection)

	mu   sync.Mutex
	c    job.Connection
	once sync.Once
}

func (c *counted) touch(out, in int) {
	c.mu.Lock()
	c.c.Out += int64(out)
	c.c.In += int64(in)
	c.mu.Unlock()
	_ = c.SetDeadline(time.Now().Add(c.idle))
}

func (c *counted) Read(b []byte) (int, error) {
	c.touch(0, 0)
	n, err := c.Conn.Read(b)
	c.touch(0, n)
	return n, err
}

// Write counts first: the answer, and the end of the connection, may arrive before it returns.
func (c *counted) Write(b []byte) (int, error) {
	c.touch(len(b), 0)
	n, err := c.Conn.Write(b)
	c.touch(n-len(b), 0)
	return n, err
}

func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.mu.Lock()
		done := c.c
		c.mu.Unlock()
		done.Ended = true
		c.end(done)
	})
	return err
}

// isOwn reports whether an address is this machine's: the kernel would then use it as the source,
// too. Nothing is sent. A list of all addresses needs netlink, which the packaged service does not
// have, and lacks networks that are routed to this machine as a whole.
func isOwn(a netip.Addr) (bool, error) {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 443)))
	if errors.Is(err, syscall.ENETUNREACH) { // there is always a route to own addresses
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = c.Close() }()
	from, ok := c.LocalAddr().(*net.UDPAddr)
	return ok && from.AddrPort().Addr().Unmap() == a, nil
}
