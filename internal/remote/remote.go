// Package remote reaches machines over SSH and SFTP: it dials (also through another machine), pools
// connections, runs commands, transfers files, checks host keys, and classifies errors. It is the only
// user of x/crypto/ssh and pkg/sftp in the product. It knows nothing of Proxmox or of what the commands
// mean, and only the fault classes of jobs.
//
// Three facts about OpenSSH shape it: closing a session leaves the remote process running, a signal
// request is acknowledged but does nothing, and sshd refuses environment requests. So a command is
// stopped by a second session, and the environment is part of the quoted command line.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// maxSessions is how many sessions one connection carries: sshd allows 10 by
// default, and two are left for the operator on a shared connection.
const maxSessions = 8

var errClosed = errors.New("connection pool is closed")

// Pool is the connections to one machine: none until needed, and one more whenever all are full. It is
// safe for concurrent use. A dead connection is replaced when it is next needed.
type Pool struct {
	dialer *dialer
	log    *slog.Logger

	dialing  chan struct{} // holds one token: at most one login at a time
	starting chan struct{} // the same for the SFTP session

	mu     sync.Mutex
	closed bool
	conns  []*conn
	files  *fileSession // shared by all transfers; nil until needed
	noSFTP bool         // the machine has no SFTP subsystem
	lost   bool         // a connection ended before Close, and none was established since

	owned sync.WaitGroup // all of the pool's goroutines
}

// conn is one connection. sessions and limit are guarded by Pool.mu.
type conn struct {
	client   *ssh.Client
	sessions int
	limit    int
	gone     chan struct{} // closed when the connection has ended
}

// NewPool returns a pool for a machine whose host key is in known_hosts, or one of Options.HostKeys. It
// does not dial yet.
func NewPool(o Options) *Pool {
	o = o.withDefaults()
	return newPool(&dialer{
		options: o,
		network: (&net.Dialer{}).DialContext,
		verifier: func() (verifier, error) {
			if len(o.HostKeys) > 0 {
				return newPinned(o.HostKeys, nil)
			}
			return openKnownHosts(o.KnownHosts, o.addr())
		},
	})
}

func newPool(d *dialer) *Pool {
	return &Pool{
		dialer: d, log: d.options.Log.With("host", d.options.login()),
		dialing: make(chan struct{}, 1), starting: make(chan struct{}, 1),
	}
}

// GuestOptions say how to reach a machine behind the pool's machine.
type GuestOptions struct {
	Options // KnownHosts is not used

	HostKey    string                   // "ssh-ed25519 AAAA..."; empty: the first key presented is pinned
	OnFirstUse func(fingerprint string) // called when a key was pinned on first use, without proof; nil: none
}

// Guest returns a pool for a machine behind this pool's machine, reached through this pool's connections
// or, only if this pool's machine refuses to forward, directly. It never dials directly first: an
// unrelated machine in our own network may have the same private address.
func (p *Pool) Guest(o GuestOptions) (*Pool, error) {
	var keys []string
	if strings.TrimSpace(o.HostKey) != "" {
		keys = []string{o.HostKey}
	}
	pin, err := newPinned(keys, o.OnFirstUse)
	if err != nil {
		return nil, err
	}
	if o.OnReconnect == nil {
		o.OnReconnect = p.dialer.options.OnReconnect
	}
	return newPool(&dialer{
		options:  o.withDefaults(),
		network:  p.dialThrough,
		verifier: func() (verifier, error) { return pin, nil },
	}), nil
}

// Login returns "user@host:port", for people.
func (p *Pool) Login() string { return p.dialer.options.login() }

// NearIP returns this machine's address as the other machine sees it.
func (p *Pool) NearIP(ctx context.Context) (string, error) {
	c, err := p.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer p.release(c)
	host, _, err := net.SplitHostPort(c.client.LocalAddr().String())
	if err != nil {
		return "", fmt.Errorf("own address towards %s: %w", p.Login(), err)
	}
	return host, nil
}

// closePatience is how long Close waits for the pool's goroutines.
const closePatience = 5 * time.Second

// Close ends all connections and waits for the pool's goroutines, but not for an unresponsive machine:
// when x/crypto closes a connection through another machine, it waits for the other side, which may
// neither read nor close. What is left ends with the connection to the machine in between.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		p.owned.Go(func() { _ = c.client.Close() })
	}
	p.mu.Unlock()
	ended := make(chan struct{})
	go p.drain(ended)
	select {
	case <-ended:
	case <-time.After(closePatience):
		p.log.Warn("some connections are not closed yet: the other side keeps them open")
	}
}

func (p *Pool) drain(ended chan<- struct{}) {
	p.owned.Wait()
	close(ended)
}

// own runs work in a goroutine that Close waits for. It returns false if the pool is closed.
func (p *Pool) own(work func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.owned.Go(work)
	return true
}

