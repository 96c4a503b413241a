// Package fleet owns the life of VMs: which of them there are, who may have which address
// and host key, and what becomes of those that cannot be destroyed. What becomes of a job's VM it
// records in the job's row; of the job's life it knows nothing.
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

// Store stores VMs, each by the ID in its marker.
type Store interface {
	// VMs returns the VMs that are asked for, intended, created or left alone, oldest first.
	VMs(ctx context.Context) ([]vm.VM, error)
	// VM returns one; job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	// UpdateVM changes one in a transaction, and records events with it; job.ErrNotFound.
	// change may be called again, with the VM as it is then.
	UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// GrowVM is UpdateVM for a change with which a VM takes mb more of its host's disk, for what
	// is named. In the transaction is counted what the VM's principal has; a *job.FieldError if
	// it would be more than the limits allow.
	GrowVM(ctx context.Context, of vm.VM, what string, mb int, within job.Limits, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// InsertVM adds a VM that no job makes. For a non-empty key that was used before it
	// returns the first VM and false. In its transaction is counted what the VM's principal
	// has; a *job.FieldError if it would be more than the limits allow.
	InsertVM(ctx context.Context, v vm.VM, key string, within job.Limits) (_ vm.VM, created bool, err error)
	// GiveVM is InsertVM, but for an idle VM of one of some pools: of each, choose gets the idle ones,
	// oldest first, changes one into what is asked for, and returns its index and its events; -1: none
	// of these. missed are the pools that had none.
	GiveVM(ctx context.Context, v vm.VM, key string, within job.Limits, pools []string, choose func(pool string, idle []vm.VM) (at int, events []job.Event)) (_ vm.VM, created bool, missed []string, err error)
	// AskedVM returns the one that was asked for with an idempotency key; job.ErrNotFound.
	AskedVM(ctx context.Context, key string) (vm.VM, error)
	// AnyVM reports whether there was ever one that is not forgotten.
	AnyVM(ctx context.Context) (bool, error)
	// VMEvents returns what happened to a VM that no job has made.
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
	// Cordons returns the nodes that get no new VMs, by name; SetCordon adds a node to
	// those, or removes it.
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
	// InsertPool adds a pool, and reports whether there was none of that name.
	InsertPool(ctx context.Context, p job.Pool) (bool, error)
	// UpdatePool changes a pool in a transaction; job.ErrNotFound. An error from change is
	// returned unwrapped, and nothing is written.
	UpdatePool(ctx context.Context, name string, change func(*job.Pool) error) (job.Pool, error)
	// DeletePool removes a pool's row. Its members stay.
	DeletePool(ctx context.Context, name string) error
	// Members returns the VMs of all pools that are not known to be gone, oldest first. One
	// that could not be made is among them until it is doomed.
	Members(ctx context.Context) ([]vm.VM, error)
	// Claim gives a job a VM of a pool, in one transaction: choose gets the job and
	// the pool's idle VMs, oldest first, edits the job and one VM, and returns
	// that one's index and the job's events; an index of -1 claims none, and counts as
	// a miss. It returns the job as it is then.
	Claim(ctx context.Context, id, pool string, choose func(j *job.Job, idle []vm.VM) (at int, events []job.Event)) (_ job.Job, claimed bool, err error)
}

// Tests are what tests of the host have shown.
type Tests interface {
	// Checked notes which tests hold no more, now that nodes are so, and returns what a check of the
	// host says of them.
	Checked(ctx context.Context, nodes []job.HostFacts) []job.Check
	// Unproven returns those of the steps that no test of a node has proven.
	Unproven(ctx context.Context, node string, steps ...string) []string
	// Restores reports whether VMs of a template go on from checkpoints on a node.
	Restores(ctx context.Context, node, template string) bool
}

// Options of a Fleet. Store and Provider are required, Jobs for Known, and Jobs and Guest for Tend.
type Options struct {
	Store    Store
	Jobs     JobStore
	Provider job.Provider
	Engines  Engines // that share the store; nil: none do
	Placer   Placer  // chooses nodes for VMs; nil: the Provider has only one
	Guest    Guest
	Keys     Keys         // log in to the VMs; nil: the Provider's, one for all VMs
	Owner    string       // this installation's ID, the VMs' linus-owner
	Log      *slog.Logger // default: slog.Default()
	Changes  *job.Changes // where what happens is told, the Store's; nil: nobody reads it

	Defaults job.Defaults // of pools and VMs
	// Admit returns an error if one more job or VM, or a disk alone, would be more than a client may
	// have in addition to those; nil: there are no limits. Spare is why there is no space here for
	// what is stored of a job or a VM; nil: there is.
	Admit func(has []job.Job, next job.Manifest) error
	Spare func() error
	// Allow returns an error if a client may not have such VMs, AllowFile if a file, or a tree of
	// them, may not be written in one, and AllowStorage if a client may not have a volume on a
	// storage; empty: the configured one. Nil: all allowed.
	Allow        func(job.Submission) error
	AllowFile    func(path string, tree bool) error
	AllowStorage func(client string, p job.Principal, storage string) error
	// PortURL returns the URL of the exposed port with an ID; empty: there is none. Nil: always.
	PortURL func(id string) string

	Tests Tests // of the host; nil: there are none

	Checkpoints     job.CheckpointMode // whether they are made without being asked for
	CheckpointBytes int64              // that the memory of all checkpoints may take on the hosts; 20 GiB

	MaxMaking    int           // VMs that were asked for and are made at a time; 4
	PoolInterval time.Duration // between two rounds of tending the pools; 10 s
	// CleanupInterval is between two attempts to destroy what could not be destroyed; 30 s.
	CleanupInterval time.Duration
	SweepInterval   time.Duration // between two searches for leftover VMs; 10 min
	Patience        time.Duration // with hosts that cannot be reached while a VM is made; 2 min
	// ClaimPatience is how long a job looks for a pool's member that responds, and waits
	// for a warm one, before it gets a new VM; 3 s.
	ClaimPatience time.Duration
	Lease         time.Duration // after a job's timeout, until the host destroys its VM without an engine; 0: never
}

// Fleet is the VMs of an installation. Its methods may be called from any goroutine.
type Fleet struct {
	o             Options
	choosing      *lock.Lock // held while a node is chosen for a VM
	claims        *lock.Lock // held while an address and a host key are accepted for a VM
	leftAloneLock *lock.Lock // held while a VM that was left alone is destroyed or forgotten
	volumes       *lock.Lock // held while a volume is made or removed
	access        *access    // decides who may enter or work on a persistent VM

	pools         *pools
	reaper        reaper
	checkpoints   checkpoints
	idleSuspender idleSuspender
	templates     templates
	background    sync.WaitGroup // of Tend

	mu       sync.Mutex
	running  context.Context //nolint:containedctx // until which work goes on; nil: the engine does not run
	demand   job.Demand
	freed    chan struct{}      // closed when there may be more room for VMs
	expiring int                // persistent VMs with an expiry time, as of the last look
	nextEnd  time.Time          // when the next one's time is over; zero: none's is to be
	makes    map[string]*making // VMs that no job makes and that are being made here, by the ID in their marker

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

// update changes a VM, of which the store tells.
func (f *Fleet) update(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return f.o.Store.UpdateVM(ctx, id, change)
}

// set is update for what no event tells of.
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

// updateJob changes a job and the VM that it has made, of which the store tells. Texts, which may
// quote a host, are stored as the executor stores a job's; none of its secrets was anywhere yet.
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

// observed tells of what a client has done. When its call returns, that is in the audit log.
func (f *Fleet) observed(ctx context.Context, h job.Happening) {
	f.o.Changes.Add(h)
	_ = f.o.Changes.Wait(ctx) // it is done, though the client leaves
}

// Room returns a channel that is closed when there may be more room for VMs.
func (f *Fleet) Room() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.freed
}

// MadeRoom wakes who waits for room.
func (f *Fleet) MadeRoom() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.freed)
	f.freed = make(chan struct{})
}

// Moved records that a VM is on another node, and returns the event that it has recorded
// with that; none: it was known.
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

// Tell records events of a VM, if there is one.
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
