package job

import "slices"

// Status is the status of a job. Terminal statuses never change.
type Status string

// The life of a job: pending -> provisioning -> running -> success | failed | timeout.
const (
	Pending      Status = "pending"
	Provisioning Status = "provisioning"
	Running      Status = "running"
	Success      Status = "success"
	Failed       Status = "failed"
	Timeout      Status = "timeout"
)

// Statuses lists every status in the order a job passes them.
var Statuses = []Status{Pending, Provisioning, Running, Success, Failed, Timeout}

// transitions maps each status to those that may follow. A job can fail at any time before its end
// (provisioning failed, cancelled, lost); only a running job can succeed or time out.
var transitions = map[Status][]Status{
	Pending:      {Provisioning, Failed},
	Provisioning: {Running, Failed},
	Running:      {Success, Failed, Timeout},
}

// CanBecome reports whether a job may change from s to next.
func (s Status) CanBecome(next Status) bool { return slices.Contains(transitions[s], next) }

// Terminal reports whether s is final: the result is complete, nothing follows.
func (s Status) Terminal() bool { return s == Success || s == Failed || s == Timeout }

// Valid reports whether s is a known status.
func (s Status) Valid() bool { return slices.Contains(Statuses, s) }

// Reason is the machine-readable reason why a job ended.
type Reason string

// The reasons a job can end for.
const (
	ReasonExitStatus      Reason = "exit_status"      // the task exited by itself; see ExitCode
	ReasonCancelled       Reason = "cancelled"        // a caller cancelled the job
	ReasonKilled          Reason = "killed"           // a caller killed the task
	ReasonTimeout         Reason = "timeout"          // the task ran past the manifest's timeout
	ReasonProvisionFailed Reason = "provision_failed" // no VM could be made ready, or the repository could not be fetched
	ReasonStartFailed     Reason = "start_failed"     // the VM was ready, the task could not be started
	ReasonLost            Reason = "lost"             // the VM or the task vanished without a result
	ReasonInternal        Reason = "internal"         // an internal error of linus
)

// Reasons are all reasons.
var Reasons = []Reason{
	ReasonExitStatus, ReasonCancelled, ReasonKilled, ReasonTimeout, ReasonProvisionFailed, ReasonStartFailed, ReasonLost, ReasonInternal,
}

// Statuses returns the statuses that a job which ended for the reason can have.
func (r Reason) Statuses() []Status {
	switch r {
	case ReasonExitStatus:
		return []Status{Success, Failed}
	case ReasonTimeout:
		return []Status{Timeout}
	}
	return []Status{Failed}
}
