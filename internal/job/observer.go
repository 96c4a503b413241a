package job

import "time"

// Observer is notified of what happens, each time after it is recorded. It is called from
// many goroutines and must neither block nor fail.
type Observer func(Happening)

// Happening is one of the types below, a PoolEvent, or a Delivery: how an attempt to deliver
// a message about a job has ended.
type Happening any

// Change is a job as it is now, and the events of the change.
type Change struct {
	Job    Job
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

// PhaseResult is how a run of a phase ended.
type PhaseResult string

// The results.
const (
	PhaseOK          PhaseResult = "ok"
	PhaseFailed      PhaseResult = "failed"
	PhaseCancelled   PhaseResult = "cancelled"   // the job was cancelled
	PhaseInterrupted PhaseResult = "interrupted" // the engine stopped; the next one runs it again
)
