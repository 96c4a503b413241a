// Package wiretest relays connections like a tunnel or a network: it counts round trips, delays data like
// a distant network, and hangs on demand. For tests only.
package wiretest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Wire relays connections to a server.
type Wire struct {
	delay   time.Duration // one way
	dial    func(context.Context) (net.Conn, error)
	running sync.WaitGroup

	mu    sync.Mutex
	asked bool // the last bytes came from a client
	trips int
	held  chan struct{} // closed when bytes pass again; nil: they pass
	open  []net.Conn
	over  bool
}

// Start starts a wire from a listener, which it closes, to what dial returns, until the test ends.
func Start(t testing.TB, from net.Listener, dial func(context.Context) (net.Conn, error), roundTrip time.Duration) *Wire {
	t.Helper()
	w := &Wire{delay: roundTrip / 2, dial: dial}
	w.running.Go(func() {
		for {
			near, err := from.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.carry(near) })
		}
	})
	t.Cleanup(func() {
		_ = from.Close()
		w.mu.Lock()
		w.over = true
		for _, conn := range w.open {
			_ = conn.Close()
		}
		w.mu.Unlock()
		w.Release()
		w.running.Wait()
	})
	return w
}

// To starts a wire to a server, "host:port". It also returns the wire's port on 127.0.0.1.
func To(t testing.TB, server string, roundTrip time.Duration) (w *Wire, port int) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("wiretest: %v", err)
	}
	w = Start(t, l, func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", server) }, roundTrip)
	return w, l.Addr().(*net.TCPAddr).Port
}

// RoundTrips returns how often a client has sent something and the server has answered since the last call.
func (w *Wire) RoundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.trips
	w.trips, w.asked = 0, false
	return n
}

// Hold makes the wire pass nothing until Release: its connections hang and new ones are not answered, as
// with a network that drops everything.
func (w *Wire) Hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make(chan struct{})
	}
}

// Release lets the wire pass everything again, including what it has received meanwhile.
func (w *Wire) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

// passes waits until the wire is not held.
func (w *Wire) passes() {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
}

// carry relays a connection until one side closes it.
func (w *Wire) carry(near net.Conn) {
	w.keep(near)
	w.passes()
	far, err := w.dial(context.Background())
	if err != nil {
		_ = near.Close()
		return
	}
	w.keep(far)
	w.running.Go(func() { w.pass(far, near, true) })
	w.pass(near, far, false)
}

// keep registers a connection to be closed with the wire.
func (w *Wire) keep(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = append(w.open, conn)
	if w.over {
		_ = conn.Close()
	}
}

// parcel is data on its way.
type parcel struct {
	data []byte
	due  time.Time
}

// pass copies data from one side to the other until either is closed.
func (w *Wire) pass(to, from net.Conn, client bool) {
	way := make(chan parcel, 4096)
	w.running.Go(func() {
		defer func() { _ = to.Close() }()
		for p := range way {
			<-time.After(time.Until(p.due))
			w.passes()
			if _, err := to.Write(p.data); err != nil {
				_ = from.Close()
			}
		}
	})
	defer close(way)
	for {
		data := make([]byte, 64<<10)
		n, err := from.Read(data)
		if n > 0 {
			w.count(client)
			way <- parcel{data[:n], time.Now().Add(w.delay)}
		}
		if err != nil {
			return
		}
	}
}

func (w *Wire) count(client bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked && !client {
		w.trips++
	}
	w.asked = client
}
