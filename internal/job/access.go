package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Access says who may call a verb of Engine.
type Access struct {
	Verb string  // the method's name
	Role Role    // the least that may
	Of   Subject // what the verb is about

	// Toolsets are those of which a token must have one, if it is narrowed to some: the
	// ones with an MCP tool that does this, or more.
	Toolsets []string
}

// Subject is what a verb is about. What belongs to another principal does not exist for
// a caller that is no admin.
type Subject string

// The subjects.
const (
	OfJob  Subject = "job"   // one job
	OfJobs Subject = "jobs"  // a list of jobs
	OfVM   Subject = "VM"    // one VM
	OfVMs  Subject = "VMs"   // a list of VMs
	OfFile Subject = "file"  // what is in one VM, which a job in it stands for, too
	OfNew  Subject = "new"   // a job that is to be
	OfAll  Subject = "whole" // the installation
)

// Accesses lists every verb of Engine.
func Accesses() []Access {
	return []Access{
		{"Job", RoleRead, OfJob, []string{"jobs", "exec", "vm"}},
		{"Manifest", RoleRead, OfJob, []string{"jobs", "exec"}},
		{"Result", RoleRead, OfJob, []string{"jobs", "exec", "vm"}},
		{"List", RoleRead, OfJobs, []string{"jobs"}},
		{"Activity", RoleRead, OfJobs, []string{"jobs"}},
		{"Watch", RoleRead, OfJob, []string{"jobs", "exec", "vm"}},
		{"Output", RoleRead, OfJob, []string{"jobs", "exec"}},
		{"OpenArtifact", RoleRead, OfJob, []string{"jobs"}},
		{"VMs", RoleRead, OfVMs, []string{"vm"}},
		{"VM", RoleRead, OfVM, []string{"vm"}},
		{"CheckHost", RoleRead, OfAll, []string{"admin"}},

		{"Submit", RoleRun, OfNew, []string{"jobs", "exec", "vm"}},
		{"Plan", RoleRun, OfNew, []string{"jobs", "exec", "vm"}},
		{"Cancel", RoleRun, OfJob, []string{"jobs"}},
		{"Kill", RoleRun, OfJob, []string{"exec"}},
		{"Input", RoleRun, OfJob, []string{"exec"}},
		{"Resize", RoleRun, OfJob, []string{"exec"}},
		{"StartVM", RoleRun, OfVM, []string{"vm"}},
		{"StopVM", RoleRun, OfVM, []string{"vm"}},
		{"DestroyVM", RoleRun, OfVM, []string{"vm"}},
		{"SuspendVM", RoleRun, OfVM, []string{"vm"}},
		{"ResumeVM", RoleRun, OfVM, []string{"vm"}},
		{"SnapshotVM", RoleRun, OfVM, []string{"vm"}},
		{"RevertVM", RoleRun, OfVM, []string{"vm"}},
		{"ListFiles", RoleRun, OfFile, []string{"files"}},
		{"ReadFile", RoleRun, OfFile, []string{"files"}},
		{"WriteFile", RoleRun, OfFile, []string{"files"}},
		{"EditFile", RoleRun, OfFile, []string{"files"}},
		{"ReadTree", RoleRun, OfFile, []string{"files"}},
		{"WriteTree", RoleRun, OfFile, []string{"files"}},
		{"DialVM", RoleRun, OfFile, []string{"exec", "vm"}},
		{"Network", RoleRun, OfFile, []string{"vm"}},

		{"ForgetVM", RoleAdmin, OfVM, []string{"vm"}},
		{"Cleanup", RoleAdmin, OfAll, []string{"admin"}},
		{"Tokens", RoleAdmin, OfAll, []string{"admin"}},
		{"CreateToken", RoleAdmin, OfAll, []string{"admin"}},
		{"RevokeToken", RoleAdmin, OfAll, []string{"admin"}},
		{"Pools", RoleAdmin, OfAll, []string{"admin"}},
		{"Pool", RoleAdmin, OfAll, []string{"admin"}},
		{"CreatePool", RoleAdmin, OfAll, []string{"admin"}},
		{"ResizePool", RoleAdmin, OfAll, []string{"admin"}},
		{"RemovePool", RoleAdmin, OfAll, []string{"admin"}},
		{"Engines", RoleAdmin, OfAll, []string{"admin"}},
		{"Nodes", RoleAdmin, OfAll, []string{"admin"}},
		{"CordonNode", RoleAdmin, OfAll, []string{"admin"}},
		{"UncordonNode", RoleAdmin, OfAll, []string{"admin"}},
	}
}

// Needs returns the least role that may call a verb; empty: nobody has decided.
func Needs(verb string) Role { return accessOf(verb).Role }

func accessOf(verb string) Access {
	all := Accesses()
	if at := slices.IndexFunc(all, func(a Access) bool { return a.Verb == verb }); at >= 0 {
		return all[at]
	}
	return Access{Verb: verb}
}

// Refusal returns why the principal may not call a verb: a *DeniedError if its role does
// not include it, and a *NarrowedError if its token is narrowed to other toolsets. Nil: it
// may, as far as that goes.
func (p Principal) Refusal(verb string) error {
	rule := accessOf(verb)
	if !p.Role.Includes(rule.Role) {
		return &DeniedError{Verb: verb, Role: p.Role, Need: rule.Role}
	}
	return p.Narrowed(verb, rule.Toolsets...)
}

// Narrowed returns a *NarrowedError if the principal's token is narrowed to other
// toolsets than those that have what it asks for; else nil.
func (p Principal) Narrowed(what string, toolsets ...string) error {
	if len(p.Toolsets) == 0 || slices.ContainsFunc(toolsets, func(t string) bool { return slices.Contains(p.Toolsets, t) }) {
		return nil
	}
	return &NarrowedError{What: what, Toolsets: toolsets, Has: p.Toolsets}
}

// May reports whether the principal may call a verb.
func (p Principal) May(verb string) bool { return p.Refusal(verb) == nil }

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
	return fmt.Sprintf("not allowed: %s is of toolset %s, and this token has only %s; ask an admin for a token with it", e.What, strings.Join(e.Toolsets, " or "), strings.Join(e.Has, ", "))
}

// Unwrap returns ErrNotAllowed.
func (e *NarrowedError) Unwrap() error { return ErrNotAllowed }
