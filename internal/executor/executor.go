package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"linus/internal/capture"
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
	// unfinished jobs, and those whose VM is not gone. Nil: yes.
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
	o        Options
	captures capture.Options // of every job

	wake  chan struct{} // slots or waiting jobs have changed
	again chan struct{} // a job that was done is not any more
	done  chan struct{} // the dispatcher and all its jobs have ended

	access   access     // who may enter or work on a persistent VM
	claiming sync.Mutex // held while an address and a host key are taken for a VM's
	leaving  sync.Mutex // held while a VM that is left alone is destroyed after all, or let go of

	mu       sync.Mutex
	waiting  []string                 // pending jobs in order of submission
	runs     map[string]*run          // jobs being worked on
	leftover int                      // unfinished jobs nobody is working on, as last seen
	expiring int                      // persistent VMs that are to go some day, as last seen
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
	if o.Secrets == nil {
		o.Secrets = secret.New(secret.Options{}).Resolve
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	e := &Executor{
		o:        o,
		wake:     make(chan struct{}, 1),
		again:    make(chan struct{}, 1),
		done:     make(chan struct{}),
		runs:     map[string]*run{},
		watchers: map[string]chan struct{}{},
	}
	e.captures = capture.Options{
		Store: o.Store, Guest: o.Guest, Log: o.Log, Secrets: e.secrets, Update: e.update,
		MaxOutput: o.MaxOutput, Artifacts: o.Artifacts, Patience: o.CollectPatience,
	}
	return e
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
