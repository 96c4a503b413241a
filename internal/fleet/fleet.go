// Package fleet owns the life of VMs: which VMs exist, which VM may have which address and host
// key, and what happens to VMs that cannot be destroyed. It records in the job's row what happens
// to a job's VM, but knows nothing about the life of jobs.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/term"
	"linus/internal/vm"
)

// Store stores VMs, keyed by the ID in their marker.
type Store interface {
	// VMs returns the VMs that are reserved, intended, created or left alone, oldest first.
	VMs(ctx context.Context) ([]vm.VM, error)
	// VM returns a VM, or job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	// UpdateVM changes a VM in a transaction and records the events with it; job.ErrNotFound.
	// change may be called again, with the VM's then current row.
	UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// GrowVM is UpdateVM for a change by which a VM takes mb more of its host's disk; what names
	// the use. The transaction counts what the VM's principal has, and fails with a *job.FieldError
	// if that would exceed the limits.
	GrowVM(ctx context.Context, of vm.VM, what string, mb int, within job.Limits, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// InsertVM adds a VM that no job makes. For a non-empty key that was used before, it returns
	// the first VM and false. The transaction counts what the VM's principal has, and fails with a
	// *job.FieldError if that would exceed the limits.
	InsertVM(ctx context.Context, v vm.VM, key string, within job.Limits) (_ vm.VM, created bool, err error)
	// GiveVM is InsertVM, but first tries to take an idle VM from pools. For each pool, choose gets
	// the idle VMs, oldest first, turns one into the requested VM, and returns its index and
	// events, or -1 if none fits. missed lists the pools that had no fitting VM.
	GiveVM(ctx context.Context, v vm.VM, key string, within job.Limits, pools []string, choose func(pool string, idle []vm.VM) (at int, events []job.Event)) (_ vm.VM, created bool, missed []string, err error)
	// AskedVM returns the VM that was requested with an idempotency key, or job.ErrNotFound.
	AskedVM(ctx context.Context, key string) (vm.VM, error)
	// AnyVM reports whether there was ever a VM that is not forgotten.
	AnyVM(ctx context.Context) (bool, error)
	// VMEvents returns the events of a VM that no job made.
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
	// Cordons returns the names of the nodes that get no new VMs. SetCordon adds a node to them or
	// removes it.
	Cordons(ctx context.Context) ([]string, error)
	SetCordon(ctx context.Context, node string, cordoned bool) error
	PoolStore
	VolumeStore
	SavedStore
}

// PoolStore stores pools.
type PoolStore interface {
	// Pools returns every pool, by name.
	Pools(ctx context.Context) ([]job.Pool, error)
	// InsertPool adds a pool and reports whether the name was free.
	InsertPool(ctx context.Context, p job.Pool) (bool, error)
	// UpdatePool changes a pool in a transaction; job.ErrNotFound. An error from change is returned
	// unwrapped, and nothing is written.
	UpdatePool(ctx context.Context, name string, change func(*job.Pool) error) (job.Pool, error)
	// DeletePool removes a pool's row. Its members stay.
	DeletePool(ctx context.Context, name string) error
	// Members returns the VMs of all pools that are not known to be gone, oldest first. A member
	// that could not be made is included until it is doomed.
	Members(ctx context.Context) ([]vm.VM, error)
	// Claim gives a pool's VM to a job in one transaction. choose gets the job and the pool's idle
	// VMs, oldest first, edits the job and one VM, and returns that VM's index and the job's
	// events; an index of -1 claims none and counts as a miss. Claim returns the updated job.
	Claim(ctx context.Context, id, pool string, choose func(j *job.Job, idle []vm.VM) (at int, events []job.Event)) (_ job.Job, claimed bool, err error)
}

// Tests are the results of host tests.
type Tests interface {
	// Checked records which test results no longer hold given the nodes' current facts, and returns
	// the checks to report for the host.
	Checked(ctx context.Context, nodes []job.HostFacts) []job.Check
	// Unproven returns the steps that no test has proven on a node.
	Unproven(ctx context.Context, node string, steps ...string) []string
	// Restores reports whether VMs of a template can be restored from checkpoints on a node.
	Restores(ctx context.Context, node, template string) bool
}

// Options of a Fleet. Store and Provider are required, Jobs for Known, and Jobs and Guest for Tend.
type Options struct {
	Store    Store
	Jobs     JobStore
	Provider job.Provider
	Engines  Engines // the engines that share the store; nil: none
	Placer   Placer  // chooses nodes for VMs; nil: the Provider has only one node
	Guest    Guest
	Keys     Keys         // for logging in to the VMs; nil: the Provider uses one key for all VMs
	Owner    string       // this installation's ID, the VMs' linus-owner
	Log      *slog.Logger // default: slog.Default()
	Changes  *job.Changes // receives what happens, shared with the Store; nil: nobody reads it

	Defaults job.Defaults // of pools and VMs
	// Admit returns an error if one more job, VM or separate disk would exceed the client's limits,
	// given what the client has; nil: there are no limits. Spare returns an error if there is no
	// space here to store another job or VM; nil: there always is.
	Admit func(has []job.Job, next job.Manifest) error
	Spare func() error
	// Allow returns an error if a client may not have the submitted VM, AllowFile if a file or a
	// tree may not be written in a VM, and AllowStorage if a client may not have a volume on a
	// storage (empty: the configured one). Nil allows everything.
	Allow        func(job.Submission) error
	AllowFile    func(path string, tree bool) error
	AllowStorage func(client string, p job.Principal, storage string) error
	// PortURL returns the URL of the exposed port with an ID, or "" if there is none. Nil: there never is.
	PortURL func(id string) string

	Tests Tests // of the host; nil: none

	Checkpoints     job.CheckpointMode // whether checkpoints are made automatically
	CheckpointBytes int64              // limit for the memory of all checkpoints on the hosts; 20 GiB

	MaxMaking    int           // requested VMs that are made at a time; 4
	PoolInterval time.Duration // between two rounds of tending the pools; 10 s
	// CleanupInterval is the time between two attempts to destroy a VM; 30 s.
	CleanupInterval time.Duration
	SweepInterval   time.Duration // between two searches for leftover VMs; 10 min
	Patience        time.Duration // with hosts that cannot be reached while a VM is made; 2 min
	// ClaimPatience is how long a job looks for a pool member that responds, and waits for it,
	// before it gets a new VM; 3 s.
	ClaimPatience time.Duration
	Lease         time.Duration // time after a job's timeout until the host destroys its VM without an engine; 0: never
}

// Fleet manages the VMs of an installation. Its methods may be called from any goroutine.
type Fleet struct {
	o             Options
	choosing      *lock.Lock // held while a node is chosen for a VM
	claims        *lock.Lock // held while an address and a host key are accepted for a VM
	leftAloneLock *lock.Lock // held while a left-alone VM is destroyed or forgotten
	volumes       *lock.Lock // held while a volume is made or removed
	access        *access    // decides who may enter or work on a persistent VM

	pools         *pools
	reaper        reaper
	checkpoints   checkpoints
	idleSuspender idleSuspender
	templates     templates
	background    sync.WaitGroup // of Tend

	mu       sync.Mutex
	running  context.Context //nolint:containedctx // until which work continues; nil: the engine does not run
	demand   job.Demand
	freed    chan struct{}      // closed when there may be more room for VMs
	expiring int                // persistent VMs with an expiry time, as of the last look
	nextEnd  time.Time          // when the next VM expires; zero: none will
	makes    map[string]*making // VMs without a job that are being made here, by the ID in their marker

	checkMu   sync.Mutex
	hostCheck *hostCheck // the last one; nil: none
}

// New returns a Fleet.
func New(o Options) *Fleet {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.MaxMaking = cmp.Or(o.MaxMaking, 4)
	o.CheckpointBytes = cmp.Or(o.CheckpointBytes, 20<<30)
	o.PoolInterval = cmp.Or(o.PoolInterval, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 2*time.Minute)
	o.ClaimPatience = cmp.Or(o.ClaimPatience, 3*time.Second)
	o.CleanupInterval = cmp.Or(o.CleanupInterval, 30*time.Second)
	o.SweepInterval = cmp.Or(o.SweepInterval, 10*time.Minute)
	o.Changes = cmp.Or(o.Changes, &job.Changes{})
	return &Fleet{
		o: o, access: newAccess(o.Engines), idleSuspender: newIdleSuspender(), freed: make(chan struct{}), makes: map[string]*making{}, pools: newPools(), reaper: reaper{wake: make(chan struct{}, 1), here: map[string]bool{}},
		choosing: lock.New("choosing", true, o.Engines), claims: lock.New("claiming", false, o.Engines), leftAloneLock: lock.New("leaving", false, o.Engines),
		volumes: lock.New("volumes", false, o.Engines),
	}
}

func (f *Fleet) update(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return f.o.Store.UpdateVM(ctx, id, change)
}

// set is update without events.
func (f *Fleet) set(ctx context.Context, id string, change func(*vm.VM)) error {
	_, err := f.update(ctx, id, quietly(change))
	return err
}

func quietly(change func(*vm.VM)) func(*vm.VM) ([]job.Event, error) {
	return func(v *vm.VM) ([]job.Event, error) {
		change(v)
		return nil, nil
	}
}

// updateJob changes a job and the VM that it made; the store announces the change. Texts may quote
// a host, so they are bounded and cleaned like the executor's. They need no redaction, because none
// of the job's secrets has left the engine yet.
func (f *Fleet) updateJob(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	return f.o.Jobs.Update(ctx, id, job.EventsOnly(func(j *job.Job) (told []job.Event, err error) {
		told, err = change(j)
		j.Progress = job.Bounded(term.Text(j.Progress))
		for i := range told {
			told[i].Text = job.Bounded(term.Text(told[i].Text))
		}
		return told, err
	}))
}

// observed announces what a client has done. When observed returns, that is in the audit log.
func (f *Fleet) observed(ctx context.Context, h job.Happening) {
	f.o.Changes.Add(h)
	_ = f.o.Changes.Wait(ctx) // the action is done even if the client leaves
}

// Room returns a channel that is closed when there may be more room for VMs.
func (f *Fleet) Room() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freed
}

// MadeRoom wakes everyone who waits for room.
func (f *Fleet) MadeRoom() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.freed)
	f.freed = make(chan struct{})
}

// Moved records that a VM is on another node, and returns the event it recorded, or none if that was known.
func (f *Fleet) Moved(ctx context.Context, id, node string) (told []job.Event, err error) {
	_, err = f.update(ctx, id, func(v *vm.VM) ([]job.Event, error) {
		told = nil
		if v.Node != node {
			told = []job.Event{{Kind: job.EventProgress, Text: "VM " + strconv.Itoa(v.ID) + " is on node " + node + " now, and not on " + v.Node + " any more"}}
			v.Node = node
		}
		return told, nil
	})
	return told, err
}

// Tell records events of a VM. A VM that does not exist is no error.
func (f *Fleet) Tell(ctx context.Context, id string, events []job.Event) error {
	_, err := f.update(ctx, id, func(*vm.VM) ([]job.Event, error) { return events, nil })
	if errors.Is(err, job.ErrNotFound) {
		return nil
	}
	return err
}

func now() time.Time { return time.Now().UTC() }

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
