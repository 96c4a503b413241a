package main

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"linus/internal/control"
	"linus/internal/job"
)

// forwardRemote forwards ports through a server; done: the engine is that of one.
func (a *app) forwardRemote(ctx context.Context, ref string, forwards []forward, show bool) (done bool, err error) {
	s, done, err := a.attachRemote(ctx, show)
	if !done || err != nil {
		return done, err
	}
	defer s.Close()
	var conns sync.WaitGroup
	defer conns.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, f := range forwards {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(f.local))))
		if err != nil {
			return true, fmt.Errorf("listen: %w", err)
		}
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		defer l.Close() //nolint:errcheck // a listener
		conns.Go(func() {
			for {
				near, err := l.Accept()
				if err != nil {
					return
				}
				conns.Go(func() { a.carry(ctx, s, near.(*net.TCPConn), ref, int(f.there)) })
			}
		})
		_, _ = fmt.Fprintf(a.stdout, "%s is port %d of VM %s\n", l.Addr(), f.there, ref)
	}
	<-ctx.Done()
	return true, exitError(exitDetached)
}

// carry connects a local connection with a port of a VM until both directions have ended.
func (a *app) carry(ctx context.Context, s *session, near job.Tunnel, ref string, port int) {
	defer near.Close() //nolint:errcheck // all of it was copied, or it is lost anyway
	far, err := s.DialVM(ctx, ref, port)
	if err != nil {
		a.note("not connected: %s", words.In(err.Error()))
		return
	}
	defer far.Close()                 //nolint:errcheck // likewise
	_ = control.Relay(ctx, near, far) // the client of the port sees that the connection ended
}

// attachRemote returns the engine of a server; done is false if none is set, and the
// engine is one of this machine. show is for a command of OpenSSH, which has none there.
func (a *app) attachRemote(ctx context.Context, show bool) (s *session, done bool, err error) {
	c, err := a.settings()
	switch {
	case err != nil || c.Server == "":
		return nil, err != nil, err
	case show:
		return nil, true, usage("--print shows a command of OpenSSH, which does not go through a server (--server, LINUS_SERVER)")
	}
	s, err = a.attach(ctx, false)
	return s, true, err
}
