package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/coder/websocket"

	"linus/internal/job"
)

// tunnel is a connection over a WebSocket, in binary messages. An empty message ends its direction.
type tunnel struct {
	ws   *websocket.Conn
	ctx  context.Context //nolint:containedctx // of the connection, not of a call
	stop context.CancelFunc

	message io.Reader // being read
	ended   bool      // no more data will arrive

	writing sync.Mutex
	shut    bool // CloseWrite was called
}

var _ job.Tunnel = (*tunnel)(nil)

func newTunnel(ctx context.Context, ws *websocket.Conn) *tunnel {
	ctx, stop := context.WithCancel(ctx)
	return &tunnel{ws: ws, ctx: ctx, stop: stop}
}

func (t *tunnel) Read(p []byte) (int, error) {
	for !t.ended && len(p) > 0 {
		fresh := t.message == nil
		if fresh {
			_, r, err := t.ws.Reader(t.ctx)
			if err != nil {
				return 0, tunnelError(err)
			}
			t.message = r
		}
		n, err := t.message.Read(p)
		if errors.Is(err, io.EOF) {
			t.message, err = nil, nil
			t.ended = fresh && n == 0
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	if !t.ended {
		return 0, nil
	}
	return 0, io.EOF
}

// tunnelError returns io.EOF for a regular end.
func tunnelError(err error) error {
	switch websocket.CloseStatus(err) { //nolint:exhaustive // the others are errors
	case websocket.StatusNormalClosure:
		return io.EOF
	case -1:
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

func (t *tunnel) Write(p []byte) (sent int, err error) {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.shut {
		return 0, io.ErrClosedPipe
	}
	for len(p) > 0 {
		part := p[:min(len(p), maxFrame/2)]
		if err := t.ws.Write(t.ctx, websocket.MessageBinary, part); err != nil {
			return sent, tunnelError(err)
		}
		sent += len(part)
		p = p[len(part):]
	}
	return sent, nil
}

func (t *tunnel) CloseWrite() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.shut {
		return nil
	}
	t.shut = true
	return t.ws.Write(t.ctx, websocket.MessageBinary, nil)
}

func (t *tunnel) Close() error {
	defer t.stop()
	return t.ws.CloseNow()
}

// dialVM serves a connection to a port of a VM, which call opens with DialVM.
func dialVM(call func(context.Context, any) (any, error)) opener {
	return func(ctx context.Context, in any, accept accepting) error {
		to, err := call(ctx, in)
		if err != nil {
			return err
		}
		far := to.(job.Tunnel)
		defer far.Close() //nolint:errcheck // its end is its end
		ws, err := accept()
		if err != nil {
			return err
		}
		return Relay(ctx, newTunnel(ctx, ws), far)
	}
}

// Relay copies both ways until both directions have ended, one failed, or ctx ends.
func Relay(ctx context.Context, a, b job.Tunnel) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unblock := context.AfterFunc(ctx, func() { _ = errors.Join(a.Close(), b.Close()) })
	defer unblock()
	var both sync.WaitGroup
	one := func(to, from job.Tunnel) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = to.CloseWrite()
		}
		if err != nil {
			cancel(err)
		}
	}
	both.Go(func() { one(b, a) })
	both.Go(func() { one(a, b) })
	both.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
