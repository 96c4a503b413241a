package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
)

// Conn is a connection to one engine. It stays open until Close, so that the engine
// knows it has a client.
type Conn struct {
	info      Info
	http      *http.Client
	transport *http.Transport
}

// Connect connects to the engine on the socket; ErrNoEngine if there is none.
func Connect(ctx context.Context, socket string) (*Conn, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err != nil && ctx.Err() == nil {
				return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
			}
			return conn, err
		},
		MaxIdleConnsPerHost: 64, // as many as an MCP client has calls under way
	}
	c := &Conn{transport: transport, http: &http.Client{Transport: transport}}
	if err := c.call(ctx, shapeOf(process(), "Info"), none{}, &c.info); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the connection. Jobs go on.
func (c *Conn) Close() { c.transport.CloseIdleConnections() }

// Info returns the engine's description, as of Connect.
func (c *Conn) Info() Info { return c.info }

// Stop asks the engine to stop. Tasks in VMs go on.
func (c *Conn) Stop(ctx context.Context) error {
	return c.call(ctx, shapeOf(process(), "Stop"), none{}, &none{})
}

// Drain asks the engine to take no more jobs, and to stop when it works on none.
func (c *Conn) Drain(ctx context.Context) error {
	return c.call(ctx, shapeOf(process(), "Drain"), none{}, &none{})
}

// Yield asks the engine to stop if nobody else needs it: it was started in the
// background, has no work, and no other client is connected. It reports whether
// the engine stops; no call reaches it from then on. Tasks in VMs go on.
func (c *Conn) Yield(ctx context.Context) (bool, error) {
	var y yielded
	err := c.call(ctx, shapeOf(process(), "Yield"), none{}, &y)
	return y.Ends, err
}

// shapeOf returns the row with a name, which must exist: a test checks that it does.
func shapeOf[E any](rows []row[E], name string) shape {
	return rows[slices.IndexFunc(rows, func(r row[E]) bool { return r.name == name })].shape
}

// call makes one request; out is a pointer. Failures arrive as the engine's own
// errors.
func (c *Conn) call(ctx context.Context, s shape, in, out any) error {
	req, err := s.request(ctx, in)
	if err != nil {
		return err
	}
	if c.info.ID != "" {
		req.Header.Set(engineHeader, c.info.ID) // another engine may be on the socket by now
	}
	resp, err := c.http.Do(req) //nolint:gosec // the host is a socket, whatever the path
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the method and URL mean nothing to people
		}
		if !errors.Is(err, ErrNoEngine) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return fmt.Errorf("ask the engine: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close() //nolint:errcheck // read to the end
		return readFailure(resp)
	}
	if file, ok := out.(streamed); ok {
		if err := file.receive(resp); err != nil {
			return errors.Join(fmt.Errorf("read the engine's response: %w", err), resp.Body.Close())
		}
		return nil
	}
	defer resp.Body.Close()              //nolint:errcheck // read to the end
	defer io.Copy(io.Discard, resp.Body) //nolint:errcheck // otherwise the connection closes, and the engine counts this client as gone
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the engine's response: %w: %w", ErrLost, err)
	}
	return nil
}

func readFailure(resp *http.Response) error {
	var answer struct{ Error failure }
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(data, &answer) != nil || answer.Error.Code == "" {
		return fmt.Errorf("the engine returned %s: %.200s; is it another version? restart it: linus serve --stop", resp.Status, data)
	}
	return answer.Error.decodeError()
}
