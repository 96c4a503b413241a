package job

import "time"

// Observer is notified of what happens, each time after it is recorded. Its
// methods are called from many goroutines and must neither block nor fail.
type Observer interface {
	// Changed receives the job as it is now and the events of the change.
	Changed(j Job, events []Event)
	// PhaseEnded receives one run of a phase; err is what ended it early.
	PhaseEnded(j Job, phase string, began time.Time, result PhaseResult, err error)
	// Leaked receives the number of VMs carrying our marker that the last
	// search of the host found and that should not exist.
	Leaked(vms int)
	// Pooled receives what happened to a pool.
	Pooled(e PoolEvent)
	// Cordoned receives that a node was cordoned, or uncordoned, and by whom.
	Cordoned(node string, cordoned bool, by Caller)
	// TokenChanged receives that a token was created, or else revoked, and by whom.
	TokenChanged(t Token, created bool, by Caller)
	// Notified receives how an attempt to deliver a message about a job has ended.
	Notified(d Delivery)
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
