package job

import (
	"context"
	"sync"
	"time"

	"linus/internal/vm"
)

// Observer is notified of what happens, after it is recorded. It may be called from many
// goroutines and must neither block nor fail.
type Observer func(Happening)

// Happening is one of the types below, a PoolEvent, or a Delivery: how an attempt to deliver
// a message about a job has ended.
type Happening any

// Change is a job as it is now, and the events of the change.
type Change struct {
	Job    Job
	Events []Event
}

// VMChanged is a VM as it is now, and the events of the change.
type VMChanged struct {
	VM     vm.VM
	Events []Event
}

// PhaseEnd is one run of a phase that has ended.
type PhaseEnd struct {
	Job    Job
	Phase  string
	Began  time.Time
	Result PhaseResult
	Err    error // what ended it early
}

// Leaked is the number of VMs carrying our marker that the last search of the host found and
// that should not exist.
type Leaked int

// CordonChange is that somebody cordoned a node, or uncordoned it.
type CordonChange struct {
	Node     string
	Cordoned bool
	By       Caller
}

// TokenChange is that somebody created a token, or else revoked it.
type TokenChange struct {
	Token   Token
	Created bool
	By      Caller
}

// Entered is that somebody works in a VM beside its jobs: by a login, or as in a sandbox.
type Entered struct {
	VM  vm.VM
	How string
	By  Caller
}

// PhaseResult is how a run of a phase ended.
type PhaseResult string

// The results.
const (
	PhaseOK          PhaseResult = "ok"
	PhaseFailed      PhaseResult = "failed"
	PhaseCancelled   PhaseResult = "cancelled"   // the job was cancelled
	PhaseInterrupted PhaseResult = "interrupted" // the engine stopped; the next one runs it again
)

// Changes is what has happened, in the order in which it was added, until it is read. What the rows
// of jobs and VMs were changed to is added by the store, in the order in which its one writer has
// committed it. Where engines share a database, each has a store, and is told what it has written
// itself. Other things are added after they were recorded: of two at once either may come first.
// Who adds to it does not wait for who reads.
type Changes struct {
	mu      sync.Mutex
	waiting []Happening
	read    func(Happening) // nil: nobody reads yet
	reading bool
}

// mark is closed when it is read.
type mark chan struct{}

// Read has read called with what has happened, and what will: with one after the other, and
// without a lock. It is called once.
func (c *Changes) Read(read func(Happening)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = read
	c.begin()
}

// Add adds what was just recorded.
func (c *Changes) Add(h ...Happening) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, h...)
	c.begin()
}

// Wait waits until all is read that was added before, or ctx ends. Where nobody reads it waits for
// nothing.
func (c *Changes) Wait(ctx context.Context) error {
	read := make(mark)
	c.mu.Lock()
	if c.reading {
		c.waiting = append(c.waiting, read)
	} else {
		close(read)
	}
	c.mu.Unlock()
	select {
	case <-read:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Idle reports whether all is read that was added.
func (c *Changes) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reading
}

// begin has what waits read, unless that is under way; c.mu is held.
func (c *Changes) begin() {
	if c.read == nil || c.reading || len(c.waiting) == 0 {
		return
	}
	c.reading = true
	go func() {
		for now := c.next(); len(now) > 0; now = c.next() {
			for _, h := range now {
				if m, is := h.(mark); is {
					close(m)
				} else {
					c.read(h)
				}
			}
		}
	}()
}

// next returns what is to be read now; nothing: reading has ended.
func (c *Changes) next() []Happening {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.waiting
	c.waiting, c.reading = nil, len(now) > 0
	return now
}
