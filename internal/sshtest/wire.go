package sshtest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Wire passes connections on to a server: it counts the round trips on them, and takes
// as long as a distant network.
type Wire struct {
	Port int // on 127.0.0.1

	delay   time.Duration // one way
	running sync.WaitGroup

	mu     sync.Mutex
	asked  bool // the last bytes were a client's
	trips  int
	closed bool
	open   []net.Conn
}

// StartWire starts a wire to a server, "host:port", until the test ends.
func StartWire(t testing.TB, to string, roundTrip time.Duration) *Wire {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("sshtest: %v", err)
	}
	w := &Wire{Port: l.Addr().(*net.TCPAddr).Port, delay: roundTrip / 2}
	w.running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			w.running.Go(func() { w.carry(near, to) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		w.Cut()
		w.running.Wait()
	})
	return w
}

// RoundTrips returns how often clients have sent something and servers have answered
// since the last call.
func (w *Wire) RoundTrips() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.trips
	w.trips, w.asked = 0, false
	return n
}

// Cut ends all connections.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

func (w *Wire) carry(near net.Conn, to string) {
	far, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
	if err != nil {
		_ = near.Close()
		return
	}
	w.mu.Lock()
	w.open = append(w.open, near, far)
	closed := w.closed
	w.mu.Unlock()
	if closed {
		w.Cut()
	}
	w.running.Go(func() { w.pass(far, near, true) })
	w.pass(near, far, false)
}

// parcel is bytes on the way.
type parcel struct {
	data []byte
	due  time.Time
}

// pass copies what comes from one side to the other until either is closed.
func (w *Wire) pass(to, from net.Conn, client bool) {
	way := make(chan parcel, 4096)
	w.running.Go(func() {
		defer func() { _ = to.Close() }()
		for p := range way {
			<-time.After(time.Until(p.due))
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
