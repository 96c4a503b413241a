// Package dispatch serves queues of agents' sessions with jobs, so that each session has a VM of
// its own: it claims work, has an engine run a job for it, hands the work over and follows the
// job to its end. It is a client of an engine like any other, and knows neither commands nor
// hosts. What a queue's owner gives to who polls it, the environment's key, stays in it: VMs get
// what their own session needs, and that by a file in memory.
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
)

// Engine is what a dispatcher needs of one.
type Engine interface {
	Caller(ctx context.Context) (job.Principal, error)
	Plan(ctx context.Context, s job.Submission) ([]string, error)
	Submit(ctx context.Context, s job.Submission) (job.Job, error)
	Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error)
	Cancel(ctx context.Context, id string) error
	List(ctx context.Context, f job.Filter) (job.Page, error)
	WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error)
	WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error
}

// Options are what all dispatchers have.
type Options struct {
	Engine   Engine
	Name     string       // of this dispatcher: its jobs have it as a label
	Manifest job.Manifest // what its jobs have in common: their VM, and what they reach
	Sessions int          // at the same time
	Log      *slog.Logger

	// Drain is how long sessions may go on once the dispatcher is to end; Hurry ends that.
	Drain time.Duration
	Hurry <-chan struct{}
}

// Labels of jobs.
const (
	labelBy          = "dispatch/by"          // the dispatcher's name
	labelEnvironment = "dispatch/environment" // whose queue it is
	labelSession     = "dispatch/session"
	labelWork        = "dispatch/work" // the queue's item
)

const (
	retryPause  = 5 * time.Second  // before the engine is asked again
	failedPause = 30 * time.Second // before a session takes the place of one that could not begin
	cleanUpTime = 30 * time.Second
)

// StayError says which jobs go on though their dispatcher has ended.
type StayError struct{ Jobs []string }

func (e *StayError) Error() string {
	return fmt.Sprintf("%d jobs keep running without their dispatcher; one of the same name follows them again: %s", len(e.Jobs), strings.Join(e.Jobs, ", "))
}

type dispatcher struct {
	Options

	slots    chan struct{} // one for each session
	ending   <-chan struct{}
	sessions sync.WaitGroup

	mu   sync.Mutex
	jobs map[string]string // that are followed: what each serves
}

func newDispatcher(o Options) *dispatcher {
	return &dispatcher{Options: o, slots: make(chan struct{}, o.Sessions), jobs: map[string]string{}}
}

// run works until ctx ends, and then waits for the sessions, as long as it may.
func (d *dispatcher) run(ctx context.Context, work func(ctx, sessions context.Context) error) error {
	if _, err := d.Engine.Plan(ctx, job.Submission{Manifest: d.manifest("true", nil)}); err != nil {
		return err // or each session would meet it
	}
	sessions, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	d.ending = ctx.Done()
	err := work(ctx, sessions)
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
	return err
}

// begin runs a session in its place, which is taken.
func (d *dispatcher) begin(session func()) {
	d.sessions.Go(func() {
		defer func() { <-d.slots }()
		session()
	})
}

// place takes one for a session; false once ctx has ended.
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

// manifest is that of a job of this dispatcher.
func (d *dispatcher) manifest(task string, labels map[string]string) job.Manifest {
	m := d.Manifest
	m.AgentType, m.Task, m.StatusMode = job.AgentScript, task, job.StatusStreaming
	if m.Timeout == 0 {
		m.Timeout = job.MaxTimeout
	}
	m.Labels = maps.Clone(m.Labels)
	if m.Labels == nil {
		m.Labels = map[string]string{}
	}
	m.Labels[labelBy] = d.Name
	maps.Copy(m.Labels, labels)
	return m
}

// submit submits a job, as soon as there is room for it.
func (d *dispatcher) submit(ctx context.Context, key string, m job.Manifest) (job.Job, error) {
	for {
		j, err := d.Engine.Submit(ctx, job.Submission{Manifest: m, IdempotencyKey: key, Client: "dispatch"})
		full, is := errors.AsType[*job.FieldError](err)
		if !is || full.Fault != job.FaultLimit {
			return j, err
		}
		d.Log.Warn("no room for another job; trying again", "err", err)
		if err := pause(ctx, retryPause); err != nil {
			return j, err
		}
	}
}

