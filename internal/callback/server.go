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

	"linus/internal/gate"
)

// bounds are what the server allows its clients. A runner needs one brief connection every few
// seconds; a client may also be a hostile guest, or anybody in its network.
type bounds struct {
	gate gate.Bounds

	header time.Duration // until the request's header has arrived
	stall  time.Duration // between two pieces of the body
	grace  time.Duration // for any body; after that it must keep the lowest rate
	rate   int64         // the lowest rate, in bytes per second
	linger time.Duration // for the rest of an unwanted body
}

// defaultBounds are the bounds of a server. curl in the runner gives up after 20 s, in which it
// sends at most 256 KiB.
var defaultBounds = bounds{
	gate:   gate.Bounds{All: 512, Address: 64, Loopback: 256},
	header: 5 * time.Second, stall: 10 * time.Second, grace: 15 * time.Second, rate: 8 << 10, linger: time.Second,
}

// closeTime bounds how long current requests delay the server's shutdown.
const closeTime = 2 * time.Second

// Server is the callback API on a port of this machine.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen listens on host:port; port 0 is any free one. It fails if the port is in use.
func Listen(ctx context.Context, host string, port int, reporter Reporter, log *slog.Logger) (*Server, error) {
	return listen(ctx, host, port, reporter, log, defaultBounds)
}

func listen(ctx context.Context, host string, port int, reporter Reporter, log *slog.Logger, b bounds) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for callbacks on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	s := &Server{listener: gate.New(listener, b.gate, "callbacks", log), http: &http.Server{
		Handler:           newHandler(reporter, log, b),
		ReadHeaderTimeout: b.header,
		ReadTimeout:       b.header + b.linger, // of requests whose body nobody reads
		WriteTimeout:      5 * time.Minute,     // from the header on: the slowest body, and the store
		MaxHeaderBytes:    8 << 10,
		ConnContext:       gate.ConnContext,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}
	s.http.SetKeepAlivesEnabled(false) // one request per connection: none is kept open for later
	return s, nil
}

// Address is the address listened on; unspecified for all of this machine's addresses.
func (s *Server) Address() netip.Addr { return s.at().Addr() }

// Port is the port listened on.
func (s *Server) Port() int { return int(s.at().Port()) }

// Addr is "host:port" as this machine itself can reach it. For a server that listens on all
// addresses, with one socket for IPv4 and IPv6, it is not "localhost": that could lead to another
// server on the same port.
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

// Serve serves until Close; then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve callbacks: %w", err)
	}
	return nil
}

// Close finishes the current requests, within ctx and closeTime, and stops. A runner that was cut
// off retries.
func (s *Server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTime)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}
