package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Subject is what a verb acts on. For a caller that is not an admin, another principal's subjects do
// not exist.
type Subject string

// The subjects.
const (
	OfJob    Subject = "job"    // one job
	OfJobs   Subject = "jobs"   // a list of jobs
	OfVM     Subject = "VM"     // one VM
	OfVMs    Subject = "VMs"    // a list of VMs
	OfFile   Subject = "file"   // a file in one VM, which may be named by a job that runs in it
	OfVolume Subject = "volume" // one volume, existing or new
	OfQueues Subject = "queues" // dispatchers
	// OfSchedule is one schedule, existing or new.
	OfSchedule Subject = "schedule"
	OfNew      Subject = "new"   // a new job
	OfAll      Subject = "whole" // the installation
)

// Needs returns the lowest role that may call a verb.
func Needs(verb AnyVerb) Role { return verb.row().Role }

// Refusal returns why the principal may not call a verb: a *DeniedError if its role does not include
// the verb, a *NarrowedError if its token is narrowed to other toolsets, or nil if neither applies.
func (p Principal) Refusal(verb AnyVerb) error {
	v := verb.row()
	if !p.Role.Includes(v.Role) {
		return &DeniedError{Verb: v.Name, Role: p.Role, Need: v.Role}
	}
	return p.Narrowed(v.Name, v.Toolsets...)
}

// Narrowed returns a *NarrowedError if the principal's token is narrowed to toolsets that do not
// include any of the given ones; otherwise nil.
func (p Principal) Narrowed(what string, toolsets ...string) error {
	all := len(p.Toolsets) == 0 && (p.Admin() || !slices.Contains(toolsets, DispatchToolset))
	if all || slices.ContainsFunc(toolsets, func(t string) bool { return slices.Contains(p.Toolsets, t) }) {
		return nil
	}
	return &NarrowedError{What: what, Toolsets: toolsets, Has: p.Toolsets}
}

// May reports whether the principal may call a verb.
func (p Principal) May(verb AnyVerb) bool { return p.Refusal(verb) == nil }

// ErrNotAllowed is the error that DeniedError and NarrowedError wrap.
var ErrNotAllowed = errors.New("not allowed")

// DeniedError is returned if a principal's role does not include a verb.
type DeniedError struct {
	Verb string `json:"verb"` // a method of Engine
	Role Role   `json:"role"` // the principal's
	Need Role   `json:"need"` // the lowest that may
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("not allowed: %s needs role %s, and this token has role %s; ask an admin for a token of that role", e.Verb, e.Need, e.Role)
}

// Unwrap returns ErrNotAllowed.
func (e *DeniedError) Unwrap() error { return ErrNotAllowed }

// NarrowedError is returned if a token is narrowed to toolsets that do not include what was asked for.
type NarrowedError struct {
	What     string   `json:"what"`     // a method of Engine, or an MCP tool
	Toolsets []string `json:"toolsets"` // the token must have one of them
	Has      []string `json:"has"`
}

func (e *NarrowedError) Error() string {
	has := "was not given it"
	if len(e.Has) > 0 {
		has = "has only " + strings.Join(e.Has, ", ")
	}
	return fmt.Sprintf("not allowed: %s belongs to toolset %s, and this token %s; ask an admin for a token with it", e.What, strings.Join(e.Toolsets, " or "), has)
}

// Unwrap returns ErrNotAllowed.
func (e *NarrowedError) Unwrap() error { return ErrNotAllowed }
