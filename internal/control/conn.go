package control

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"reflect"
	"sync/atomic"

	"linus/internal/job"
	"linus/internal/view"
)

// Conn is a connection to one engine. It is open until Close, so the engine knows that it has a
// client.
type Conn struct {
	info      Info
	base      string      // prefix of the URLs of all calls
	header    http.Header // of every request
	http      *http.Client
	transport *http.Transport
}

// Connect connects to the engine on the socket. It returns ErrNoEngine if there is none.
func Connect(ctx context.Context, socket string) (*Conn, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err != nil && ctx.Err() == nil {
				return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
			}
			if err != nil {
				return nil, err
			}
			return &countedConn{Conn: conn}, nil
		},
		MaxIdleConnsPerHost: 64, // as many as an MCP client has concurrent calls
	}
	c := &Conn{base: "http://engine", header: http.Header{}, transport: transport, http: &http.Client{Transport: transport}}
	if err := c.call(ctx, shapeOf(infoVerb), job.None{}, &c.info); err != nil {
		c.Close()
		return nil, err
	}
	c.header.Set(engineHeader, c.info.ID) // another engine may listen on the socket later
	return c, nil
}

// countedConn counts the bytes sent on a connection.
type countedConn struct {
	net.Conn
	sent atomic.Int64 // bytes
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n))
	return n, err
}

// Close closes the connection. Jobs continue.
func (c *Conn) Close() { c.transport.CloseIdleConnections() }

// Info returns the engine's description at the time of Connect.
func (c *Conn) Info() Info { return c.info }

// Stop asks the engine to stop. Tasks in VMs continue.
func (c *Conn) Stop(ctx context.Context) error {
	return c.call(ctx, shapeOf(stopVerb), job.None{}, &job.None{})
}

// Drain asks the engine to accept no more jobs, and to stop when it works on none.
func (c *Conn) Drain(ctx context.Context) error {
	return c.call(ctx, shapeOf(drainVerb), job.None{}, &job.None{})
}

// Yield asks the engine to stop if nobody else needs it: it was started in the background, has no
// work, and no other client is connected. It reports whether the engine stops; from then on the
// engine accepts no calls. Tasks in VMs continue.
func (c *Conn) Yield(ctx context.Context) (bool, error) {
	var y yielded
	err := c.call(ctx, shapeOf(yieldVerb), job.None{}, &y)
	return y.Ends, err
}

// call makes one request; out is a pointer. It returns the engine's own errors.
func (c *Conn) call(ctx context.Context, s shape, in, out any) error {
	req, err := c.request(ctx, s, in)
	if err != nil {
		return err
	}
	// A connection can turn out to have been closed before anything of the request was sent.
	nothingSent := func() bool { return false }
	trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if conn, ok := got.Conn.(*countedConn); ok {
			before := conn.sent.Load()
			nothingSent = func() bool { return conn.sent.Load() == before }
		}
	}}
	if tell := job.Listener(ctx); tell != nil {
		req.Header.Set(progressHeader, "1")
		trace.Got1xxResponse = func(_ int, h textproto.MIMEHeader) error {
			if text, err := url.QueryUnescape(h.Get(progressHeader)); err == nil && text != "" {
				tell(job.Progress{Text: text})
			}
			return nil
		}
	}
	resp, err := c.http.Do(req.WithContext(httptrace.WithClientTrace(ctx, trace))) //nolint:gosec // the host is the engine's, whatever the path
	if err != nil {
		return noResponse(ctx, err, nothingSent())
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close() //nolint:errcheck // read to the end
		return readFailure(resp)
	}
	switch out := out.(type) {
	case *job.Download: // the reader closes it
		out.File = resp.Body
		out.About, err = aboutFile(resp)
		if err != nil {
			return errors.Join(fmt.Errorf("read the engine's response: %w", err), resp.Body.Close())
		}
		return nil
	case *io.ReadCloser: // the reader closes it
		*out = &received{resp.Body, resp}
		return nil
	}
	defer resp.Body.Close()              //nolint:errcheck // read to the end
	defer io.Copy(io.Discard, resp.Body) //nolint:errcheck // otherwise the connection closes, and the engine counts this client as gone
	if err := s.readResult(resp, out); err != nil {
		return fmt.Errorf("read the engine's response: %w: %w", ErrLost, err)
	}
	return nil
}

// readResult decodes a response's result into what out points to.
func (s shape) readResult(resp *http.Response, out any) error {
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if body := bodyOf(s.Out); body != nil {
		return readBytes(resp, data, reflect.ValueOf(out).Elem(), body)
	}
	if s.Key != "" {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(data, &object); err != nil {
			return err
		}
		data = object[s.Key]
	}
	return view.Unmarshal(data, out)
}

func (c *Conn) request(ctx context.Context, s shape, in any) (*http.Request, error) {
	path, header, data, err := s.encode(in)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	var body io.Reader = bytes.NewReader(data)
	if s.streams() {
		body, _ = reflect.ValueOf(in).FieldByIndex(s.whole).Interface().(io.Reader)
	}
	req, err := http.NewRequestWithContext(ctx, s.method, c.base+path, body) //nolint:gosec // the host is the engine's, whatever the path
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	maps.Copy(req.Header, c.header)
	maps.Copy(req.Header, header)
	req.Header.Set(clientHeader, cmp.Or(job.ClientFrom(ctx), commandLine))
	return req, nil
}

// noResponse returns the error for a request without a response: ErrNoEngine, ErrLost, or one that
// a retry would not change.
func noResponse(ctx context.Context, err error, nothingSent bool) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the method and URL mean nothing to people
	}
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted) || errors.Is(err, ErrNoEngine) || errors.Is(err, http.ErrSchemeMismatch) || ctx.Err() != nil:
	case nothingSent:
		err = fmt.Errorf("%w: %w", ErrNoEngine, err)
	default:
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return fmt.Errorf("ask the engine: %w", err)
}

func readFailure(resp *http.Response) error {
	if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 {
		return fmt.Errorf("the server sends clients to %.200q; use the URL of the server itself", to)
	}
	var answer view.Problem
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	known := err == nil && json.Unmarshal(data, &answer) == nil && answer.Code != ""
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("the engine does not accept the token (%w): %.200s", job.ErrUnauthorized, cmp.Or(answer.Detail, string(data)))
	case !known && bytes.Contains(data, []byte("HTTP request to an HTTPS server")): // net/http's text
		return errors.New("what answers there speaks https: write the server's URL with https://")
	case !known:
		return fmt.Errorf("the engine returned %s: %.200s; is it a different version? restart it: linus serve --stop", resp.Status, data)
	}
	return decodeError(answer)
}
