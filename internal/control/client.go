package control

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"linus/internal/job"
)

// Dialer connects to the running engine, or starts one. Every connection of a Client
// is made by its Dialer.
type Dialer func(ctx context.Context) (*Conn, error)

// Client is a job.Engine in another process. If the engine has ended, a call is
// repeated once with the next engine that the dialer finds, provided that the call did
// not reach the first one or is repeatable.
type Client struct {
	dial Dialer
	rows map[string]shape

	// restarts says that an engine that was stopped is started again by others, and a
	// call waits for it.
	restarts bool

	mu   sync.Mutex
	conn *Conn // nil: not connected
}

var _ job.Engine = (*Client)(nil)

// NewClient connects with dial, now and whenever the engine has ended.
func NewClient(ctx context.Context, dial Dialer) (*Client, error) {
	c := Later(dial)
	if _, err := c.connect(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Later is NewClient that first connects when it is first asked, and again as long as that
// fails.
func Later(dial Dialer) *Client {
	c := &Client{dial: dial, rows: map[string]shape{}}
	for _, r := range verbs() {
		c.rows[r.name] = r.shape
	}
	return c
}

// Dial returns a Client of whatever engine listens on the socket; ErrNoEngine if there
// is none.
func Dial(ctx context.Context, socket string) (*Client, error) {
	return NewClient(ctx, func(ctx context.Context) (*Conn, error) { return Connect(ctx, socket) })
}

// Caller returns whom the engine takes this client for, as far as clients are told.
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

// Close closes the connection. Jobs go on.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// connect returns the open connection, or a new one.
func (c *Client) connect(ctx context.Context) (*Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := c.dial(ctx)
	if err == nil {
		c.conn = conn
	}
	return conn, err
}

// ask calls a verb.
func ask[Out any](ctx context.Context, c *Client, verb string, in any) (out Out, err error) {
	s := c.rows[verb]
	err = c.with(ctx, s, in, func(conn *Conn) error {
		out = *new(Out)
		return conn.call(ctx, s, in, &out)
	})
	return out, err
}

// open opens a WebSocket.
func (c *Client) open(ctx context.Context, verb string, in any) (ws *websocket.Conn, err error) {
	s := c.rows[verb]
	err = c.with(ctx, s, in, func(conn *Conn) (err error) {
		ws, err = conn.open(ctx, s, in)
		return err
	})
	return ws, err
}

// with makes a call on the connection and, if the engine has gone, repeats it on
// another.
func (c *Client) with(ctx context.Context, s shape, in any, call func(*Conn) error) error {
	for attempt := 0; ; attempt++ {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		err = call(conn)
		gone := errors.Is(err, ErrNoEngine) || (errors.Is(err, ErrLost) || c.restarts && errors.Is(err, ErrStopped)) && s.repeatable(in)
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

// tell calls a verb that returns nothing.
func tell(ctx context.Context, c *Client, verb string, in any) error {
	_, err := ask[none](ctx, c, verb, in)
	return err
}

// Submit implements job.Jobs.
func (c *Client) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	return ask[job.Job](ctx, c, "Submit", s)
}

// Plan implements job.Jobs.
func (c *Client) Plan(ctx context.Context, s job.Submission) ([]string, error) {
	return ask[[]string](ctx, c, "Plan", s)
}

// Job implements job.Jobs.
func (c *Client) Job(ctx context.Context, id string) (job.Job, error) {
	return ask[job.Job](ctx, c, "Job", jobRef{id})
}

// Manifest implements job.Jobs.
func (c *Client) Manifest(ctx context.Context, id string) (job.Manifest, error) {
	return ask[job.Manifest](ctx, c, "Manifest", jobRef{id})
}

// Result implements job.Jobs.
func (c *Client) Result(ctx context.Context, id string) (job.Result, error) {
	return ask[job.Result](ctx, c, "Result", jobRef{id})
}

// Cancel implements job.Jobs.
func (c *Client) Cancel(ctx context.Context, id string) error {
	return tell(ctx, c, "Cancel", jobRef{id})
}

// Kill implements job.Jobs.
func (c *Client) Kill(ctx context.Context, id, signal string) (job.Killed, error) {
	return ask[job.Killed](ctx, c, "Kill", signalled{id, signal})
}

// List implements job.Jobs.
func (c *Client) List(ctx context.Context, f job.Filter) (job.Page, error) {
	return ask[job.Page](ctx, c, "List", f)
}

// Activity implements job.Jobs.
func (c *Client) Activity(ctx context.Context, principal string) (job.Activity, error) {
	return ask[job.Activity](ctx, c, "Activity", ofPrincipal{principal})
}

// Cleanup implements job.Jobs.
func (c *Client) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return ask[int](ctx, c, "Cleanup", aged{duration(olderThan)})
}

// Watch implements job.Streams. Unlike the others it makes as many requests as
// necessary: each returns after a while, with events or without.
func (c *Client) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	var last job.Job
	for {
		w, err := ask[watched](ctx, c, "Watch", watching{id, after})
		if err != nil && ctx.Err() != nil {
			return nil, last, nil
		}
		if err != nil || len(w.Events) > 0 || w.Job.Done() || after == job.OnlyEnd && w.Job.Status.Terminal() {
			return w.Events, w.Job, err
		}
		last = w.Job
	}
}

// Output implements job.Streams.
func (c *Client) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	return ask[job.Chunk](ctx, c, "Output", stretch{id, stream, offset, limit})
}

