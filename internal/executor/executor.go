package executor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/secret"
)

// Options configure an Executor. Stores, Provider, Fleet, Runner and CallbackURL are required; for
// the others zero means the documented default.
type Options struct {
	Stores
	Provider job.Provider
	Fleet    Fleet  // must use the same store and Provider
	Tokens   Tokens // of the API; nil: none
	// Credentials are the credentials that jobs may name; nil: none.
	Credentials Credentials
	HostTests   HostTests // nil: none
	Schedules   Schedules // nil: none
	// Repositories are the repositories of jobs. Nil: no job may have one.
	Repositories Repositories
	Runner       Runner
	Log          *slog.Logger // default: slog.Default()

	CallbackURL func(context.Context) (string, error) // URL for callbacks; "" if VMs cannot reach it
	// CallbackAddr returns the "host:port" on this machine that serves callbacks: the end of
	// tunnels from VMs. Nil: no tunnels.
	CallbackAddr func() string
	// Secrets returns the values of named secrets. Errors are *secret.Error. Nil: no secrets.
	Secrets func(names []string) ([]secret.Value, error)
	// Allow returns an error if a client may not submit this job, before anything is created or
	// looked up for it. The manifest has every default. Nil: all are allowed.
	Allow func(s job.Submission) error
	// Webhooks are messages about ended jobs. Nil: none.
	Webhooks *Webhooks
	// Proxy returns a job's proxy. Nil: there is no proxy, and VMs restricted to names reach nothing.
	Proxy     func(ctx context.Context, o ProxyOptions) (NamesProxy, error)
	Connected func(job.Connection) // called for each connection; may be nil
	// Changes carries the changes made in the Stores and the Fleet. Nil: none are reported.
	Changes *job.Changes
	// Observer is called with each happening, one at a time. May be nil.
	Observer job.Observer

	// Engines shows this engine the others that share the store. Nil: the store is not shared.
	Engines Engines
	About   job.EngineInfo // describes this engine to people
	// Predecessor is the ID of an engine that is known to be dead: its jobs are taken over without
	// waiting for its lease to end.
	Predecessor string
	Joined      func(id string) // called with the ID under which this engine joined; may be nil
	// Fence makes the host refuse all further commands of a dead engine. Nil: no fence is needed.
	Fence       func(ctx context.Context, engine string) error
	EngineLease time.Duration // time without a renewal after which an engine counts as dead; 15 s

	Defaults           job.Defaults
	MaxJobs            int           // jobs with their own VM at a time; 4
	MaxOutput          int64         // bytes stored per stream; 10 MiB
	Spare              func() error  // returns an error if there is no space for another job; nil: there is always space
	HeartbeatThreshold time.Duration // silence after which a job is lost; 2 min
	CleanupInterval    time.Duration // between two attempts to finish a job that could not be finished; 30 s
	SweepInterval      time.Duration // between two searches for old jobs; 10 min
	Retention          time.Duration // time after which an ended job is deleted; 0: never
	HeartbeatInterval  time.Duration // between two heartbeats of a runner; 10 s
	// CollectPatience is how long to try to get the output, and each file, from a VM that does not
	// respond. The limit for everything together is twice that, plus the time the bytes need on a
	// slow connection. A cancelled or lost job gets a tenth of it. 3 min.
	CollectPatience time.Duration
	// PushTimeout is how long copying a job into a VM may take, in addition to the time its files
	// need on a slow connection. Starting the job then gets the same time. 10 min.
	PushTimeout time.Duration
	Artifacts   job.ArtifactLimits // 1000 files, 100 MB each, 500 MB together
}

// Executor runs jobs. Its methods may be called from any goroutine.
type Executor struct {
	verbs      // the Fleet's
	tokenVerbs // the Tokens'
	credentialVerbs
	hostTestVerbs
	scheduleVerbs
	o        Options
	captures capture.Options

	wake         chan struct{} // slots or waiting jobs changed
	reopened     chan struct{} // a finished job is unfinished again
	leaseDoubted chan struct{} // the lease may be lost
	done         chan struct{} // closed when everything that Start began has ended
	notices      chan struct{} // there is a webhook to deliver
	undelivered  atomic.Bool   // some webhooks were undelivered at the last look

	leaseUntil time.Time // how long the lease certainly lasts; only keepLease uses it, and enroll before that

	mu            sync.Mutex
	id            string               // of this engine among those that share the store; empty: not shared
	draining      bool                 // this engine takes no more jobs
	full          bool                 // the installation had no free slot at the last look
	problems      map[string]string    // why dead engines' jobs cannot be taken over, by engine ID
	reportsPassed map[string]time.Time // when reports were last passed on to other engines, by job or endKey
	queue         queue                // jobs without a run
	demands       int64                // sequence number of the last demand passed to the fleet
	runs          map[string]*run
	unscanned     int                     // jobs that may be unfinished but have no run and no place in the queue
	watchers      map[string]*watched     // by job ID or endKey; only jobs that somebody watches
	stop          context.CancelCauseFunc // ends the engine; nil before Start

	work sync.WaitGroup // all goroutines of the engine except the dispatcher and those the fleet began

	unanswered atomic.Int64 // jobs with an unanswered check
}

