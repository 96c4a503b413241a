// Package gate bounds how many connections a server has, and how many requests of one client it
// serves at once, so that no client takes the place or the descriptors of others. It decides which
// connection is closed when there are too many, and knows nothing of what is served.
package gate

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bounds limit how many connections there may be at once.
type Bounds struct {
	All      int
	Address  int // from one address or IPv6 network
	Loopback int // from this machine, where tunnels and proxies end
}

// Gate is a listener that limits the connections, in total and by address. At the limit, a new
// connection replaces the oldest that has not shown a valid token, or else the oldest that waits for a
// request. A client that connects and does nothing delays nobody, since others send their token at once.
type Gate struct {
	net.Listener
	bounds Bounds
	what   string
	log    *slog.Logger

	mu     sync.Mutex
	inside []*visitor // oldest first
	told   time.Time  // when the gate last logged that it is full
	ended  bool
}

// visitor is a connection within a gate's bounds.
type visitor struct {
	net.Conn
	gate *Gate
	from netip.Addr // of IPv6, the network: a guest has all addresses of its own network

	// Guarded by the gate's mutex.
	begun bool // a request has arrived
	known bool // a valid token was shown
	busy  bool // a request with a token is being served
}

// New returns a gate in front of l; what names the server in the log. If the process may open only
// few files, New lowers the bounds to leave three quarters of them for the rest.
func New(l net.Listener, b Bounds, what string, log *slog.Logger) *Gate {
	if most := descriptors() / 4; most < b.All {
		b = Bounds{All: most, Address: max(b.Address*most/b.All, 1), Loopback: max(b.Loopback*most/b.All, 1)}
	}
	return &Gate{Listener: l, bounds: b, what: what, log: log}
}

// Accept returns the next connection for which there is room.
func (g *Gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := &visitor{Conn: c, gate: g, from: origin(c)}
		out, ok := g.admit(v)
		if !ok {
			out = v
		}
		if out != nil {
			_ = out.Close()
		}
		if ok {
			return v, nil
		}
	}
}

// admit lets v in. At the limit, out is the connection to close for it; ok is false if all others
// are serving requests with a token.
func (g *Gate) admit(v *visitor) (out *visitor, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil, false
	}
	most := g.bounds.Address
	if v.from.IsLoopback() {
		most = g.bounds.Loopback
	}
	same := func(other *visitor) bool { return other.from == v.from }
	anyone := func(*visitor) bool { return true }
	who, full := same, count(g.inside, same) >= most
	if !full {
		who, full = anyone, len(g.inside) >= g.bounds.All
	}
	if full {
		if time.Since(g.told) > time.Minute {
			g.told = time.Now()
			g.log.Warn("too many connections: the oldest without a token are closed", "of", g.what, "from", v.from, "connections", len(g.inside))
		}
		place := cmp.Or(
			1+slices.IndexFunc(g.inside, func(other *visitor) bool { return !other.known && who(other) }),
			1+slices.IndexFunc(g.inside, func(other *visitor) bool { return !other.busy && who(other) }),
		) - 1
		if place < 0 {
			return nil, false
		}
		out = g.inside[place]
		g.inside = slices.Delete(g.inside, place, place+1)
	}
	g.inside = append(g.inside, v)
	return out, true
}

func count(all []*visitor, which func(*visitor) bool) (n int) {
	for _, v := range all {
		if which(v) {
			n++
		}
	}
	return n
}

// Close ends the connection and makes room.
func (v *visitor) Close() error {
	v.gate.mu.Lock()
	if place := slices.Index(v.gate.inside, v); place >= 0 {
		v.gate.inside = slices.Delete(v.gate.inside, place, place+1)
	}
	v.gate.mu.Unlock()
	return v.Conn.Close()
}

// origin returns the address that a connection counts for.
func origin(c net.Conn) netip.Addr {
	remote, _ := c.RemoteAddr().(*net.TCPAddr)
	from := remote.AddrPort().Addr().Unmap()
	if from.Is6() && !from.IsLoopback() {
		network, _ := from.WithZone("").Prefix(64) // a valid length
		from = network.Addr()
	}
	return from
}

// visitorOf returns the connection as accepted, without TLS; nil: it came through no gate.
func visitorOf(c net.Conn) *visitor {
	if wrapped, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = wrapped.NetConn()
	}
	v, _ := c.(*visitor)
	return v
}

type visitorKey struct{}

// ConnContext is an http.Server's ConnContext, for handlers that call Serves.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, visitorKey{}, visitorOf(c))
}

// Serves records that the request of a context has shown a valid token: its connection stays until
// the request is answered.
func Serves(ctx context.Context) {
	if v, _ := ctx.Value(visitorKey{}).(*visitor); v != nil {
		v.gate.mu.Lock()
		defer v.gate.mu.Unlock()
		v.known, v.busy = true, true
	}
}

// ConnState is an http.Server's ConnState, for servers that keep connections for later requests.
func (g *Gate) ConnState(c net.Conn, state http.ConnState) {
	v := visitorOf(c)
	if v == nil || state == http.StateNew {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	v.begun = true
	if state == http.StateIdle {
		v.busy = false
	}
}

// End closes the connections on which no request has begun, which browsers open ahead, and admits
// no more. http.Server.Shutdown would wait five seconds for them.
func (g *Gate) End() {
	g.mu.Lock()
	g.ended = true
	waiting := slices.DeleteFunc(slices.Clone(g.inside), func(v *visitor) bool { return v.begun })
	g.mu.Unlock()
	for _, v := range waiting {
		_ = v.Close()
	}
}

// Counts counts the requests of each client that are being served. The zero value is ready to use.
type Counts struct {
	mu sync.Mutex
	of map[string]int
}

// Enter counts a request of a client; ok is false if most requests are already being served.
func (c *Counts) Enter(client string, most int) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[client] >= most {
		return nil, false
	}
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.of[client]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.of[client]--; c.of[client] == 0 {
			delete(c.of, client)
		}
	}, true
}