// Input implements job.Streams.
func (c *Client) Input(ctx context.Context, id string, data []byte, closed bool) error {
	return tell(ctx, c, "Input", input{id, data, closed})
}

// Resize implements job.Streams.
func (c *Client) Resize(ctx context.Context, id string, rows, columns int) error {
	return tell(ctx, c, "Resize", resized{id, rows, columns})
}

// OpenArtifact implements job.Streams.
func (c *Client) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	d, err := ask[download](ctx, c, "OpenArtifact", fileRef{id, path})
	return d.file, d.about, err
}

// VMs implements job.VMs.
func (c *Client) VMs(ctx context.Context) ([]job.VMInfo, error) {
	return ask[[]job.VMInfo](ctx, c, "VMs", none{})
}

// VM implements job.VMs.
func (c *Client) VM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "VM", vmRef{ref})
}

// StartVM implements job.VMs.
func (c *Client) StartVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "StartVM", vmRef{ref})
}

// StopVM implements job.VMs.
func (c *Client) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "StopVM", vmRef{ref})
}

// DestroyVM implements job.VMs.
func (c *Client) DestroyVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "DestroyVM", vmRef{ref})
}

// ForgetVM implements job.VMs.
func (c *Client) ForgetVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "ForgetVM", vmRef{ref})
}

// SuspendVM implements job.VMs.
func (c *Client) SuspendVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "SuspendVM", vmRef{ref})
}

// ResumeVM implements job.VMs.
func (c *Client) ResumeVM(ctx context.Context, ref string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "ResumeVM", vmRef{ref})
}

// SnapshotVM implements job.VMs.
func (c *Client) SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "SnapshotVM", newSnapshot{ref, snapshot, memory})
}

// RevertVM implements job.VMs.
func (c *Client) RevertVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error) {
	return ask[job.VMInfo](ctx, c, "RevertVM", snapshotRef{ref, snapshot})
}

// ListFiles implements job.Files.
func (c *Client) ListFiles(ctx context.Context, q job.FileList) (job.FilePage, error) {
	return ask[job.FilePage](ctx, c, "ListFiles", q)
}

// ReadFile implements job.Files.
func (c *Client) ReadFile(ctx context.Context, r job.FileRange) (job.FileChunk, error) {
	return ask[job.FileChunk](ctx, c, "ReadFile", r)
}

