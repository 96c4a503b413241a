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
	"strings"
	"time"

	"linus/internal/job"
)

// Client is a job.Engine reached through its socket. It holds a connection until
// Close: that tells the engine that somebody is there.
type Client struct {
	info      Info
	http      *http.Client
	transport *http.Transport
}

var _ job.Engine = (*Client)(nil)

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
func (c *Client) Submit(ctx context.Context, s job.Submission) (j job.Job, err error) {
	return j, c.do(ctx, http.MethodPost, "/v1/jobs", s, &j)
}

// Plan tells what making the submission's VM would do.
func (c *Client) Plan(ctx context.Context, s job.Submission) (commands []string, err error) {
	return commands, c.do(ctx, http.MethodPost, "/v1/plan", s, &commands)
}

// Job returns what is known of a job.
func (c *Client) Job(ctx context.Context, id string) (j job.Job, err error) {
	return j, c.do(ctx, http.MethodGet, jobPath(id, ""), nil, &j)
}

// Result returns what a job came to, or *job.NotCompleteError.
func (c *Client) Result(ctx context.Context, id string) (r job.Result, err error) {
	return r, c.do(ctx, http.MethodGet, jobPath(id, "/result"), nil, &r)
}

// Cancel ends a job.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return c.do(ctx, http.MethodPost, jobPath(id, "/cancel"), nil, nil)
}

// List returns a page of jobs.
func (c *Client) List(ctx context.Context, f job.Filter) (p job.Page, err error) {
	q := url.Values{"status": {string(f.Status)}, "limit": {strconv.Itoa(f.Limit)}, "cursor": {f.Cursor}}
	return p, c.do(ctx, http.MethodGet, "/v1/jobs?"+q.Encode(), nil, &p)
}

// Kill ends a job's task.
func (c *Client) Kill(ctx context.Context, id, signal string) (k job.Killed, err error) {
	return k, c.do(ctx, http.MethodPost, jobPath(id, "/kill?signal="+url.QueryEscape(signal)), nil, &k)
}

// Output returns what a stream has from offset.
func (c *Client) Output(ctx context.Context, id, stream string, offset, limit int64) (chunk job.Chunk, err error) {
	q := url.Values{"stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}, "limit": {strconv.FormatInt(limit, 10)}}
	return chunk, c.do(ctx, http.MethodGet, jobPath(id, "/output?"+q.Encode()), nil, &chunk)
}

// Input sends data to a task's stdin, and closes it when closed is set.
func (c *Client) Input(ctx context.Context, id string, data []byte, closed bool) error {
	return c.do(ctx, http.MethodPost, jobPath(id, "/input"), input{Data: data, Closed: closed}, nil)
}

// Cleanup forgets the jobs that ended longer ago than so.
func (c *Client) Cleanup(ctx context.Context, olderThan time.Duration) (n int, err error) {
	return n, c.do(ctx, http.MethodPost, "/v1/cleanup?older_than="+url.QueryEscape(olderThan.String()), nil, &n)
}

// OpenArtifact returns a file the job left.
func (c *Client) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	var about job.Artifact
	segments := strings.Split(path, "/")
	for i := range segments {
		segments[i] = url.PathEscape(segments[i])
	}
	resp, err := c.send(ctx, http.MethodGet, jobPath(id, "/artifacts/"+strings.Join(segments, "/")), nil)
	if err != nil {
		return nil, about, err
	}
	description, err := url.QueryUnescape(resp.Header.Get(artifactHeader))
	if err == nil {
		err = json.Unmarshal([]byte(description), &about)
	}
	if err != nil {
		return nil, about, errors.Join(fmt.Errorf("read the engine's answer: %w", err), resp.Body.Close())
	}
	return resp.Body, about, nil
}

// VMs returns every VM of ours.
func (c *Client) VMs(ctx context.Context) (vms []job.VMInfo, err error) {
	return vms, c.do(ctx, http.MethodGet, "/v1/vms", nil, &vms)
}

// VM returns one VM, by name or ID.
func (c *Client) VM(ctx context.Context, ref string) (vm job.VMInfo, err error) {
	return vm, c.do(ctx, http.MethodGet, "/v1/vms/"+url.PathEscape(ref), nil, &vm)
}

// StartVM starts a VM.
func (c *Client) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "start", "")
}

// StopVM shuts a VM down.
func (c *Client) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "stop", "")
}

// DestroyVM destroys a VM.
func (c *Client) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "destroy", "")
}

// ForgetVM lets go of a VM that is left alone.
func (c *Client) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "forget", "")
}

// SnapshotVM keeps a VM's disk as it is now.
func (c *Client) SnapshotVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "snapshot", snapshot)
}

// RevertVM brings a VM back to a snapshot.
func (c *Client) RevertVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return c.vmVerb(ctx, ref, "revert", snapshot)
}

func (c *Client) vmVerb(ctx context.Context, ref, verb, snapshot string) (vm job.VMInfo, err error) {
	path := "/v1/vms/" + url.PathEscape(ref) + "/" + verb + "?snapshot=" + url.QueryEscape(snapshot)
	return vm, c.do(ctx, http.MethodPost, path, nil, &vm)
}

// CheckHost looks whether the host can run jobs.
func (c *Client) CheckHost(ctx context.Context) (r job.HostReport, err error) {
	return r, c.do(ctx, http.MethodGet, "/v1/host", nil, &r)
}

// Watch returns the events after the given number as soon as there are any or
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

// do makes one request with a JSON answer.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
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

// send makes one request and returns its success; the caller closes the body.
// Failures arrive as the engine's own errors.
func (c *Client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body) //nolint:gosec // the host is a socket, whatever the path
	if err != nil {
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	if client := job.ClientFrom(ctx); client != "" {
		req.Header.Set(clientHeader, client)
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
		return nil, fmt.Errorf("ask the engine: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close() //nolint:errcheck // read to its end
		return nil, readFailure(resp)
	}
	return resp, nil
}

func readFailure(resp *http.Response) error {
	var answer struct{ Error failure }
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || json.Unmarshal(data, &answer) != nil || answer.Error.Code == "" {
		return fmt.Errorf("engine answered %s: %.200s; is it another version? restart it: linus serve --stop", resp.Status, data)
	}
	return answer.Error.decodeError()
}