// launch submits a job, and returns its ID once its task runs; the ID with an error, too, where
// there is one.
func (d *dispatcher) launch(ctx context.Context, key string, m job.Manifest) (id string, err error) {
	j, err := d.submit(ctx, key, m)
	if err != nil {
		return "", err
	}
	id = j.ID
	j, err = d.watch(ctx, id, 0, func(j job.Job) bool { return j.Status == job.Running || j.Status.Terminal() })
	if err == nil && j.Outcome != nil {
		err = fmt.Errorf("its job has ended: %s", j.Outcome.Error)
	}
	return id, err
}

// memory is where a VM's files are in its memory.
const memory = "/dev/shm/"

// awaits is how a task waits for what deliver brings.
const awaits = `set -eu
item=` + memory + `NAME
until [[ -e $item ]]; do
  if ((SECONDS >= 300)); then
    echo 'nothing has come within 5 minutes: the dispatcher has ended' >&2
    exit 75
  fi
  sleep 0.2
done
`

// deliver brings what no log, database or disk has into the VM of a job, whose task awaits it.
func (d *dispatcher) deliver(ctx context.Context, id, name string, data []byte) error {
	if _, err := d.Engine.WriteFile(ctx, job.FileWrite{VM: id, Path: memory + name, Data: data, Mode: "0600"}); err != nil {
		return fmt.Errorf("hand the work over to its VM: %w", err)
	}
	return nil
}

// follow returns a job that has ended. Until then, or if ctx ends first, it is among those that
// go on.
func (d *dispatcher) follow(ctx context.Context, id, serves string) (job.Job, error) {
	d.mu.Lock()
	d.jobs[id] = serves
	d.mu.Unlock()
	j, err := d.watch(ctx, id, job.OnlyEnd, func(j job.Job) bool { return j.Status.Terminal() })
	if err == nil || errors.Is(err, job.ErrNotFound) {
		d.mu.Lock()
		delete(d.jobs, id)
		d.mu.Unlock()
	}
	return j, err
}

// watch returns a job once it is as wanted: after is as of Engine's Watch.
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
			if err := pause(ctx, retryPause); err != nil {
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

// unfinished returns the jobs with these labels that have not ended: this dispatcher's
// principal's alone, for whoever may submit a job may give it any label.
func (d *dispatcher) unfinished(ctx context.Context, labels ...string) (all []job.Summary, err error) {
	me, err := d.Engine.Caller(ctx)
	if err != nil {
		return nil, err
	}
	for _, status := range []job.Status{job.Pending, job.Provisioning, job.Running} {
		f := job.Filter{Status: status, Label: labels, Principal: me.Name, Limit: 200}
		for {
			page, err := d.Engine.List(ctx, f)
			if err != nil {
				return nil, err
			}
			all = append(all, page.Jobs...)
			if f.Cursor = page.Next; f.Cursor == "" {
				break
			}
		}
	}
	return all, nil
}

// takeUp has the jobs that go on from before followed, each in a place of its own; false if ctx has
// ended meanwhile.
func (d *dispatcher) takeUp(ctx context.Context, environment string, follow func(job.Summary)) (bool, error) {
	before, err := d.unfinished(ctx, labelEnvironment+"="+environment, labelBy+"="+d.Name)
	for _, j := range before {
		if !d.place(ctx) {
			return false, nil
		}
		d.begin(func() { follow(j) })
	}
	return err == nil, err
}

// cancel ends a job that nobody needs, also after ctx has ended.
func (d *dispatcher) cancel(ctx context.Context, id string) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer done()
	if err := d.Engine.Cancel(ctx, id); err != nil && !errors.Is(err, job.ErrCompleted) {
		d.Log.Warn("a job that is not needed cannot be cancelled", "job_id", id, "err", err)
	}
}

// coolDown waits before a session takes the place of one that could not begin.
func (d *dispatcher) coolDown(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-d.ending:
	case <-time.After(failedPause):
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
