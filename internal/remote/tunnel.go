package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ErrNoForwarding is returned for a machine whose SSH server does not forward
// (AllowTcpForwarding no).
var ErrNoForwarding = errors.New("its SSH server does not allow forwarding")

// maxTunnelled is how many connections a tunnel carries at once; more are
// closed. A job controls what connects, and must not load its server.
const maxTunnelled = 16

// Tunnel carries connections to a port of the other machine's loopback to an
// address of this one. It ends with the connection that carries it.
type Tunnel struct {
	pool     *Pool
	listener net.Listener
	ended    chan struct{}
}

// Tunnel opens a tunnel from any free port of the other machine to an address,
// "host:port". ErrNoForwarding if that is not allowed there.
func (p *Pool) Tunnel(ctx context.Context, to string) (*Tunnel, error) {
	closeIt := func(l net.Listener) {
		if l != nil {
			_ = l.Close()
		}
	}
	c, l, err := channel(ctx, p, nil, func(client *ssh.Client) (net.Listener, error) {
		l, err := client.Listen("tcp", "127.0.0.1:0")
		if err != nil && strings.Contains(err.Error(), "denied by peer") { // x/crypto has no type for it
			return nil, nil
		}
		return l, err
	}, closeIt)
	if err != nil {
		return nil, fmt.Errorf("open a tunnel from %s: %w", p.Login(), err)
	}
	p.release(c) // a tunnel is no session
	if l == nil {
		return nil, fmt.Errorf("open a tunnel from %s: %w", p.Login(), ErrNoForwarding)
	}
	t := &Tunnel{pool: p, listener: l, ended: make(chan struct{})}
	if !p.own(func() { t.accept(context.WithoutCancel(ctx), to) }) {
		closeIt(l)
		return nil, errClosed
	}
	return t, nil
}

// Addr is where the tunnel starts, "127.0.0.1:port" on the other machine.
func (t *Tunnel) Addr() string { return t.listener.Addr().String() }

// Ended is closed when the tunnel carries no more connections.
func (t *Tunnel) Ended() <-chan struct{} { return t.ended }

// Close ends the tunnel. It does not wait: the other machine may not answer.
func (t *Tunnel) Close() { t.pool.own(func() { _ = t.listener.Close() }) }

func (t *Tunnel) accept(ctx context.Context, to string) {
	defer close(t.ended)
	room := make(chan struct{}, maxTunnelled)
	for {
		far, err := t.listener.Accept()
		if err != nil {
			return
		}
		owned := false
		select {
		case room <- struct{}{}:
			owned = t.pool.own(func() {
				t.carry(ctx, far, to)
				<-room
			})
		default:
		}
		if !owned {
			_ = far.Close()
		}
	}
}

// carry copies bytes both ways until either side closes.
func (t *Tunnel) carry(ctx context.Context, far net.Conn, to string) {
	defer func() { _ = far.Close() }()
	near, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", to)
	if err != nil {
		t.pool.log.WarnContext(ctx, "tunnel cannot reach its target", "err", err)
		return
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(near, far)
		_ = near.Close()
	}()
	_, _ = io.Copy(far, near)
	_ = far.Close()
	_ = near.Close()
	<-back
}
