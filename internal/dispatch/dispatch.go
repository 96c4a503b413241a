// Package dispatch serves foreign work queues with jobs, so that each piece of work has its own VM: it
// claims work, has an engine run a job for it, hands the work over and follows the job to its end. It is
// a client of an engine like any other, and knows neither commands nor hosts. A queue's key stays in the
// dispatcher: a VM gets only what its own session needs, in a file in memory.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
)

// Engine is the part of an engine that a dispatcher uses.
type Engine interface {
	Caller(ctx context.Context) (job.Principal, error)
	Plan(ctx context.Context, s job.Submission) ([]string, error)
	Submit(ctx context.Context, s job.Submission) (job.Job, error)
	Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error)
	Cancel(ctx context.Context, id string) error
	List(ctx context.Context, f job.Filter) (job.Page, error)
	WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error)
	WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error
	ReportDispatcher(ctx context.Context, d job.Dispatcher) (job.Dispatcher, error)
}

// Options are common to all dispatchers.
type Options struct {
	Engine   Engine
	Name     string       // of this dispatcher, which finds its sessions by it
	Manifest job.Manifest // common to all its jobs: the VM and what it may reach
	Shapes   []Shape      // empty: Manifest is for all work
	Sessions int          // maximum at the same time
	Keep     int          // how many VMs of the queue's sessions may be kept; 0: job.DefaultKeep
	Log      *slog.Logger

	// Every is the pause between polls of a queue in which nothing waits and that announces nothing
	// itself; 0: two seconds.
	Every time.Duration

	// CoolDown is the pause before another session takes the place of a failed one, and before the first
	// retry of the same work, with growing pauses after that; 0: half a minute.
	CoolDown time.Duration

	// Drain is how long sessions may continue once the dispatcher is ending; Hurry cuts that short.
	Drain time.Duration
	Hurry <-chan struct{}
}

// Shape is the common part of the jobs for work with a label. The first shape that matches counts.
type Shape struct {
	Label    string
	Manifest job.Manifest
}

// Labels of jobs, for people. Sessions are found by their submission, not by labels.
const (
	labelBy          = "dispatch/by" // the dispatcher's name
	labelQueue       = "dispatch/queue"
	labelEnvironment = "dispatch/environment" // the queue, if it is an environment
	labelSession     = "dispatch/session"
	labelWork        = "dispatch/work" // ID of the queue's item
)

// labelled is a queue whose jobs have other labels than labelQueue and labelWork.
type labelled interface {
	labels(w Work) map[string]string
}

const (
	retryPause  = 5 * time.Second // before the engine is asked again
	cleanUpTime = 30 * time.Second
)

// StayError lists the jobs that keep running after their dispatcher has ended.
type StayError struct{ Jobs []string }

func (e *StayError) Error() string {
	return fmt.Sprintf("%d jobs keep running without their dispatcher; one of the same name follows them again: %s", len(e.Jobs), strings.Join(e.Jobs, ", "))
}

type dispatcher struct {
	Options

	kind, queue string
	q           Queue
	began       time.Time

	odd  int  // invalid pieces of work at the last poll
	many bool // more than maxWaiting waited at the last poll

	slots    chan struct{} // one for each session
	ending   <-chan struct{}
	held     chan struct{} // closed once the engine has allowed the dispatcher to take work
	sessions sync.WaitGroup

	mu     sync.Mutex
	taken  map[string]bool   // IDs of work that has a session here
	jobs   map[string]bool   // IDs of jobs that are followed
	failed map[string]failed // work that could not be served, by ID
	told   job.Dispatcher    // last state: what waits, or why that is unknown
	counts map[job.Reason]int
}

type failed struct {
	times int
	until time.Time
}

// run works until ctx ends, and then waits for the sessions, for Drain at most.
func (d *dispatcher) run(ctx context.Context) error {
	for _, m := range d.manifests() {
		m.Task = "true"
		if _, err := d.Engine.Plan(ctx, job.Submission{Manifest: d.complete(m, Work{ID: "any"})}); err != nil {
			return err // each session would fail with it
		}
	}
	ctx, drain := context.WithCancel(ctx)
	defer drain()
	sessions, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	d.ending = ctx.Done()
	last := d.reports(ctx, drain)
	err := d.claim(ctx, sessions)
	ended := make(chan struct{})
	go func() {
		d.sessions.Wait()
		close(ended)
	}()
	if err == nil {
		d.Log.Info("no more work is taken; waiting for the sessions, until interrupted again", "sessions", len(d.slots), "at_most", d.Drain)
		select {
		case <-ended:
		case <-time.After(d.Drain):
		case <-d.Hurry:
		}
	}
	giveUp(errors.New("the dispatcher has ended"))
	<-ended
	if len(d.jobs) > 0 {
		err = errors.Join(err, &StayError{slices.Sorted(maps.Keys(d.jobs))})
	}
	last(err)
	return err
}

