package dispatch

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"linus/internal/handover"
	"linus/internal/job"
)

// Claude is a self-hosted environment of Claude Managed Agents.
type Claude struct {
	API         string // its URL; empty: Anthropic's
	Environment string // its ID
	Key         string // claims work; no VM gets it

	// MaxIdle is how long a session's VM waits for more work once the agent's turn has ended; 0: the
	// SDK's default of a minute.
	MaxIdle time.Duration
	// Worker is the program that serves a session in its VM: linus-worker, compressed with gzip.
	Worker []byte
}

// ServeClaude claims the environment's work until ctx ends, and serves each session in its own VM.
func ServeClaude(ctx context.Context, o Options, c Claude) error {
	return Serve(ctx, o, "claude", c.Environment, newClaude(o, c))
}

// claude is the environment's queue. The queue gives out an item again only if its claim was lost, so
// each claim is a separate piece of work.
type claude struct {
	Claude

	log    *slog.Logger
	queue  *queue
	polled Work // the last item polled, until it is claimed

	mu     sync.Mutex
	claims map[string]*claim // by the work's ID
}

// claim is a polled item of work with its lease.
type claim struct {
	*claimed
	lease *lease
}

func newClaude(o Options, c Claude) *claude {
	return &claude{Claude: c, log: o.Log, queue: newQueue(c.API, c.Environment, c.Key, o.Name), claims: map[string]*claim{}}
}

// divider separates an item's ID from the suffix that makes the claim's ID unique.
const divider = "+"

func itemOf(w Work) string {
	item, _, _ := strings.Cut(w.ID, divider)
	return item
}

func (*claude) takes() {}

func (c *claude) labels(w Work) map[string]string {
	return map[string]string{labelEnvironment: c.Environment, labelSession: w.Title, labelWork: itemOf(w)}
}

func (c *claude) of(w Work) *claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claims[w.ID]
}

func (c *claude) forget(w Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.claims, w.ID)
}

// Task unpacks the worker and becomes it.
func (*claude) Task() string {
	return `# Serves a session of Claude Managed Agents.
dir=/tmp/$name
gzip -d "$dir/worker.gz"
chmod 0700 "$dir/worker"
exec "$dir/worker" "$item"
`
}

// Waiting polls for an item of work. The poll itself waits for up to a second.
func (c *claude) Waiting(ctx context.Context) ([]Work, error) {
	c.forget(c.polled) // invalid work: the dispatcher has not claimed it
	item, err := c.queue.poll(ctx)
	if err != nil && !passes(err) {
		err = &Fatal{fmt.Errorf("claim work of environment %s: %w", c.Environment, err)}
	}
	if item == nil || err != nil {
		return nil, err
	}
	w := Work{ID: item.ID + divider + rand.Text()[:6], Title: item.Data.ID}
	c.polled = w
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[w.ID] = &claim{claimed: item, lease: newLease(c.queue, item.ID, c.log.With("work_id", item.ID))}
	return []Work{w}, nil
}

// Claim acknowledges an item and starts its lease.
func (c *claude) Claim(ctx context.Context, w Work) (ours bool, err error) {
	item := c.of(w)
	c.polled = Work{}
	defer func() {
		if !ours {
			c.forget(w)
		}
	}()
	if err := c.queue.ack(ctx, item.ID); err != nil { // it is unknown who has the item now
		item.lease.stop(ctx)
		return false, fmt.Errorf("acknowledge %s: %w", item.ID, err)
	}
	switch {
	case item.Data.Type != "session": // a health check: claiming it is enough
		item.lease.stop(ctx)
		return false, nil
	case item.Secret == "":
		c.log.Error("the work has no secret of its own, and no VM gets the environment's key: it is stopped", "work_id", item.ID, "session_id", item.Data.ID)
		item.lease.stop(ctx)
		return false, nil
	}
	err = item.lease.beat(ctx)
	if errors.Is(err, ErrLost) {
		return false, nil
	}
	return err == nil, err
}

// Hold extends the lease until done is closed.
func (c *claude) Hold(ctx context.Context, s Session, done <-chan struct{}) error {
	item := c.of(s.Work)
	if item == nil { // from before a restart: its secret is gone
		return ErrLost
	}
	return item.lease.keep(ctx, done)
}

// Handover extends the lease once more, so that the worker starts with a full lease, and hands the lease
// over to the worker.
func (c *claude) Handover(ctx context.Context, s Session) (h Handover, err error) {
	item := c.of(s.Work)
	if item == nil {
		return h, ErrLost
	}
	if h.Tree, err = packed(s.Name, c.Worker); err != nil {
		return h, err
	}
	if err = item.lease.beat(ctx); err != nil {
		return h, err
	}
	h.Secret, err = json.Marshal(handover.Item{
		API: c.API, Environment: c.Environment, Work: item.ID, Session: item.Data.ID,
		Secret: item.Secret, LastHeartbeat: item.lease.last, MaxIdle: c.MaxIdle,
	})
	return h, err
}

// Release leaves the item to the queue: either its worker has stopped it, or the lease expires, and it is
// unknown here who gets the item then.
func (c *claude) Release(_ context.Context, s Session, _ *job.Outcome) error {
	c.forget(s.Work)
	return nil
}

// packed returns a tar archive of the directory dir with the worker in it.
func packed(dir string, worker []byte) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o700})
	if err == nil {
		err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + "/worker.gz", Mode: 0o600, Size: int64(len(worker))})
	}
	_, failed := w.Write(worker)
	return &b, errors.Join(err, failed, w.Close())
}
