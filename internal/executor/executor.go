package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"linus/internal/claude"
	"linus/internal/job"
	"linus/internal/secret"
)

// Options of an Executor. Store, Provider, Guest, Owner and CallbackURL are
// required; a zero in the rest means the default named with it.
type Options struct {
	Store    Store
	Provider job.Provider
	Guest    Guest
	Log      *slog.Logger // slog.Default()

	Owner       string                                // this installation's id, the VMs' linus-owner
	CallbackURL func(context.Context) (string, error) // what VMs are told; "" where they cannot call it
	// CallbackAddr is where callbacks are listened for, "host:port" for this
	// machine itself: the end of tunnels from VMs. Nil: no tunnels.
	CallbackAddr func() string
	// Secrets returns the values of named secrets. Errors are *secret.Error. Nil:
	// there are none.
	Secrets func(names []string) ([]secret.Value, error)
	// Keys log in to the VMs. Nil: the Provider's, one for all.
	Keys Keys
	// Allow says whether a client may have such a job at all, before anything is
	// made or looked up for it. The manifest has every default. Nil: yes.
	Allow func(s job.Submission) error
	// Admit says whether a client may have one more job, given what it has already:
	// jobs that have not ended, and those whose VM is not gone. Nil: yes.
	Admit func(has []job.Job, next job.Manifest) error
	// Observer is told what happens. Nil: nobody.
	Observer job.Observer

	Defaults           job.Defaults
	MaxJobs            int           // jobs that hold a VM at once; 4
	MaxOutput          int64         // bytes kept of each stream; 10 MiB
	HeartbeatThreshold time.Duration // silence after which a job is lost; 2 min
	CleanupInterval    time.Duration // between two tries to finish what could not be finished; 30 s
	SweepInterval      time.Duration // between two searches for forgotten VMs and old jobs; 10 min
	Retention          time.Duration // after which an ended job is forgotten; 0: never
	Lease              time.Duration // after a job's timeout, until the host destroys its VM by itself; 0: never
	HeartbeatInterval  time.Duration // between two heartbeats of a runner; 10 s
	// CollectPatience is how long a VM that does not answer is asked for the
	// output, and for each file; twice that all together, beside what the bytes
	// need on a slow line. A tenth of it where the job was cancelled or lost. 3 min.
	CollectPatience time.Duration
	// PlacePatience is how long a VM may take to be given a job, beside what its
	// files need on a slow line, and then to start it. 10 min.
	PlacePatience time.Duration
	Artifacts     job.ArtifactLimits // 1000 files, 100 MB each, 500 MB together
}

// Executor runs jobs. Its methods may be called from any goroutine.
type Executor struct {
	o    Options
	wake chan struct{} // something to do for the dispatcher
	done chan struct{} // the dispatcher and all its jobs have ended

	access   access     // who may enter or work on a persistent VM
	claiming sync.Mutex // held while an address and a host key are taken for a VM's
	leaving  sync.Mutex // held while a VM that is left alone is destroyed after all, or let go of

	mu       sync.Mutex
	waiting  []string                 // pending jobs in order of submission
	runs     map[string]*run          // jobs being worked on
	leftover int                      // unfinished jobs nobody is working on, as last seen
	expiring int                      // persistent VMs that are to go some day, as last seen
	look     bool                     // for unfinished jobs nobody is working on, at once
	watchers map[string]chan struct{} // closed at the next change of a job
	stop     context.CancelCauseFunc  // ends the engine; nil before Start

	// begin works in a goroutine of the engine, under its context; nil unless the
	// engine runs.
	begin func(work func(running context.Context))
	work  sync.WaitGroup // all goroutines of the engine but the dispatcher

	deaf atomic.Int64 // jobs whose task is being listened for in vain
}

