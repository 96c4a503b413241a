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
	"time"

	"linus/internal/handover"
	"linus/internal/job"
)

// Claude is a self-hosted environment of Claude Managed Agents.
type Claude struct {
	API         string // its URL; empty: Anthropic's
	Environment string // its ID
	Key         string // that claims work; no VM gets it

	// MaxIdle is how long a session's VM waits for more once the agent's turn has ended; 0: the
	// SDK's minute.
	MaxIdle time.Duration
	// Worker is the program that serves a session in its VM, compressed by gzip: linus-worker.
	Worker []byte
}

// ServeClaude claims the environment's work until ctx ends, and serves each session in a VM of
// its own.
func ServeClaude(ctx context.Context, o Options, c Claude) error {
	s := &claude{dispatcher: newDispatcher(o), Claude: c, queue: newQueue(c.API, c.Environment, c.Key, o.Name)}
	return s.run(ctx, s.claim)
}

type claude struct {
	*dispatcher
	Claude

	queue    *queue
	failures int // in a row, of what claims
}

// idlePause is between polls of an empty queue, each of which waits for a second itself.
const idlePause = 2 * time.Second

// claimEnd is how long a poll that is under way may still claim an item: polled and not
// acknowledged, it would be stopped for good.
const claimEnd = 10 * time.Second

// claim takes up the sessions that go on from before, and then claims work.
func (c *claude) claim(ctx, sessions context.Context) error {
	on, err := c.takeUp(ctx, c.Environment, func(j job.Summary) {
		c.Log.Info("session continues", "session_id", j.Labels[labelSession], "job_id", j.ID)
		c.followToEnd(sessions, j.ID, j.Labels[labelWork], j.Labels[labelSession])
	})
	if !on {
		return err
	}
	polling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(claimEnd, stop) })()
	for c.place(ctx) {
		work, err := c.next(polling)
		if work != nil {
			c.begin(func() { c.serve(sessions, work) })
			continue
		}
		<-c.slots
		switch {
		case err == nil:
			c.failures = 0
			_ = pause(ctx, idlePause)
		case polling.Err() != nil: // ctx has ended
		case !passes(err):
			return fmt.Errorf("claim work of environment %s: %w", c.Environment, err)
		default:
			c.failures++
			c.Log.Warn("no work can be claimed at the moment", "err", err)
			_ = pause(ctx, backOff(c.failures))
		}
	}
	return nil
}

// next claims an item of work; nil: there is none.
func (c *claude) next(ctx context.Context) (*claimed, error) {
	w, err := c.queue.poll(ctx)
	if w == nil || err != nil {
		return nil, err
	}
	if err := c.queue.ack(ctx, w.ID); err != nil { // whose it is now nobody knows
		c.stop(ctx, w.ID)
		return nil, fmt.Errorf("acknowledge %s: %v", w.ID, err) //nolint:errorlint // of this item, not of the queue: another may be well
	}
	c.failures = 0
	return w, nil
}

// serve serves an item of work that was claimed.
func (c *claude) serve(ctx context.Context, work *claimed) {
	log := c.Log.With("work_id", work.ID, "session_id", work.Data.ID)
	switch {
	case work.Data.Type != "session": // a health check: that it is claimed is all it asks for
		c.stop(ctx, work.ID)
		return
	case work.Secret == "":
		log.Error("the work has no secret of its own, and no VM gets the environment's key: it is stopped")
		c.stop(ctx, work.ID)
		return
	}
	id, err := c.start(ctx, work, log)
	if err == nil {
		c.followToEnd(ctx, id, work.ID, work.Data.ID)
		return
	}
	if id != "" {
		c.cancel(ctx, id)
	}
	if errors.Is(err, errStopped) {
		c.stop(ctx, work.ID)
	}
	log.Warn("the session does not begin here", "job_id", id, "err", err)
	if !errors.Is(err, errStopped) && !errors.Is(err, errLost) {
		// The queue gives it out again when its lease ends: a host that is down ends no session.
		c.coolDown(ctx)
	}
}

