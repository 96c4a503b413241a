package callback

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// gate is a listener that limits the connections, in total and by address. At
// the limit, a new one replaces the oldest that has not presented a job's
// token: a client that connects and does nothing delays nobody, since a runner
// sends its token at once.
type gate struct {
	*net.TCPListener
	bounds bounds
	log    *slog.Logger

	mu     sync.Mutex
	inside []*visitor // oldest first
	told   time.Time  // when the log last said that it is full
}

// visitor is a connection within a gate's bounds.
type visitor struct {
	*net.TCPConn
	gate  *gate
	from  netip.Addr // of IPv6 the network: a guest has all addresses of its own
	known bool       // it has presented a job's token; guarded by the gate's mutex
}

func newGate(l net.Listener, b bounds, log *slog.Logger) *gate {
	tcp, _ := l.(*net.TCPListener)
	return &gate{TCPListener: tcp, bounds: b, log: log}
}

// Accept returns the next connection for which there is room.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptTCP()
		if err != nil {
			return nil, err
		}
		v := &visitor{TCPConn: c, gate: g, from: origin(c)}
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

// admit lets v in. At the limit, out is to be closed for it; ok is false if all
// others have presented a token.
func (g *gate) admit(v *visitor) (out *visitor, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.bounds.address
	if v.from.IsLoopback() {
		most = g.bounds.loopback
	}
	same := func(other *visitor) bool { return other.from == v.from }
	anyone := func(*visitor) bool { return true }
	who, full := same, count(g.inside, same) >= most
	if !full {
		who, full = anyone, len(g.inside) >= g.bounds.all
	}
	if full {
		if time.Since(g.told) > time.Minute {
			g.told = time.Now()
			g.log.Warn("too many connections for callbacks: the oldest are closed", "from", v.from, "connections", len(g.inside))
		}
		place := slices.IndexFunc(g.inside, func(other *visitor) bool { return !other.known && who(other) })
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
	return v.TCPConn.Close()
}

// origin is the address a connection counts for.
func origin(c net.Conn) netip.Addr {
	remote, _ := c.RemoteAddr().(*net.TCPAddr)
	from := remote.AddrPort().Addr().Unmap()
	if from.Is6() && !from.IsLoopback() {
		network, _ := from.WithZone("").Prefix(64) // a valid length
		from = network.Addr()
	}
	return from
}

type visitorKey struct{}

func withVisitor(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, visitorKey{}, c)
}

// known notes that the request's connection has presented a job's token.
func known(r *http.Request) {
	if v, ok := r.Context().Value(visitorKey{}).(*visitor); ok {
		v.gate.mu.Lock()
		defer v.gate.mu.Unlock()
		v.known = true
	}
}