// WriteFile implements job.Files.
func (c *Client) WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error) {
	return ask[job.FileWritten](ctx, c, "WriteFile", w)
}

// EditFile implements job.Files.
func (c *Client) EditFile(ctx context.Context, e job.FileEdit) (job.FileEdited, error) {
	return ask[job.FileEdited](ctx, c, "EditFile", e)
}

// ReadTree implements job.Files.
func (c *Client) ReadTree(ctx context.Context, f job.FileRef) (io.ReadCloser, error) {
	d, err := ask[treeDownload](ctx, c, "ReadTree", f)
	return d.archive, err
}

// WriteTree implements job.Files.
func (c *Client) WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error {
	return tell(ctx, c, "WriteTree", treeUpload{f.VM, f.Path, archive})
}

// Network implements job.VMs.
func (c *Client) Network(ctx context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	return ask[job.NetworkReport](ctx, c, "Network", q)
}

// DialVM implements job.VMs.
func (c *Client) DialVM(ctx context.Context, ref string, port int) (job.Tunnel, error) {
	ws, err := c.open(ctx, "DialVM", portRef{ref, port})
	if err != nil {
		return nil, err
	}
	return newTunnel(context.WithoutCancel(ctx), ws), nil
}

// Pools implements job.Pools.
func (c *Client) Pools(ctx context.Context) ([]job.PoolInfo, error) {
	return ask[[]job.PoolInfo](ctx, c, "Pools", none{})
}

// Pool implements job.Pools.
func (c *Client) Pool(ctx context.Context, name string) (job.PoolInfo, error) {
	return ask[job.PoolInfo](ctx, c, "Pool", poolRef{name})
}

// CreatePool implements job.Pools.
func (c *Client) CreatePool(ctx context.Context, p job.Pool) (job.PoolInfo, error) {
	return ask[job.PoolInfo](ctx, c, "CreatePool", p)
}

// ResizePool implements job.Pools.
func (c *Client) ResizePool(ctx context.Context, name string, size job.PoolSize) (job.PoolInfo, error) {
	return ask[job.PoolInfo](ctx, c, "ResizePool", poolSize{name, size})
}

// RemovePool implements job.Pools.
func (c *Client) RemovePool(ctx context.Context, name string) (job.PoolInfo, error) {
	return ask[job.PoolInfo](ctx, c, "RemovePool", poolRef{name})
}

// Engines implements job.Engines.
func (c *Client) Engines(ctx context.Context) ([]job.EngineInfo, error) {
	return ask[[]job.EngineInfo](ctx, c, "Engines", none{})
}

// Tokens implements job.Tokens.
func (c *Client) Tokens(ctx context.Context) ([]job.Token, error) {
	return ask[[]job.Token](ctx, c, "Tokens", none{})
}

// CreateToken implements job.Tokens.
func (c *Client) CreateToken(ctx context.Context, s job.TokenSpec) (job.NewToken, error) {
	return ask[job.NewToken](ctx, c, "CreateToken", s)
}

// RevokeToken implements job.Tokens.
func (c *Client) RevokeToken(ctx context.Context, ref string) ([]job.Token, error) {
	return ask[[]job.Token](ctx, c, "RevokeToken", tokenRef{ref})
}

// CheckHost implements job.Host.
func (c *Client) CheckHost(ctx context.Context) (job.HostReport, error) {
	return ask[job.HostReport](ctx, c, "CheckHost", none{})
}

// Nodes implements job.Host.
func (c *Client) Nodes(ctx context.Context) ([]job.NodeInfo, error) {
	return ask[[]job.NodeInfo](ctx, c, "Nodes", none{})
}

// CordonNode implements job.Host.
func (c *Client) CordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return ask[job.NodeInfo](ctx, c, "CordonNode", nodeRef{name})
}

// UncordonNode implements job.Host.
func (c *Client) UncordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return ask[job.NodeInfo](ctx, c, "UncordonNode", nodeRef{name})
}
