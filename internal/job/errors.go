package job

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors that every face reports with the same text.
var (
	ErrNotFound  = errors.New("Job not found")         //nolint:revive,staticcheck // the text is part of the contract
	ErrCompleted = errors.New("Job already completed") //nolint:revive,staticcheck // the text is part of the contract
)

// NotCompleteError is returned if a result is requested before the job has ended.
type NotCompleteError struct{ Status Status }

func (e *NotCompleteError) Error() string { return "Job not complete. Status: " + string(e.Status) }

// FieldError is one fault in one field of a caller's input.
type FieldError struct {
	Field   string `json:"field"`            // path, e.g. "manifest.resources.memory"
	Problem string `json:"problem"`          // what is wrong with the value
	Remedy  string `json:"remedy,omitempty"` // what to do
	Fault   Fault  `json:"-"`
	Limit   *Limit `json:"-"` // FaultLimit: the limit that is reached, if it has a name
}

// Limit is how many of something a caller may have.
type Limit struct {
	Name   string        // as in a token's limits: jobs_per_hour
	Most   int           // at the same time, or within the window
	Window time.Duration // 0: at the same time
	Room   time.Duration // until there is room for one more; 0: unknown
}

// Fault says what else is wrong with a field, apart from its value.
type Fault string

// The faults.
const (
	FaultValue   Fault = ""         // nothing else
	FaultUnknown Fault = "unknown"  // what it names does not exist for this caller
	FaultState   Fault = "conflict" // what it names is in the wrong state for this
	FaultLimit   Fault = "limit"    // the caller has reached a limit; there may be room later
)

func (e *FieldError) Error() string {
	if e.Remedy == "" {
		return e.Field + ": " + e.Problem
	}
	return e.Field + ": " + e.Problem + "; " + e.Remedy
}

// InvalidError collects all FieldErrors, so that a caller can correct them at once.
type InvalidError struct{ Fields []*FieldError }

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// field builds a FieldError with a formatted problem.
func field(name, remedy, problem string, args ...any) *FieldError {
	return &FieldError{Field: name, Problem: fmt.Sprintf(problem, args...), Remedy: remedy}
}

// inState is field for something in the wrong state for a request.
func inState(name, remedy, problem string, args ...any) *FieldError {
	e := field(name, remedy, problem, args...)
	e.Fault = FaultState
	return e
}

// Within returns a *FieldError if a number is out of a range.
func Within(name string, n, least, most int64) error {
	if n < least || n > most {
		return field(name, fmt.Sprintf("give %d to %d", least, most), "%d is out of range", n)
	}
	return nil
}

// Needed returns a *FieldError if a text is empty.
func Needed(name, text string) error {
	if text == "" {
		return field(name, "give one", "is required")
	}
	return nil
}

// HostError is a failure on the Proxmox host, for an operator: what was tried, where, what Proxmox
// reported, and the remedy.
type HostError struct {
	Op     string    `json:"op"`               // what was tried, e.g. "create VM linus-job-1a2b3c4d"
	Host   string    `json:"host"`             // where, e.g. "root@pve.example:22"
	Class  HostClass `json:"class"`            // the kind of fault
	Text   string    `json:"text"`             // what Proxmox or SSH reported
	Remedy string    `json:"remedy,omitempty"` // what to do
	Own    bool      `json:"-"`                // the engine could not even try: see IsEngineFault
	NoVM   bool      `json:"-"`                // of a create: refused before its first change, so there is no VM
}

// Uncreated marks the error of a create as refused before its first change.
func Uncreated(err error) error {
	var host *HostError
	if !errors.As(err, &host) {
		return err
	}
	refused := *host
	refused.NoVM = true
	return &refused
}

func (e *HostError) Error() string {
	s := e.Op + " on " + e.Host + ": " + e.Text
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	return s
}

// HostClass classifies host faults by what a caller should do about them.
type HostClass string

// The classes. The first six are the host scripts' exit codes 1 to 6.
const (
	HostInvalid     HostClass = "invalid_parameter" // 1
	HostDependency  HostClass = "missing_tool"      // 2
	HostConfig      HostClass = "configuration"     // 3: node name, storage, bridge, template, OS, quorum
	HostOffline     HostClass = "node_offline"      // 4
	HostVM          HostClass = "vm_failed"         // 5: creation, configuration, start, destroy
	HostTimeout     HostClass = "timeout"           // 6: no address, no SSH in time
	HostUnreachable HostClass = "unreachable"       // SSH: refused, no route, timeout
	HostAuth        HostClass = "auth"              // SSH: key or password refused
	HostKeyChanged  HostClass = "host_key"          // SSH: unknown or changed host key
	HostCancelled   HostClass = "cancelled"         // stopped by a signal, after the script's roll-back
	HostExists      HostClass = "vm_exists"         // not created: a VM of that name exists, and was not touched
	HostLeftAlone   HostClass = "left_alone"        // not destroyed: the VM exists, but is not proven to be the right one, or is protected
	HostForeign     HostClass = "foreign"           // not destroyed: the ID now belongs to another VM, and the intended one is gone
	HostInterrupted HostClass = "interrupted"       // the script was killed, alone or with its host: what it did is unknown
	HostUnfit       HostClass = "checkpoint_unfit"  // not restored: the checkpoint is gone, or not of this template, size, QEMU or CPU
	HostFenced      HostClass = "fenced"            // not done: the requesting engine was considered dead and replaced
)

// IsClass reports whether err is a *HostError of the class.
func IsClass(err error, class HostClass) bool {
	var host *HostError
	return errors.As(err, &host) && host.Class == class
}

// HasClass reports whether err is, or joins, a *HostError of the class.
func HasClass(err error, class HostClass) bool { return errors.Is(err, ofClass(class)) }

// ofClass is any *HostError of a class, to errors.Is.
type ofClass HostClass

func (c ofClass) Error() string { return string(c) }

// Is reports whether target is the error's class.
func (e *HostError) Is(target error) bool { return target == error(ofClass(e.Class)) }