// await runs work, which takes no context, in a goroutine of the pool. It returns work's result, the
// cause of ctx's end, or io.EOF when gone is closed (nil: never), whichever comes first. A late result
// goes to discard. A dead peer cannot block work forever: keepAlive closes its connection.
func await[T any](ctx context.Context, p *Pool, gone <-chan struct{}, work func() (T, error), discard func(T)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var zero T
	answers, left := make(chan answer), make(chan struct{})
	defer close(left)
	started := p.own(func() {
		value, err := work()
		select {
		case answers <- answer{value, err}:
		case <-left:
			if err == nil && discard != nil {
				discard(value)
			}
		}
	})
	if !started {
		return zero, errClosed
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-gone:
		return zero, io.EOF
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
}

// acquire returns a connection with room for one more session, and reserves that room. It dials if there
// is no such connection.
func (p *Pool) acquire(ctx context.Context) (*conn, error) {
	if c, err := p.take(); c != nil || err != nil {
		return c, err
	}
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to %s: %w", p.Login(), context.Cause(ctx))
	}
	if c, err := p.take(); c != nil || err != nil {
		return c, err
	}
	began := time.Now()
	client, err := p.dialer.dial(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{client: client, sessions: 1, limit: maxSessions, gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(errClosed, client.Close())
	}
	p.conns = append(p.conns, c)
	if p.lost {
		p.lost = false
		p.dialer.options.OnReconnect()
	}
	p.owned.Go(func() { p.watch(c) })
	p.owned.Go(func() { p.keepAlive(c) })
	p.log.DebugContext(ctx, "connected", "connections", len(p.conns), "duration_ms", time.Since(began).Milliseconds())
	return c, nil
}

// take returns a live connection with room, or nil.
func (p *Pool) take() (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	for _, c := range p.conns {
		if c.sessions < c.limit {
			c.sessions++
			return c, nil
		}
	}
	return nil, nil
}

func (p *Pool) release(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.sessions--
}

// Connected reports whether there is a connection.
func (p *Pool) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) > 0
}

// Ping checks that the machine answers, with one round trip on an open connection, or by connecting. It
// closes a connection that does not answer before ctx ends.
func (p *Pool) Ping(ctx context.Context) error {
	c, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer p.release(c)
	_, err = await(ctx, p, c.gone, func() (struct{}, error) {
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		return struct{}{}, err
	}, nil)
	if err != nil {
		p.drop(c)
		return classify(ctx, "reach", p.Login(), err)
	}
	return nil
}

// drop removes a connection from the pool and ends it, whether or not the other side cooperates.
func (p *Pool) drop(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.conns, c); i >= 0 { // not dropped before
		p.conns = slices.Delete(p.conns, i, i+1)
		p.lost = true
		if !p.closed { // otherwise Close does
			p.owned.Go(func() { _ = c.client.Close() })
		}
	}
}

// watch waits until the connection ends, and drops it.
func (p *Pool) watch(c *conn) {
	err := c.client.Wait()
	close(c.gone)
	p.drop(c)
	p.log.Debug("connection ended", "err", err)
}

// keepAlive closes a connection whose other end no longer answers, so that everything using it fails
// instead of waiting forever.
func (p *Pool) keepAlive(c *conn) {
	period := p.dialer.options.KeepAlive
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-tick.C:
		}
		cut := time.AfterFunc(period, func() { _ = c.client.Close() })
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		if !cut.Stop() || err != nil {
			p.log.Warn("connection does not answer", "err", err)
			p.drop(c)
			return
		}
	}
}

// channel opens a channel on a connection of the pool. It skips connections that are dead, or full
// according to full (nil: never).
func channel[T any](ctx context.Context, p *Pool, full func(*conn, error) bool, create func(*ssh.Client) (T, error), discard func(T)) (*conn, T, error) {
	var zero T
	for attempt := 1; ; attempt++ {
		c, err := p.acquire(ctx)
		if err != nil {
			return nil, zero, err
		}
		// A channel that x/crypto/ssh opens just as its connection ends never gets an answer.
		value, err := await(ctx, p, c.gone, func() (T, error) { return create(c.client) }, discard)
		if err == nil {
			return c, value, nil
		}
		isFull := full != nil && full(c, err)
		p.release(c)
		var open *ssh.OpenChannelError
		switch {
		case ctx.Err() != nil || errors.Is(err, errClosed):
			return nil, zero, fmt.Errorf("connect to %s: %w", p.Login(), err)
		case isFull: // another connection takes it
		case errors.As(err, &open):
			return nil, zero, err
		case attempt == 3:
			return nil, zero, classify(ctx, "connect to", p.Login(), err)
		default:
			p.drop(c)
		}
	}
}

// sessionsFull reports whether the machine has refused one more session on the connection, and lowers the
// connection's limit accordingly. OpenSSH gives no specific reason: "open failed".
func (p *Pool) sessionsFull(c *conn, err error) bool {
	var open *ssh.OpenChannelError
	if !errors.As(err, &open) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.sessions < 2 {
		return false
	}
	c.limit = min(c.limit, c.sessions-1)
	return true
}

// dialThrough connects from the pool's machine to addr.
func (p *Pool) dialThrough(ctx context.Context, network, addr string) (net.Conn, error) {
	c, through, err := channel(ctx, p, nil, func(client *ssh.Client) (net.Conn, error) {
		return client.DialContext(ctx, network, addr)
	}, func(n net.Conn) { _ = n.Close() })
	if err == nil {
		// A forwarded connection does not count as a session for sshd.
		p.release(c)
		return through, nil
	}
	var open *ssh.OpenChannelError
	if errors.As(err, &open) && (open.Reason == ssh.Prohibited || open.Reason == ssh.UnknownChannelType) {
		p.log.DebugContext(ctx, "host does not forward, connecting directly", "addr", addr)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	}
	return nil, err
}

// session opens a session; the caller closes it and releases the connection.
func (p *Pool) session(ctx context.Context) (*conn, *ssh.Session, error) {
	c, s, err := channel(ctx, p, p.sessionsFull, (*ssh.Client).NewSession, func(s *ssh.Session) { _ = s.Close() })
	var open *ssh.OpenChannelError
	if ClassOf(err) == "" && errors.As(err, &open) {
		err = &Error{Op: "open a session on", Addr: p.Login(), Class: Lost, Err: err}
	}
	return c, s, err
}

// discardEOF ignores the error of closing a stream that the other side closed first.
func discardEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
