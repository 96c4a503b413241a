package callback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// bounds are what the server grants to who calls it. A runner needs a moment of
// one connection every few seconds; whatever calls may also be a hostile guest,
// or anybody in its network.
type bounds struct {
	all      int // connections at once
	address  int // of one address, or IPv6 network
	loopback int // of this machine: tunnels of many VMs end there

	header time.Duration // for the request's header to come
	stall  time.Duration // between two pieces of the body
	grace  time.Duration // for any body; beyond it there is a lowest rate
	rate   int64         // that, in bytes a second
	linger time.Duration // for the rest of a body that is not wanted
}

// usual are the bounds of a server. curl in the runner gives up after 20 s, in
// which it sends 256 KiB at most.
var usual = bounds{
	all: 512, address: 64, loopback: 256,
	header: 5 * time.Second, stall: 10 * time.Second, grace: 15 * time.Second, rate: 8 << 10, linger: time.Second,
}

// closeTime bounds how long requests under way hold up the end of a server.
const closeTime = 2 * time.Second

// Server is the callback API on a port of this machine.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes host:port; port 0 takes a free one. It fails when the port is busy.
func Listen(ctx context.Context, host string, port int, reporter Reporter, log *slog.Logger) (*Server, error) {
	return listen(ctx, host, port, reporter, log, usual)
}

func listen(ctx context.Context, host string, port int, reporter Reporter, log *slog.Logger, b bounds) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for callbacks on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	s := &Server{listener: newGate(listener, b, log), http: &http.Server{
		Handler:           newHandler(reporter, log, b),
		ReadHeaderTimeout: b.header,
		ReadTimeout:       b.header + b.linger, // of requests whose body nobody reads
		WriteTimeout:      5 * time.Minute,     // from the header on: the slowest body, and the store
		MaxHeaderBytes:    8 << 10,
		ConnContext:       withVisitor,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	s.http.SetKeepAlivesEnabled(false) // one request a connection: none is held for later
	return s, nil
}

// Address is the address listened on; unspecified for all of this machine's.
func (s *Server) Address() netip.Addr { return s.at().Addr() }

// Port is the port listened on.
func (s *Server) Port() int { return int(s.at().Port()) }

// Addr is "host:port" as this machine itself can reach it. Where all addresses
// are listened on, with one socket for IPv4 and IPv6, it is not "localhost":
// that could lead to another's port of the same number.
func (s *Server) Addr() string {
	at := s.at()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	return at.String()
}

func (s *Server) at() netip.AddrPort {
	addr, _ := s.listener.Addr().(*net.TCPAddr)
	return netip.AddrPortFrom(addr.AddrPort().Addr().Unmap(), addr.AddrPort().Port())
}

// Serve returns until Close; then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve callbacks: %w", err)
	}
	return nil
}

// Close finishes the requests under way, within ctx and a moment of its own, and
// stops. A runner that was cut off asks again.
func (s *Server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}
