package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"linus/internal/gate"
)

// Bounds of webhook senders: a service uses a few connections, and each request is short.
const (
	hookTime  = 10 * time.Second
	maxHooked = 100
)

// Listener serves the webhooks of a queue, on every path.
type Listener struct {
	listener net.Listener
	http     *http.Server
	served   chan error
}

// ListenHook serves a queue's hook at an address, host:port, until Close.
func ListenHook(ctx context.Context, address string, q Hooked, log *slog.Logger) (*Listener, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for webhooks at %s: %w", address, err)
	}
	l := &Listener{listener, &http.Server{
		Handler: q.Hook(), ReadHeaderTimeout: hookTime, ReadTimeout: hookTime, WriteTimeout: 2 * hookTime, MaxHeaderBytes: 16 << 10,
		ConnContext: gate.ConnContext, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}, make(chan error, 1)}
	l.http.SetKeepAlivesEnabled(false)
	go func() {
		l.served <- l.http.Serve(gate.New(listener, gate.Bounds{All: maxHooked, Address: maxHooked / 2, Loopback: maxHooked}, "webhooks", log))
	}()
	return l, nil
}

// Addr returns the address it listens at.
func (l *Listener) Addr() string { return l.listener.Addr().String() }

// Close stops listening. Requests that are being served have hookTime to end.
func (l *Listener) Close() error {
	ctx, done := context.WithTimeout(context.Background(), hookTime)
	defer done()
	err := l.http.Shutdown(ctx)
	if err != nil {
		err = l.http.Close()
	}
	if served := <-l.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
