package control_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"linus/internal/control"
)

// A call waits for a connection that another one makes for as long as it may itself.
func TestClient_ACallDoesNotWaitBeyondItsTimeForAnothersConnection(t *testing.T) {
	t.Parallel()
	dialing := make(chan struct{}, 2)
	c := control.Later(func(ctx context.Context) (*control.Conn, error) {
		dialing <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	ctx, end := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := c.Caller(ctx)
		first <- err
	}()
	<-dialing
	soon := func(what string, call func() error) {
		t.Helper()
		over := make(chan error, 1)
		go func() { over <- call() }()
		select {
		case err := <-over:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s waits for a connection that another call makes", what)
		}
	}
	soon("a call", func() error {
		within, over := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer over()
		if _, err := c.Caller(within); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return nil
	})
	soon("closing", func() error { c.Close(); return nil })
	if len(dialing) != 0 {
		t.Error("two connections are made at a time")
	}
	end()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first call: %v", err)
	}
	within, over := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer over()
	if _, err := c.Caller(within); !errors.Is(err, context.DeadlineExceeded) || len(dialing) != 1 {
		t.Errorf("the next call: %v, with %d connections begun", err, len(dialing))
	}
}

// What is closed while its connection is made has none.
func TestClient_ClosedWhileItConnects(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, newEngine(&engine{}), func() {})
	dialing, goOn := make(chan struct{}), make(chan struct{})
	c := control.Later(func(ctx context.Context) (*control.Conn, error) {
		close(dialing)
		<-goOn
		return control.Connect(ctx, control.Socket(dir))
	})
	called := make(chan error, 1)
	go func() {
		_, err := c.Caller(t.Context())
		called <- err
	}()
	<-dialing
	closed := make(chan struct{})
	go func() { defer close(closed); c.Close() }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("closing waits for the connection")
	}
	close(goOn)
	if err := <-called; err == nil {
		t.Error("it was closed, and has a connection")
	}
}