// New makes an Executor; nothing runs before Start.
func New(o Options) *Executor {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.MaxJobs = cmp.Or(o.MaxJobs, 4)
	o.MaxOutput = cmp.Or(o.MaxOutput, 10<<20)
	o.HeartbeatThreshold = cmp.Or(o.HeartbeatThreshold, 2*time.Minute)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, 10*time.Second)
	o.CollectPatience = cmp.Or(o.CollectPatience, 3*time.Minute)
	o.PlacePatience = cmp.Or(o.PlacePatience, 10*time.Minute)
	o.Artifacts.Files = cmp.Or(o.Artifacts.Files, 1000)
	o.Artifacts.Each = cmp.Or(o.Artifacts.Each, 100<<20)
	o.Artifacts.All = cmp.Or(o.Artifacts.All, 500<<20)
	o.CleanupInterval = cmp.Or(o.CleanupInterval, 30*time.Second)
	o.SweepInterval = cmp.Or(o.SweepInterval, 10*time.Minute)
	return &Executor{
		o:        o,
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
		runs:     map[string]*run{},
		watchers: map[string]chan struct{}{},
	}
}

// Start adopts every unfinished job at the phase it was in and begins to work.
// ctx's values are kept, its end is not: Close ends the work.
func (e *Executor) Start(ctx context.Context) error {
	unfinished, err := e.o.Store.Unfinished(ctx)
	if err != nil {
		return fmt.Errorf("find unfinished jobs: %w", err)
	}
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	e.mu.Lock()
	e.stop = stop
	e.begin = func(work func(context.Context)) { e.work.Go(func() { work(running) }) }
	e.mu.Unlock()
	e.adopt(running, unfinished) //nolint:contextcheck // the engine outlives the call that starts it
	go e.dispatch(running)       //nolint:contextcheck // as above
	return nil
}

// Close stops following jobs and waits for that. Tasks in VMs go on; the next
// Start adopts them.
func (e *Executor) Close(ctx context.Context) error {
	e.mu.Lock()
	stop := e.stop
	e.begin = nil
	e.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop(job.ErrDetach)
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop following jobs: %w", ctx.Err())
	}
}

// spawn works in a goroutine, which outlives the caller and ends with the engine.
func (e *Executor) spawn(work func(running context.Context)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.begin == nil {
		return errors.New("the engine does not run")
	}
	e.begin(work)
	return nil
}

// Idle reports whether no job is unfinished, and no VM waits for its time to be over.
func (e *Executor) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.waiting) == 0 && len(e.runs) == 0 && e.leftover == 0 && e.expiring == 0 && !e.access.busy()
}

