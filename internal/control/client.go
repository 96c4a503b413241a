package control

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/coder/websocket"

	"linus/internal/job"
)

// Dialer connects to the running engine, or starts one. A Client makes all connections with it.
type Dialer func(ctx context.Context) (*Conn, error)

// Client is a job.Engine in another process. If the engine has ended, a call is repeated once with
// the next engine, provided that it did not reach the first one or is repeatable.
type Client struct {
	job.Engine // calls ask

	dial Dialer

	// restarts says that others restart an engine that was stopped, so a call waits for it.
	restarts bool

	dialing chan struct{} // capacity 1: only one connection is made at a time

	mu     sync.Mutex
	conn   *Conn // nil: not connected
	closes int   // how often Close was called
}

// NewClient connects with dial, now and whenever the engine has ended.
func NewClient(ctx context.Context, dial Dialer) (*Client, error) {
	c := Later(dial)
	if _, err := c.connect(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Later is NewClient, but connects at the first call, and again at each call until that succeeds.
func Later(dial Dialer) *Client {
	c := &Client{dial: dial, dialing: make(chan struct{}, 1)}
	c.Engine = job.Through(c.ask)
	return c
}

// Dial returns a Client of the engine that listens on the socket, or ErrNoEngine.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return NewClient(ctx, func(ctx context.Context) (*Conn, error) { return Connect(ctx, socket) })
}

// Caller returns the principal that the engine takes this client for, as far as clients know it.
func (c *Client) Caller(ctx context.Context) (job.Principal, error) {
	conn, err := c.connect(ctx)
	if err != nil {
		return job.Principal{}, err
	}
	if who := conn.Info().Caller; who != nil {
		return job.Principal{Name: who.Name, Role: who.Role, Toolsets: who.Toolsets}, nil
	}
	return job.Operator(), nil
}

// Close closes the connection, even one that is being made. Jobs continue.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closes++
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// connect returns the open connection, or a new one. It waits if another call is connecting.
func (c *Client) connect(ctx context.Context) (*Conn, error) {
	if conn, _ := c.connected(); conn != nil {
		return conn, nil
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the connection to the engine: %w", context.Cause(ctx))
	}
	conn, closes := c.connected()
	if conn != nil {
		return conn, nil
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closes != closes {
		conn.Close()
		return nil, errors.New("connect to the engine: the client was closed meanwhile")
	}
	c.conn = conn
	return conn, nil
}

// connected returns the open connection, or nil, and how often Close was called.
func (c *Client) connected() (conn *Conn, closes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn, c.closes
}

func (c *Client) ask(ctx context.Context, v *job.Verb, in any) (any, error) {
	if of, is := in.(job.Watching); is {
		return c.watch(ctx, of)
	}
	return c.request(ctx, v, in)
}

// request calls a verb with one request, and with another one if the engine has ended.
func (c *Client) request(ctx context.Context, v *job.Verb, in any) (any, error) {
	s := shapeOf(v)
	if v.Select != nil {
		in = job.Query{} // linus's clients filter all rows themselves
	}
	if s.socket() {
		ws, err := c.open(ctx, s, in)
		if err != nil {
			return nil, err
		}
		return newTunnel(context.WithoutCancel(ctx), ws), nil
	}
	var out reflect.Value
	err := c.with(ctx, s, in, func(conn *Conn) error {
		out = reflect.New(s.Out)
		return conn.call(ctx, s, in, out.Interface())
	})
	if err != nil {
		return nil, err
	}
	return out.Elem().Interface(), nil
}

func (c *Client) open(ctx context.Context, s shape, in any) (ws *websocket.Conn, err error) {
	err = c.with(ctx, s, in, func(conn *Conn) (err error) {
		ws, err = conn.open(ctx, s, in)
		return err
	})
	return ws, err
}

// with makes a call and, if the engine has ended, repeats it on a new connection.
func (c *Client) with(ctx context.Context, s shape, in any, call func(*Conn) error) error {
	for attempt := 0; ; attempt++ {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		err = call(conn)
		gone := errors.Is(err, ErrNoEngine) || (errors.Is(err, ErrLost) || c.restarts && errors.Is(err, ErrStopped)) && s.Again(in)
		if !gone || attempt > 0 || ctx.Err() != nil {
			return err
		}
		c.mu.Lock()
		if c.conn == conn {
			c.conn = nil
			conn.Close()
		}
		c.mu.Unlock()
	}
}

// watch makes one request, which returns after a while, with or without events. To wait for the
// job's end, it makes as many requests as necessary.
func (c *Client) watch(ctx context.Context, of job.Watching) (any, error) {
	var last job.WatchedJob
	for {
		out, err := c.request(ctx, job.VerbWatch.Verb, of)
		if err != nil && ctx.Err() != nil {
			return job.WatchedJob{Job: last.Job}, nil
		}
		if err != nil {
			return nil, err
		}
		last = out.(job.WatchedJob)
		if of.After != job.OnlyEnd || last.Job.Status.Terminal() {
			return out, nil
		}
	}
}
