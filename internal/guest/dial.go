package guest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/vm"
)

// maxConns is how many connections to a VM's ports may be open at once.
const maxConns = 64

// Dial connects to a port of a VM's loopback, from the VM's workspace.
func (g *Guest) Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error) {
	return g.dial(ctx, v, "localhost", port)
}

// dial connects to a port of the VM at one of its own addresses.
func (g *Guest) dial(ctx context.Context, v vm.VM, host string, port int) (job.Tunnel, error) {
	timed, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	d, err := g.workspace(timed, v)
	if err != nil {
		return nil, err
	}
	select {
	case d.conns <- struct{}{}:
	default:
		g.leave(d)
		return nil, &job.FieldError{Field: "vm", Problem: fmt.Sprintf("VM %d has %d forwarded connections", v.ID, maxConns), Remedy: "close some of them first"}
	}
	leave := sync.OnceFunc(func() {
		<-d.conns
		g.leave(d)
	})
	conn, err := d.pool.DialLoopback(timed, host, port)
	if err == nil {
		return &line{conn, leave}, nil
	}
	leave()
	switch {
	case errors.Is(err, remote.ErrNotListening):
		return nil, &job.FieldError{Field: "port", Problem: fmt.Sprintf("nothing accepts connections at port %d of the loopback of VM %d", port, v.ID), Remedy: "start what is to listen there"}
	case errors.Is(err, remote.ErrNoForwarding):
		return nil, &job.FieldError{Field: "vm", Problem: fmt.Sprintf("VM %d's SSH server does not forward", v.ID), Remedy: "set AllowTcpForwarding there"}
	}
	return nil, g.workspaceFault(ctx, "connect to a port of", v, err)
}

// line is a connection from a workspace.
type line struct {
	remote.Loopback

	leave func()
}

func (l *line) Close() error {
	defer l.leave()
	return l.Loopback.Close()
}
