package job

import "time"

// Observer is told what happens, each time after it is on record. Its methods
// are called from many goroutines and must neither block nor fail.
type Observer interface {
	// Changed is told of the job as it is now and of the events of the change.
	Changed(j Job, events []Event)
	// PhaseEnded is told of one run of a phase; err is what ended it early.
	PhaseEnded(j Job, phase string, began time.Time, result PhaseResult, err error)
	// Leaked is told how many VMs the last search of the host has found that
	// carry our mark and should not be there.
	Leaked(vms int)
}

// PhaseResult is how a run of a phase ended.
type PhaseResult string

// The results.
const (
	PhaseOK          PhaseResult = "ok"
	PhaseFailed      PhaseResult = "failed"
	PhaseCancelled   PhaseResult = "cancelled"   // the job was
	PhaseInterrupted PhaseResult = "interrupted" // the engine stopped; the next one runs it again
)