func (d *dispatcher) manifests() []job.Manifest {
	if len(d.Shapes) == 0 {
		return []job.Manifest{d.Manifest}
	}
	var all []job.Manifest
	for _, s := range d.Shapes {
		all = append(all, s.Manifest)
	}
	return all
}

// shape returns the manifest for work; false: the work is not for this dispatcher.
func (d *dispatcher) shape(w Work) (job.Manifest, bool) {
	if len(d.Shapes) == 0 {
		return d.Manifest, true
	}
	for _, s := range d.Shapes {
		if slices.ContainsFunc(w.Labels, func(label string) bool { return strings.EqualFold(label, s.Label) }) {
			return s.Manifest, true
		}
	}
	return job.Manifest{}, false
}

// begin runs a session. Its place is taken already.
func (d *dispatcher) begin(work string, session func()) {
	d.mu.Lock()
	d.taken[work] = true
	d.mu.Unlock()
	d.sessions.Go(func() {
		defer func() { <-d.slots }()
		defer func() {
			d.mu.Lock()
			delete(d.taken, work)
			d.mu.Unlock()
		}()
		session()
	})
}

// place takes a place for a session. It returns false once ctx has ended.
func (d *dispatcher) place(ctx context.Context) bool {
	select {
	case d.slots <- struct{}{}:
		if ctx.Err() == nil {
			return true
		}
		<-d.slots
	case <-ctx.Done():
	}
	return false
}

// complete returns a shape's manifest with all that a job for work needs.
func (d *dispatcher) complete(m job.Manifest, w Work) job.Manifest {
	m.AgentType, m.StatusMode = job.AgentScript, job.StatusStreaming
	if m.Timeout == 0 {
		m.Timeout = job.MaxTimeout
	}
	m.Labels = maps.Clone(m.Labels)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	labels := map[string]string{labelQueue: job.QueueID(d.kind, d.queue), labelWork: w.ID}
	if q, is := d.q.(labelled); is {
		labels = q.labels(w)
	}
	labels[labelBy] = d.Name
	for key, value := range labels {
		if runes := []rune(value); len(runes) > 63 {
			value = string(runes[:63])
		}
		m.Labels[key] = value
	}
	return m
}

// submit submits a job as soon as there is room for it. The idempotency key identifies the job if the
// answer is lost.
func (d *dispatcher) submit(ctx context.Context, s job.Submission) (job.Job, error) {
	for failures := 0; ; {
		j, err := d.Engine.Submit(ctx, s)
		bad, of := errors.AsType[*job.FieldError](err)
		_, invalid := errors.AsType[*job.InvalidError](err)
		switch full := of && bad.Fault == job.FaultLimit; {
		case err == nil, of && !full, invalid, errors.Is(err, job.ErrNotAllowed), !full && failures == maxSubmits:
			return j, err
		case full:
			d.Log.Warn("no room for another job; trying again", "err", err)
		default:
			failures++
			d.Log.Warn("a job cannot be submitted at the moment", "err", err)
		}
		if err := sleep.For(ctx, retryPause); err != nil {
			return j, err
		}
	}
}

// memory is a directory that a VM keeps in memory.
const memory = "/dev/shm/"

// over is the suffix of the file that tells a VM that no item comes.
const over = ".over"

// awaits is the part of a task that waits for what deliver writes.
const awaits = `set -eu
name=NAME
item=` + memory + `$name
until [[ -e $item ]]; do
  if [[ -e $item` + over + ` ]] || ((SECONDS >= 300)); then
    echo 'no work has come: the dispatcher has ended' >&2
    exit 75
  fi
  sleep 0.2
done
`

// deliver writes the handover into the VM of a job, whose task awaits it: no log, database or disk has it.
func (d *dispatcher) deliver(ctx context.Context, s Session, h Handover) error {
	if h.Tree != nil {
		if err := d.Engine.WriteTree(ctx, job.FileRef{VM: s.Job, Path: "/tmp"}, h.Tree); err != nil {
			return fmt.Errorf("put the session's files into its VM: %w", err)
		}
	}
	_, err := d.Engine.WriteFile(ctx, job.FileWrite{VM: s.Job, Path: memory + s.Name, Data: h.Secret, Mode: "0600"})
	_, refused := errors.AsType[*job.FieldError](err)
	switch {
	case err == nil:
		return nil
	case refused, errors.Is(err, job.ErrNotFound), errors.Is(err, job.ErrNotAllowed):
		return fmt.Errorf("hand the work over to its VM: %w", err)
	}
	return fmt.Errorf("%w: %w", errUnsure, err)
}

