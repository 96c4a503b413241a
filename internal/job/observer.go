package job

import (
	"context"
	"sync"
	"time"

	"linus/internal/vm"
)

// Observer is notified of what happens, after it is recorded. It may be called from many goroutines
// and must neither block nor fail.
type Observer func(Happening)

// Happening is one of the types below, a PoolEvent, or a Delivery: the end of an attempt to deliver
// a message about a job.
type Happening any

// Change is a job after a change, and the events of the change.
type Change struct {
	Job    Job
	Events []Event
}

// VMChanged is a VM after a change, and the events of the change.
type VMChanged struct {
	VM     vm.VM
	Events []Event
}

// PhaseEnd is a finished run of a phase.
type PhaseEnd struct {
	Job    Job
	Phase  string
	Began  time.Time
	Result PhaseResult
	Err    error // what ended the phase early
}

// Leaked is the number of VMs with linus's marker that the last search of the host found and that
// should not exist.
type Leaked int

// CordonChange records that a node was cordoned or uncordoned.
type CordonChange struct {
	Node     string
	Cordoned bool
	By       Caller
}

// TokenChange records that a token was created or revoked.
type TokenChange struct {
	Token   Token
	Created bool
	By      Caller
}

// Entered records that somebody works in a VM beside its jobs: by a login, or as in a sandbox.
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
	PhaseInterrupted PhaseResult = "interrupted" // the engine stopped; the next one runs the phase again
)

// Changes is a queue of happenings, in the order in which they were added. The store adds changes of the
// rows of jobs and VMs in the order in which its only writer committed them. Engines that share a database
// have a store each, and get only what their own store has written. Other happenings are added after they
// were recorded; of two concurrent ones either may come first. Adding never waits for the reader.
type Changes struct {
	mu      sync.Mutex
	waiting []Happening
	read    func(Happening) // nil: there is no reader yet
	reading bool
}

// mark is closed when the reader gets to it.
type mark chan struct{}

// Read has read called with all happenings, past and future, one after the other and without a lock
// held. Read may be called only once.
func (c *Changes) Read(read func(Happening)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = read
	c.begin()
}

// Add adds happenings that were just recorded.
func (c *Changes) Add(h ...Happening) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, h...)
	c.begin()
}

// Wait waits until everything added before has been read, or ctx ends. Without a reader it returns at once.
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

// Idle reports whether everything added has been read.
func (c *Changes) Idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reading
}

// begin starts the reader if it is idle and something waits. The caller holds c.mu.
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

// next returns what to read now. If there is nothing, reading has ended.
func (c *Changes) next() []Happening {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.waiting
	c.waiting, c.reading = nil, len(now) > 0
	return now
}
