// Package fleet owns the life of VMs: which of them there are, who may have which address
// and host key, and what becomes of those that cannot be destroyed. It knows no job but by
// the ID in a VM's marker.
package fleet

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// Store stores VMs, each by the ID in its marker.
type Store interface {
	// VMs returns the VMs that are intended, created or left alone, oldest first.
	VMs(ctx context.Context) ([]vm.VM, error)
	// VM returns one; job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	// UpdateVM changes one in a transaction, and records events with it; job.ErrNotFound.
	// change may be called again, with the VM as it is then.
	UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error)
	// InsertVM adds a VM that no job makes, and VMEvents returns what happened to it.
	InsertVM(ctx context.Context, v vm.VM) error
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
	// Cordons returns the nodes that get no new VMs, by name.
	Cordons(ctx context.Context) ([]string, error)
	PoolStore
}

// PoolStore stores pools.
type PoolStore interface {
	// Pools returns every pool, by name.
	Pools(ctx context.Context) ([]job.Pool, error)
	// InsertPool adds a pool, and reports whether there was none of that name.
	InsertPool(ctx context.Context, p job.Pool) (bool, error)
	// UpdatePool changes a pool in a transaction; job.ErrNotFound.
	UpdatePool(ctx context.Context, name string, change func(*job.Pool)) (job.Pool, error)
	// DeletePool removes a pool's row. Its members stay.
	DeletePool(ctx context.Context, name string) error
	// Members returns the VMs of all pools that are not known to be gone, oldest first. One
	// that could not be made is among them until it is doomed.
	Members(ctx context.Context) ([]vm.VM, error)
}

// Options of a Fleet. Store and Provider are required, and Engine and Guest for Tend.
type Options struct {
	Store    Store
	Provider job.Provider
	Engines  lock.Engines // that share the store; nil: none do
	Placer   Placer       // chooses nodes for VMs; nil: the Provider has only one
	Engine   Engine
	Guest    Guest
	Owner    string       // this installation's ID, the VMs' linus-owner
	Log      *slog.Logger // default: slog.Default()
	// Changed is called after a VM has changed, with what was recorded. May be nil.
	Changed func(ctx context.Context, id string, events []job.Event)
	// Observer is called on what happens to pools. May be nil.
	Observer job.Observer

	Defaults job.Defaults // of pools
	// Allow returns an error if a client may not have such VMs. Nil: all allowed.
	Allow        func(job.Submission) error
	PoolInterval time.Duration // between two rounds of tending the pools; 10 s
	// CleanupInterval is between two attempts to destroy what could not be destroyed; 30 s.
	CleanupInterval time.Duration
	Patience        time.Duration // with hosts that cannot be reached while a VM is made; 2 min
	Lease           time.Duration // after a job's timeout, until the host destroys its VM without an engine; 0: never
}

// Fleet is the VMs of an installation. Its methods may be called from any goroutine.
type Fleet struct {
	o        Options
	choosing *lock.Lock // held while a node is chosen for a VM
	claims   *lock.Lock // held while an address and a host key are accepted for a VM
	leaving  *lock.Lock // held while a VM that was left alone is destroyed or forgotten

	pools      *pools
	unwanted   unwanted
	background sync.WaitGroup // of Tend

	mu    sync.Mutex
	freed chan struct{}      // closed when there may be more room for VMs
	makes map[string]*making // pools' VMs that are being made here, by the ID in their marker
}

// New returns a Fleet.
func New(o Options) *Fleet {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.PoolInterval = cmp.Or(o.PoolInterval, 10*time.Second)
	o.Patience = cmp.Or(o.Patience, 2*time.Minute)
	o.CleanupInterval = cmp.Or(o.CleanupInterval, 30*time.Second)
	if o.Observer == nil {
		o.Observer = func(job.Happening) {}
	}
	if o.Changed == nil {
		o.Changed = func(context.Context, string, []job.Event) {}
	}
	return &Fleet{
		o: o, freed: make(chan struct{}), makes: map[string]*making{}, pools: newPools(), unwanted: unwanted{wake: make(chan struct{}, 1), here: map[string]bool{}},
		choosing: lock.New("choosing", true, o.Engines), claims: lock.New("claiming", false, o.Engines), leaving: lock.New("leaving", false, o.Engines),
	}
}

// update changes a VM, and tells of it.
func (f *Fleet) update(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	var recorded []job.Event
	v, err := f.o.Store.UpdateVM(ctx, id, func(v *vm.VM) (events []job.Event, err error) {
		recorded, err = change(v)
		return recorded, err
	})
	if err == nil {
		f.o.Changed(ctx, id, recorded)
	}
	return v, err
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

func now() time.Time { return time.Now().UTC() }

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
