package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ErrNoForwarding is returned if a machine's SSH server does not forward (AllowTcpForwarding no).
var ErrNoForwarding = errors.New("its SSH server does not allow forwarding")

// ErrNotListening is returned if nothing accepts connections at a port.
var ErrNotListening = errors.New("nothing accepts connections there")

// Loopback is a connection to a program of the other machine. Its directions can be closed separately.
type Loopback interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// DialLoopback connects to a TCP port of the other machine, at localhost or another of the machine's own
// addresses, and never to a port of this machine. The connection outlasts ctx, and ends with the pool's.
// It returns ErrNotListening or ErrNoForwarding.
func (p *Pool) DialLoopback(ctx context.Context, host string, port int) (Loopback, error) {
	conn, err := p.DialFrom(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	through, ok := conn.(Loopback)
	if !ok {
		return nil, errors.Join(errors.New("an SSH channel cannot be closed one way"), conn.Close())
	}
	return through, nil
}

// DialFrom is DialLoopback to any address, as a program of the other machine would connect: names are
// resolved there.
func (p *Pool) DialFrom(ctx context.Context, address string) (net.Conn, error) {
	return p.dialFrom(ctx, "tcp", address)
}

// DialUnix is DialFrom to a UNIX socket, as the other machine's login user. If its OpenSSH does not
// forward to sockets, DialUnix also returns ErrNotListening.
func (p *Pool) DialUnix(ctx context.Context, socket string) (net.Conn, error) {
	return p.dialFrom(ctx, "unix", socket)
}

func (p *Pool) dialFrom(ctx context.Context, network, address string) (net.Conn, error) {
	c, conn, err := channel(ctx, p, nil, func(client *ssh.Client) (net.Conn, error) {
		return client.DialContext(ctx, network, address)
	}, func(n net.Conn) { _ = n.Close() })
	var open *ssh.OpenChannelError
	switch {
	case errors.As(err, &open) && (open.Reason == ssh.Prohibited || open.Reason == ssh.UnknownChannelType):
		return nil, fmt.Errorf("connect to %s from %s: %w", address, p.Login(), ErrNoForwarding)
	case errors.As(err, &open):
		return nil, fmt.Errorf("connect to %s from %s: %w", address, p.Login(), ErrNotListening)
	case err != nil:
		return nil, err
	}
	p.release(c) // a forwarded connection is not a session
	return conn, nil
}

// maxTunnelled is how many connections a tunnel carries at once; more are closed. A job controls what
// connects, and must not overload its server.
const maxTunnelled = 16

// Tunnel forwards connections from a loopback port of the other machine to an address of this one. It
// ends with the SSH connection that carries it.
type Tunnel struct {
	pool     *Pool
	listener net.Listener
	ended    chan struct{}
}

// Tunnel opens a tunnel from any free port of the other machine to an address, "host:port". It returns
// ErrNoForwarding if the machine does not allow that.
func (p *Pool) Tunnel(ctx context.Context, to string) (*Tunnel, error) {
	return p.TunnelFrom(ctx, 0, maxTunnelled, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", to)
	})
}

// TunnelFrom opens a tunnel from a loopback port of the other machine, 0 for any free one, to the
// connections that dial returns. It carries at most most connections at once. It returns ErrNoForwarding
// if that is not allowed there, or the port is in use.
func (p *Pool) TunnelFrom(ctx context.Context, port, most int, dial func(context.Context) (net.Conn, error)) (*Tunnel, error) {
	closeIt := func(l net.Listener) {
		if l != nil {
			_ = l.Close()
		}
	}
	c, l, err := channel(ctx, p, nil, func(client *ssh.Client) (net.Listener, error) {
		l, err := client.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil && strings.Contains(err.Error(), "denied by peer") { // x/crypto has no type for it
			return nil, nil
		}
		return l, err
	}, closeIt)
	if err != nil {
		return nil, fmt.Errorf("open a tunnel from %s: %w", p.Login(), err)
	}
	p.release(c) // a tunnel is not a session
	if l == nil {
		return nil, fmt.Errorf("open a tunnel from %s: %w", p.Login(), ErrNoForwarding)
	}
	t := &Tunnel{pool: p, listener: l, ended: make(chan struct{})}
	if !p.own(func() { t.accept(context.WithoutCancel(ctx), most, dial) }) {
		closeIt(l)
		return nil, errClosed
	}
	return t, nil
}

// Addr returns where the tunnel starts, "127.0.0.1:port" on the other machine.
func (t *Tunnel) Addr() string { return t.listener.Addr().String() }

// Ended returns a channel that is closed when the tunnel carries no more connections.
func (t *Tunnel) Ended() <-chan struct{} { return t.ended }

// Close ends the tunnel without waiting, because the other machine may not answer. The returned channel
// is closed when the tunnel's port is free.
func (t *Tunnel) Close() <-chan struct{} {
	freed := make(chan struct{})
	if !t.pool.own(func() { _ = t.listener.Close(); close(freed) }) {
		close(freed) // freed with its connection
	}
	return freed
}

func (t *Tunnel) accept(ctx context.Context, most int, dial func(context.Context) (net.Conn, error)) {
	defer close(t.ended)
	room := make(chan struct{}, most)
	for {
		far, err := t.listener.Accept()
		if err != nil {
			return
		}
		owned := false
		select {
		case room <- struct{}{}:
			owned = t.pool.own(func() {
				t.carry(ctx, far, dial)
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
func (t *Tunnel) carry(ctx context.Context, far net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer func() { _ = far.Close() }()
	near, err := dial(ctx)
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