// errUnsure means that the VM may have its work. If it does not, its task ends by itself.
var errUnsure = errors.New("the VM may have the work")

// noMore tells a VM that may not have its work that none comes any more. A VM without work then ends at
// once and not after five minutes.
func (d *dispatcher) noMore(ctx context.Context, s Session) {
	ctx, done := context.WithTimeout(ctx, askTime)
	defer done()
	if _, err := d.Engine.WriteFile(ctx, job.FileWrite{VM: s.Job, Path: memory + s.Name + over, Mode: "0600"}); err != nil {
		d.logOf(s).Warn("a VM may be waiting for its work, and cannot be told that none will come; if so, it ends within 5 minutes", "err", err)
	}
}

// follow waits for a job's end and returns the job. Until then, or if ctx ends first, the job is in d.jobs.
func (d *dispatcher) follow(ctx context.Context, id string) (job.Job, error) {
	d.mu.Lock()
	d.jobs[id] = true
	d.mu.Unlock()
	j, err := d.watch(ctx, id, job.OnlyEnd, func(j job.Job) bool { return j.Status.Terminal() })
	if err == nil || errors.Is(err, job.ErrNotFound) {
		d.mu.Lock()
		delete(d.jobs, id)
		d.mu.Unlock()
	}
	return j, err
}

// watch returns a job once wanted accepts it. The parameter after is that of Engine's Watch.
func (d *dispatcher) watch(ctx context.Context, id string, after int64, wanted func(job.Job) bool) (job.Job, error) {
	for {
		events, j, err := d.Engine.Watch(ctx, id, after)
		switch {
		case ctx.Err() != nil:
			return j, context.Cause(ctx)
		case errors.Is(err, job.ErrNotFound):
			return j, err
		case err != nil:
			d.Log.Warn("a job cannot be followed at the moment", "job_id", id, "err", err)
			if err := sleep.For(ctx, retryPause); err != nil {
				return j, err
			}
		case wanted(j):
			return j, nil
		}
		if len(events) > 0 {
			after = events[len(events)-1].Seq
		}
	}
}

// before returns the sessions of earlier processes of this dispatcher: those that are running, and the
// newest of those that have ended within the time that a session may take. It selects them by principal,
// too, since other principals' dispatchers may have the same name. It returns an error if the principal
// may not run a dispatcher.
func (d *dispatcher) before(ctx context.Context) (on, ended []job.Summary, err error) {
	me, err := d.Engine.Caller(ctx)
	if err == nil {
		err = me.Narrowed("a dispatcher", job.DispatchToolset)
	}
	if err != nil {
		return nil, nil, err
	}
	seen := map[string]bool{} // a job may have moved to its next status before the next list
	for _, status := range job.Statuses {
		f := job.Filter{Status: status, Queue: job.QueueID(d.kind, d.queue), Dispatcher: d.Name, Principal: me.Name, Limit: 200}
		if status.Terminal() {
			f.Since = time.Now().Add(-2 * job.MaxTimeout * time.Second)
		}
		for {
			page, err := d.Engine.List(ctx, f)
			if err != nil {
				return nil, nil, err
			}
			page.Jobs = slices.DeleteFunc(page.Jobs, func(j job.Summary) bool {
				again := seen[j.ID]
				seen[j.ID] = true
				return again || j.Session == nil
			})
			if status.Terminal() {
				ended = append(ended, page.Jobs...)
				break
			}
			on = append(on, page.Jobs...)
			if f.Cursor = page.Next; f.Cursor == "" {
				break
			}
		}
	}
	return on, ended, nil
}

// cancel cancels a job that is not needed, even after ctx has ended.
func (d *dispatcher) cancel(ctx context.Context, id string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer done()
	if err := d.Engine.Cancel(ctx, id); err != nil && !errors.Is(err, job.ErrCompleted) {
		d.Log.Warn("a job that is not needed cannot be cancelled", "job_id", id, "err", err)
	}
}

// coolDown waits for CoolDown, unless the dispatcher ends.
func (d *dispatcher) coolDown(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-d.ending:
	case <-time.After(d.CoolDown):
	}
}
