package gate

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// comer is a connection from an address.
type comer struct {
	net.Conn
	from   string
	closed bool
}

func (c *comer) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 4000))
}

func (c *comer) Close() error {
	c.closed = true
	return nil
}

// wrapped is a connection as TLS has it.
type wrapped struct{ net.Conn }

func (w wrapped) NetConn() net.Conn { return w.Conn }

// queue is a listener to which all connections have come already.
type queue []net.Conn

func (q *queue) Accept() (net.Conn, error) {
	if len(*q) == 0 {
		return nil, net.ErrClosed
	}
	c := (*q)[0]
	*q = (*q)[1:]
	return c, nil
}

func (q *queue) Close() error   { return nil }
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

// door is a gate, and what came to it.
type door struct {
	*testing.T
	*Gate
	came queue
	log  bytes.Buffer
}

func newDoor(t *testing.T, b Bounds) *door {
	d := &door{T: t}
	d.Gate = New(&d.came, b, "tests", slog.New(slog.NewTextHandler(&d.log, nil)))
	return d
}

// comes has a connection come from an address, and returns it with what a server gets; nil: it
// was not let in.
func (d *door) comes(from string) (*comer, net.Conn) {
	c := &comer{from: from}
	d.came = append(d.came, c)
	v, err := d.Accept()
	if (err == nil) == c.closed {
		d.Fatalf("from %s: accepted: %v, closed: %v", from, err == nil, c.closed)
	}
	return c, v
}

// serves has a connection be served for a token.
func (d *door) serves(v net.Conn) { Serves(ConnContext(context.Background(), wrapped{v})) }

// wantOpen checks which of the connections are open.
func wantOpen(t *testing.T, want string, all ...*comer) {
	t.Helper()
	got := ""
	for _, c := range all {
		if c.closed {
			got += "-"
		} else {
			got += "o"
		}
	}
	if got != want {
		t.Errorf("open: %s, want %s", got, want)
	}
}

// An address has its bound, this machine another, and all together a third: one more takes the
// place of the oldest that it counts with.
func TestGate_Bounds(t *testing.T) {
	for _, tt := range []struct {
		name, comers, want string
	}{
		{"an address", "10.0.0.1 10.0.0.2 10.0.0.1 10.0.0.1", "-ooo"},
		{"the same, as IPv6 has it", "::ffff:10.0.0.1 10.0.0.1 10.0.0.1", "-oo"},
		{"a network", "2001:db8::1 2001:db8::2 2001:db8:0:1::1 2001:db8::ffff:1", "-ooo"},
		{"this machine", "127.0.0.1 127.0.0.1 127.0.0.1 127.0.0.1", "-ooo"},
		{"this machine by IPv6", "::1 ::1 ::1 ::1", "-ooo"},
		{"all", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6", "-ooooo"},
		{"all, where an address has more than its own", "10.0.0.9 10.0.0.1 10.0.0.1 10.0.0.1 10.0.0.3 10.0.0.4 10.0.0.5", "--ooooo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, Bounds{All: 5, Address: 2, Loopback: 3})
			var all []*comer
			for from := range strings.SplitSeq(tt.comers, " ") {
				c, _ := d.comes(from)
				all = append(all, c)
			}
			wantOpen(t, tt.want, all...)
		})
	}
}

// Those that have shown no token go first, then those that wait, and what is being served never:
// then it is the new one that goes, and the next is looked at.
func TestGate_WhoGoes(t *testing.T) {
	d := newDoor(t, Bounds{All: 3, Address: 3, Loopback: 3})
	served, s := d.comes("10.0.0.1")
	d.serves(s)
	d.ConnState(wrapped{s}, http.StateActive)
	waits, w := d.comes("10.0.0.1")
	d.serves(w)
	d.ConnState(wrapped{w}, http.StateIdle)
	stranger, _ := d.comes("10.0.0.1")

	second, v := d.comes("10.0.0.1")
	wantOpen(t, "oo-o", served, waits, stranger, second)
	d.serves(v)
	third, v := d.comes("10.0.0.1")
	wantOpen(t, "o-oo", served, waits, second, third)
	d.serves(v)

	refused, next := &comer{from: "10.0.0.1"}, &comer{from: "10.0.0.1"}
	d.came = queue{refused, next}
	if v, err := d.Accept(); err == nil {
		t.Errorf("let in beyond what is served: %v", v)
	}
	wantOpen(t, "ooo--", served, second, third, refused, next)

	if err := s.Close(); err != nil { // makes room
		t.Fatal(err)
	}
	late, _ := d.comes("10.0.0.1")
	wantOpen(t, "-ooo", served, second, third, late)
}

// What an address has too many of costs another nothing.
func TestGate_TakesOfTheSameAddress(t *testing.T) {
	d := newDoor(t, Bounds{All: 9, Address: 2, Loopback: 2})
	other, _ := d.comes("10.0.0.2")
	busy, b := d.comes("10.0.0.1")
	d.serves(b)
	idle, i := d.comes("10.0.0.1")
	d.serves(i)
	d.ConnState(i, http.StateIdle)
	more, _ := d.comes("10.0.0.1")
	wantOpen(t, "oo-o", other, busy, idle, more)
}

// The end closes what is open ahead of a request, and nothing else, and lets nobody in.
func TestGate_End(t *testing.T) {
	d := newDoor(t, Bounds{All: 9, Address: 9, Loopback: 9})
	begun, b := d.comes("10.0.0.1")
	d.ConnState(b, http.StateActive)
	ahead, a := d.comes("10.0.0.1")
	d.ConnState(a, http.StateNew)
	d.End()
	late := &comer{from: "10.0.0.2"}
	d.came = queue{late}
	if _, err := d.Accept(); err == nil {
		t.Error("somebody is let in after the end")
	}
	wantOpen(t, "o--", begun, ahead, late)
}

// The log says once a minute that a gate is full.
func TestGate_TellsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, Bounds{All: 1, Address: 1, Loopback: 1})
		for _, want := range []int{0, 1, 1, 2} {
			if d.comes("10.0.0.1"); strings.Count(d.log.String(), "too many connections") != want {
				t.Errorf("want it %d times:\n%s", want, &d.log)
			}
			time.Sleep(25 * time.Second)
			if want == 1 {
				time.Sleep(20 * time.Second)
			}
		}
	})
}

// A server's own connections may have come by no gate.
func TestServes_WithoutAGate(t *testing.T) {
	Serves(context.Background())
	Serves(ConnContext(context.Background(), &comer{from: "10.0.0.1"}))
	newDoor(t, Bounds{All: 1}).ConnState(&comer{from: "10.0.0.1"}, http.StateIdle)
}

// A client has so many requests at once, whatever others have, and nothing is kept of those
// that have left.
func TestCounts(t *testing.T) {
	var c Counts
	enter := func(client string, want bool) func() {
		t.Helper()
		leave, ok := c.Enter(client, 2)
		if ok != want {
			t.Errorf("%s enters: %v, want %v", client, ok, want)
		}
		return leave
	}
	first, second := enter("a", true), enter("a", true)
	enter("a", false)
	other := enter("b", true)
	first()
	third := enter("a", true)
	enter("a", false)
	for _, leave := range []func(){second, third, other} {
		leave()
	}
	if len(c.of) > 0 {
		t.Errorf("kept: %v", c.of)
	}
}
