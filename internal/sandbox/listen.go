package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"
)

// ErrServed says that another program already serves the socket.
var ErrServed = errors.New("another linus-sandbox serves this socket")

// Serve serves a sandbox on a socket that only its own user and root can reach, until ctx ends. It
// calls ready once it accepts clients.
func Serve(ctx context.Context, socket string, o Options, ready func()) error {
	lock, err := os.OpenFile(socket+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the socket: %w", err)
	}
	defer lock.Close() //nolint:errcheck // nothing is written
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return served(ctx, socket)
	} else if err != nil {
		return fmt.Errorf("lock the socket: %w", err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) { // of a program that was killed
		return fmt.Errorf("make place for the socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err == nil {
		err = os.Chmod(socket, 0o600)
	}
	if err != nil {
		return fmt.Errorf("listen on the socket: %w", err)
	}
	s := New(o)
	if s.wasBegun() { // after a boot; no client waits for it
		s.running.Go(func() { _ = s.begin(ctx) })
	}
	server := &http.Server{
		Handler:           s.Handler(),
		Protocols:         &http.Protocols{},
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       10 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients are told their own mistakes
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	ready()
	err = server.Serve(listener)
	s.Close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the socket: %w", err)
}

// served waits until the program that holds the lock answers, which it does soon after taking it.
func served(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox/health", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(req)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusNoContent {
				return ErrServed
			}
			err = fmt.Errorf("it answers %s", answer.Status)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("another program has the lock of %s and does not serve it: end it, and start again: %w", socket, err)
		}
	}
}