// Job returns what is known of a job. While it waits, Progress says for what.
func (e *Executor) Job(ctx context.Context, id string) (job.Job, error) {
	j, err := e.o.Store.Job(ctx, id)
	if err != nil {
		return job.Job{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if place := slices.Index(e.waiting, id); place >= 0 && e.slots() >= e.o.MaxJobs {
		j.Progress = fmt.Sprintf("waiting: %d of %d slots in use, %d jobs ahead", e.o.MaxJobs, e.o.MaxJobs, place)
	}
	return j, nil
}

// List returns a page of jobs, newest first.
func (e *Executor) List(ctx context.Context, f job.Filter) (job.Page, error) {
	return e.o.Store.List(ctx, f)
}

// CheckHost looks whether the host can run jobs.
func (e *Executor) CheckHost(ctx context.Context) (job.HostReport, error) {
	return e.o.Provider.Check(ctx)
}

// Result returns what a job came to, or *job.NotCompleteError. Where an agent
// told what it did, the result's stdout is the text it ended with; all it told
// is Output's.
func (e *Executor) Result(ctx context.Context, id string) (job.Result, error) {
	j, err := e.o.Store.Job(ctx, id)
	if err != nil {
		return job.Result{}, err
	}
	if !j.Status.Terminal() {
		return job.Result{}, &job.NotCompleteError{Status: j.Status}
	}
	r := job.Result{
		JobID: j.ID, Status: j.Status, Reason: j.Outcome.Reason, ExitCode: j.Outcome.ExitCode,
		Error: j.Outcome.Error, StdoutInfo: j.Stdout, StderrInfo: j.Stderr, SkippedArtifacts: j.SkippedArtifacts,
	}
	if r.Duration = j.Outcome.Duration; r.Duration == 0 && !j.StartedAt.IsZero() {
		r.Duration = max(0, j.Outcome.At.Sub(j.StartedAt))
	}
	if r.Stdout, err = e.o.Store.Output(ctx, id, job.Stdout, 0, j.Stdout.Held); err != nil {
		return job.Result{}, fmt.Errorf("read the job's stdout: %w", err)
	}
	if text, ok := claude.Result(r.Stdout); ok && narrates(j.Manifest) {
		n := int64(len(text))
		r.Stdout, r.StdoutInfo = []byte(text), job.OutputInfo{Held: n, Total: n, Incomplete: j.Stdout.Incomplete, Why: j.Stdout.Why}
	}
	if r.Stderr, err = e.o.Store.Output(ctx, id, job.Stderr, 0, j.Stderr.Held); err != nil {
		return job.Result{}, fmt.Errorf("read the job's stderr: %w", err)
	}
	return r, nil
}

var (
	errCancelled = errors.New("cancelled by user")
	errKilled    = errors.New("killed by user")
	errCut       = errors.New("collecting was cancelled by user")
)

// Cancel ends a job. It returns once that is decided; the task is stopped, its
// output collected and its VM destroyed right after. Of a task that has ended by
// itself it ends the collecting, cutGrace later: what is held then is kept, and
// said to be incomplete; how the job ended stays as it is. Cancelling again is fine until
// the end is reached, then it is job.ErrCompleted.
func (e *Executor) Cancel(ctx context.Context, id string) error {
	return e.end(ctx, id, job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, Error: "Cancelled by user"}, "", errCancelled)
}

// end decides a job by a caller's wish and wakes who works on it. signal is
// what its task gets, TERM when empty.
func (e *Executor) end(ctx context.Context, id string, outcome job.Outcome, signal string, cause error) error {
	outcome.At = now()
	cut := false
	_, err := e.update(ctx, id, func(j *job.Job) ([]job.Event, error) {
		cut = false
		switch {
		case j.Decide(outcome):
			j.StopSignal, j.EndedBy, j.Silence = signal, job.ClientFrom(ctx), job.Silence{}
			return []job.Event{decided(outcome)}, nil
		case !j.Status.Terminal() && j.Outcome.Reason == outcome.Reason:
			return nil, nil
		case !j.Status.Terminal() && j.Kind != job.KindVM && outcome.Reason == job.ReasonCancelled:
			cut = true
			if j.CollectCut {
				return nil, nil
			}
			j.CollectCut, j.EndedBy = true, cmp.Or(j.EndedBy, job.ClientFrom(ctx))
			return []job.Event{{Kind: job.EventWarning, Phase: "collect", Text: errCut.Error() + ": what is held is kept"}}, nil
		default:
			return nil, job.ErrCompleted
		}
	})
	if err != nil {
		return err
	}
	e.o.Log.Info("job ended by request", "job_id", id, "reason", outcome.Reason, "collecting", cut)
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[id]
	switch {
	case r != nil && cut && r.cut != nil:
		r.cut()
	case r != nil && !cut:
		r.cancel(cause)
	}
	e.poke()
	return nil
}

// Watch returns the events after the given sequence number as soon as there
// are any; none when ctx ends, or when the job is done and all are told.
func (e *Executor) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	for {
		changed, live := e.watch(id)
		events, err := e.o.Store.Events(ctx, id, after)
		if err != nil {
			return nil, job.Job{}, err
		}
		j, err := e.Job(ctx, id) // read after: never older than its events
		if done := j.Done() && !live; err != nil || len(events) > 0 || done {
			if done || err != nil {
				e.unwatch(id)
			}
			return events, j, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, j, nil
		}
	}
}

// tell wakes those who watch the job. e.mu is held.
func (e *Executor) tell(id string) {
	if c := e.watchers[id]; c != nil {
		close(c)
		delete(e.watchers, id)
	}
}

// unwatch forgets those who watch a job nothing happens to any more; who still
// waits looks again.
func (e *Executor) unwatch(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(id)
}

// watch returns a channel that is closed at the job's next change, and whether
// somebody works on the job.
func (e *Executor) watch(id string) (changed <-chan struct{}, live bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[id] == nil {
		e.watchers[id] = make(chan struct{})
	}
	return e.watchers[id], e.runs[id] != nil
}

func become(j *job.Job, next job.Status) []job.Event {
	if err := j.Become(next); err != nil {
		return nil
	}
	return []job.Event{{Kind: job.EventStatus, Text: string(next)}}
}

func decided(o job.Outcome) job.Event {
	return job.Event{Kind: job.EventDecided, Text: string(o.Reason)}
}

func now() time.Time { return time.Now().UTC() }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