// New returns an Executor. It does nothing before Start.
func New(o Options) *Executor {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.MaxJobs = cmp.Or(o.MaxJobs, 4)
	o.MaxOutput = cmp.Or(o.MaxOutput, 10<<20)
	o.HeartbeatThreshold = cmp.Or(o.HeartbeatThreshold, 2*time.Minute)
	o.HeartbeatInterval = cmp.Or(o.HeartbeatInterval, 10*time.Second)
	o.CollectPatience = cmp.Or(o.CollectPatience, 3*time.Minute)
	o.PushTimeout = cmp.Or(o.PushTimeout, 10*time.Minute)
	o.Artifacts.Files = cmp.Or(o.Artifacts.Files, 1000)
	o.Artifacts.Each = cmp.Or(o.Artifacts.Each, 100<<20)
	o.Artifacts.All = cmp.Or(o.Artifacts.All, 500<<20)
	o.CleanupInterval = cmp.Or(o.CleanupInterval, 30*time.Second)
	o.SweepInterval = cmp.Or(o.SweepInterval, 10*time.Minute)
	o.EngineLease = cmp.Or(o.EngineLease, 15*time.Second)
	if o.Secrets == nil {
		o.Secrets = secret.New(secret.Options{}).Resolve
	}
	if o.Observer == nil {
		o.Observer = func(job.Happening) {}
	}
	o.Changes = cmp.Or(o.Changes, &job.Changes{})
	e := &Executor{
		verbs:           o.Fleet,
		tokenVerbs:      o.Tokens,
		credentialVerbs: o.Credentials,
		hostTestVerbs:   o.HostTests,
		scheduleVerbs:   o.Schedules,
		o:               o,
		wake:            make(chan struct{}, 1),
		reopened:        make(chan struct{}, 1),
		leaseDoubted:    make(chan struct{}, 1),
		reportsPassed:   map[string]time.Time{},
		done:            make(chan struct{}),
		notices:         make(chan struct{}, 1),
		runs:            map[string]*run{},
		watchers:        map[string]*watched{},
	}
	o.Changes.Read(e.heed)
	e.captures = capture.Options{
		Store: o.Captured, Runner: o.Runner, Log: o.Log, Secrets: e.hidden, Update: e.update,
		MaxOutput: o.MaxOutput, Artifacts: o.Artifacts, Patience: o.CollectPatience,
	}
	return e
}

// Start adopts every unfinished job in its current phase and begins to work. The work has ctx's
// values but not its cancellation: Close ends it.
func (e *Executor) Start(ctx context.Context) error {
	left, err := e.enroll(ctx)
	if err != nil {
		return fmt.Errorf("find unfinished jobs: %w", err)
	}
	if err := e.o.Fleet.LoadPools(ctx); err != nil {
		return err
	}
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	e.mu.Lock()
	e.stop = stop
	e.mu.Unlock()
	//nolint:contextcheck // the engine outlives the call that starts it
	go e.serve(running, e.open(running, left))
	return nil
}

// Close stops following jobs and waits until that is done. Tasks in VMs keep running; the next
// Start adopts them.
func (e *Executor) Close(ctx context.Context) error {
	e.mu.Lock()
	stop := e.stop
	e.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop(job.ErrDetach)
	select {
	case <-e.done:
		return e.o.Changes.Wait(ctx)
	case <-ctx.Done():
		return fmt.Errorf("stop following jobs: %w", ctx.Err())
	}
}

// Idle reports whether no job is unfinished, no VM or pool needs work, and no webhook is undelivered.
func (e *Executor) Idle() bool {
	e.mu.Lock()
	idle := e.queue.empty() && len(e.runs) == 0 && e.unscanned == 0
	e.mu.Unlock()
	return idle && e.o.Changes.Idle() && !e.o.Fleet.Busy() && !e.undelivered.Load() && (e.o.HostTests == nil || !e.o.HostTests.Busy()) && (e.o.Schedules == nil || !e.o.Schedules.Busy())
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