// start keeps the lease of a claimed item while a VM is made, and hands both over to the worker
// in it. It returns the job's ID, if there is one, with an error, too.
func (c *claude) start(ctx context.Context, work *claimed, log *slog.Logger) (id string, err error) {
	l := newLease(c.queue, work.ID, log)
	if err := l.beat(ctx); err != nil {
		return "", err
	}
	if err := c.supersede(ctx, work.ID); err != nil {
		return "", err
	}
	name := "linus-dispatch-" + rand.Text()
	making, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	made, kept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(kept)
		if err := l.keep(ctx, made); err != nil {
			lose(err)
		}
	}()
	id, err = c.ready(making, name, work)
	close(made)
	<-kept
	if cause := context.Cause(making); cause != nil {
		err = cause
	}
	if err == nil {
		err = l.beat(ctx) // so that the worker has all the time there is
	}
	if err != nil {
		return id, err
	}
	data, err := json.Marshal(handover.Item{
		API: c.API, Environment: c.Environment, Work: work.ID, Session: work.Data.ID,
		Secret: work.Secret, LastHeartbeat: l.last, MaxIdle: c.MaxIdle,
	})
	if err != nil {
		return id, err
	}
	if err := c.deliver(ctx, id, name, data); err != nil {
		return id, err
	}
	log.Info("session is served", "job_id", id)
	return id, nil
}

// supersede ends jobs for an item that was claimed again: they have lost its lease. One that runs
// is let alone: its worker ends when it sees that, and would stop the item if it were cancelled.
func (c *claude) supersede(ctx context.Context, work string) error {
	before, err := c.unfinished(ctx, labelEnvironment+"="+c.Environment, labelWork+"="+work)
	for _, j := range before {
		if j.Status != job.Running {
			c.cancel(ctx, j.ID)
		}
	}
	return err
}

// ready returns the job of an item once its task runs and has the worker.
func (c *claude) ready(ctx context.Context, name string, work *claimed) (id string, err error) {
	m := c.manifest(strings.ReplaceAll(task, "NAME", name), map[string]string{
		labelEnvironment: c.Environment, labelSession: work.Data.ID, labelWork: work.ID,
	})
	if id, err = c.launch(ctx, name, m); err != nil {
		return id, err
	}
	archive, err := packed(name, c.Worker)
	if err == nil {
		err = c.Engine.WriteTree(ctx, job.FileRef{VM: id, Path: "/tmp"}, archive)
	}
	if err != nil {
		return id, fmt.Errorf("put the worker into the VM: %w", err)
	}
	return id, nil
}

// task waits for the worker and its work, and becomes the worker.
const task = "# Serves a session of Claude Managed Agents.\n" + awaits + `dir=/tmp/NAME
gzip -d "$dir/worker.gz"
chmod 0700 "$dir/worker"
exec "$dir/worker" "$item"
`

// packed is the worker as an archive that is unpacked in /tmp.
func packed(name string, worker []byte) (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := errors.Join(
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o700}),
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name + "/worker.gz", Mode: 0o600, Size: int64(len(worker))}),
	)
	_, failed := w.Write(worker)
	return &b, errors.Join(err, failed, w.Close())
}

// followToEnd follows a session's job to its end.
func (c *claude) followToEnd(ctx context.Context, id, work, session string) {
	log := c.Log.With("work_id", work, "session_id", session, "job_id", id)
	j, err := c.follow(ctx, id, session)
	if err != nil || j.Outcome == nil {
		return // it goes on without us, or was deleted
	}
	switch o := j.Outcome; {
	case o.Status == job.Success:
		log.Info("session has ended")
	case o.Reason == job.ReasonLost, o.ExitCode != nil && *o.ExitCode == handover.LeaseLost:
		log.Warn("the session's lease is lost: the queue may give the session to another dispatcher", "reason", o.Reason)
	default: // its worker has stopped the item, if it could; whose it is now nobody knows here
		log.Warn("session has failed", "reason", o.Reason, "err", o.Error)
		if o.Reason == job.ReasonExitStatus {
			c.coolDown(ctx)
		}
	}
}

// stop ends an item of work for good.
func (c *claude) stop(ctx context.Context, work string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer done()
	if err := c.queue.stop(ctx, work); err != nil {
		c.Log.Warn("an item of work cannot be stopped", "work_id", work, "err", err)
	}
}
