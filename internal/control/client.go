package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"linus/internal/job"
)

// Client is an Engine reached through its socket. It holds a connection until
// Close: that tells the engine that somebody is there.
type Client struct {
	info      Info
	http      *http.Client
	transport *http.Transport
}

var _ Engine = (*Client)(nil)

// Dial connects to the engine on the socket; ErrNoEngine when there is none.
func Dial(ctx context.Context, socket string) (*Client, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err != nil && ctx.Err() == nil {
				return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
			}
			return conn, err
		},
		MaxIdleConnsPerHost: 8,
	}
	c := &Client{transport: transport, http: &http.Client{Transport: transport}}
	if err := c.do(ctx, http.MethodGet, "/v1/info", nil, &c.info); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close gives up the connection. Jobs go on.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Info tells who answered Dial.
func (c *Client) Info() Info { return c.info }

// Stop asks the engine to end. Tasks in VMs go on.
func (c *Client) Stop(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/v1/stop", nil, nil)
}

// Submit stores a job and starts it.
func (c *Client) Submit(ctx context.Context, m job.Manifest, key string) (j job.Job, err error) {
	return j, c.do(ctx, http.MethodPost, "/v1/jobs", submission{Manifest: m, IdempotencyKey: key}, &j)
}

// Job answers what is known of a job.
func (c *Client) Job(ctx context.Context, id string) (j job.Job, err error) {
	return j, c.do(ctx, http.MethodGet, jobPath(id, ""), nil, &j)
}

// Result answers what a job came to, or *job.NotCompleteError.
func (c *Client) Result(ctx context.Context, id string) (r job.Result, err error) {
	return r, c.do(ctx, http.MethodGet, jobPath(id, "/result"), nil, &r)
}

// Cancel ends a job.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, jobPath(id, "/cancel"), nil, nil)
}

// List answers a page of jobs.
func (c *Client) List(ctx context.Context, f job.Filter) (p job.Page, err error) {
	q := url.Values{"status": {string(f.Status)}, "limit": {strconv.Itoa(f.Limit)}, "cursor": {f.Cursor}}
	return p, c.do(ctx, http.MethodGet, "/v1/jobs?"+q.Encode(), nil, &p)
}

// CheckHost looks whether the host can run jobs.
func (c *Client) CheckHost(ctx context.Context) (r job.HostReport, err error) {
	return r, c.do(ctx, http.MethodGet, "/v1/host", nil, &r)
}

// Watch answers the events after the given number as soon as there are any or
// the job is done, else none when ctx ends.
func (c *Client) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	var last job.Job
	for {
		var w watched
		err := c.do(ctx, http.MethodGet, jobPath(id, "/events?after="+strconv.FormatInt(after, 10)), nil, &w)
		if err != nil && ctx.Err() != nil {
			return nil, last, nil
		}
		if err != nil || len(w.Events) > 0 || w.Job.Done() {
			return w.Events, w.Job, err
		}
		last = w.Job
	}
}

func jobPath(id, rest string) string { return "/v1/jobs/" + url.PathEscape(id) + rest }

// do makes one request. Failures arrive as the engine's own errors.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body) //nolint:gosec // the host is a socket, whatever the path
	if err != nil {
		return fmt.Errorf("ask the engine: %w", err)
	}
	resp, err := c.http.Do(req) //nolint:gosec // the same
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // its method and URL mean nothing to people
		}
		if !errors.Is(err, ErrNoEngine) && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		return fmt.Errorf("ask the engine: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	if resp.StatusCode != http.StatusOK {
		return readFailure(resp)
	}
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("read the engine's answer: %w: %w", ErrLost, err)
	}
	return nil
}

func readFailure(resp *http.Response) error {
	var answer struct{ Error failure }
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(data, &answer) != nil || answer.Error.Code == "" {
		return fmt.Errorf("engine answered %s: %.200s; is it another version? restart it: linus serve --stop", resp.Status, data)
	}
	return answer.Error.decodeError()
}
