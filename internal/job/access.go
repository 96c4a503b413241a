package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Subject is what a verb is about. What belongs to another principal does not exist for
// a caller that is no admin.
type Subject string

// The subjects.
const (
	OfJob    Subject = "job"    // one job
	OfJobs   Subject = "jobs"   // a list of jobs
	OfVM     Subject = "VM"     // one VM
	OfVMs    Subject = "VMs"    // a list of VMs
	OfFile   Subject = "file"   // what is in one VM, which a job in it stands for, too
	OfVolume Subject = "volume" // one volume, or one that is to be
	OfQueues Subject = "queues" // dispatchers
	// OfSchedule is one schedule, or one that is to be.
	OfSchedule Subject = "schedule"
	OfNew      Subject = "new"   // a job that is to be
	OfAll      Subject = "whole" // the installation
)

// Needs returns the least role that may call a verb.
func Needs(verb AnyVerb) Role { return verb.row().Role }

// Refusal returns why the principal may not call a verb: a *DeniedError if its role does
// not include it, and a *NarrowedError if its token is narrowed to other toolsets. Nil: it
// may, as far as that goes.
func (p Principal) Refusal(verb AnyVerb) error {
	v := verb.row()
	if !p.Role.Includes(v.Role) {
		return &DeniedError{Verb: v.Name, Role: p.Role, Need: v.Role}
	}
	return p.Narrowed(v.Name, v.Toolsets...)
}

// Narrowed returns a *NarrowedError if the principal's token is narrowed to other
// toolsets than those that have what it asks for; else nil.
func (p Principal) Narrowed(what string, toolsets ...string) error {
	all := len(p.Toolsets) == 0 && (p.Admin() || !slices.Contains(toolsets, DispatchToolset))
	if all || slices.ContainsFunc(toolsets, func(t string) bool { return slices.Contains(p.Toolsets, t) }) {
		return nil
	}
	return &NarrowedError{What: what, Toolsets: toolsets, Has: p.Toolsets}
}

// May reports whether the principal may call a verb.
func (p Principal) May(verb AnyVerb) bool { return p.Refusal(verb) == nil }

// ErrNotAllowed is what a DeniedError and a NarrowedError are.
var ErrNotAllowed = errors.New("not allowed")

// DeniedError is returned for what a principal's role does not include.
type DeniedError struct {
	Verb string `json:"verb"` // a method of Engine
	Role Role   `json:"role"` // the principal's
	Need Role   `json:"need"` // the least that may
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("not allowed: %s needs role %s, and this token has role %s; ask an admin for a token of that role", e.Verb, e.Need, e.Role)
}

// Unwrap returns ErrNotAllowed.
func (e *DeniedError) Unwrap() error { return ErrNotAllowed }

// NarrowedError is returned for what is in none of the toolsets that a token is narrowed
// to.
type NarrowedError struct {
	What     string   `json:"what"`     // a method of Engine, or an MCP tool
	Toolsets []string `json:"toolsets"` // of which the token must have one
	Has      []string `json:"has"`
}

func (e *NarrowedError) Error() string {
	has := "was not given it"
	if len(e.Has) > 0 {
		has = "has only " + strings.Join(e.Has, ", ")
	}
	return fmt.Sprintf("not allowed: %s is of toolset %s, and this token %s; ask an admin for a token with it", e.What, strings.Join(e.Toolsets, " or "), has)
}

// Unwrap returns ErrNotAllowed.
func (e *NarrowedError) Unwrap() error { return ErrNotAllowed }
