package job

import "slices"

// Access says who may call a verb of Engine.
type Access struct {
	Verb string  // the method's name
	Role Role    // the least that may
	Of   Subject // what the verb is about
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
		{"Job", RoleRead, OfJob},
		{"Manifest", RoleRead, OfJob},
		{"Result", RoleRead, OfJob},
		{"List", RoleRead, OfJobs},
		{"Activity", RoleRead, OfJobs},
		{"Watch", RoleRead, OfJob},
		{"Output", RoleRead, OfJob},
		{"OpenArtifact", RoleRead, OfJob},
		{"VMs", RoleRead, OfVMs},
		{"VM", RoleRead, OfVM},
		{"CheckHost", RoleRead, OfAll},

		{"Submit", RoleRun, OfNew},
		{"Plan", RoleRun, OfNew},
		{"Cancel", RoleRun, OfJob},
		{"Kill", RoleRun, OfJob},
		{"Input", RoleRun, OfJob},
		{"Resize", RoleRun, OfJob},
		{"StartVM", RoleRun, OfVM},
		{"StopVM", RoleRun, OfVM},
		{"DestroyVM", RoleRun, OfVM},
		{"SuspendVM", RoleRun, OfVM},
		{"ResumeVM", RoleRun, OfVM},
		{"SnapshotVM", RoleRun, OfVM},
		{"RevertVM", RoleRun, OfVM},
		{"ListFiles", RoleRun, OfFile},
		{"ReadFile", RoleRun, OfFile},
		{"WriteFile", RoleRun, OfFile},
		{"EditFile", RoleRun, OfFile},
		{"ReadTree", RoleRun, OfFile},
		{"WriteTree", RoleRun, OfFile},
		{"DialVM", RoleRun, OfFile},
		{"Network", RoleRun, OfFile},

		{"ForgetVM", RoleAdmin, OfVM},
		{"Cleanup", RoleAdmin, OfAll},
		{"Tokens", RoleAdmin, OfAll},
		{"CreateToken", RoleAdmin, OfAll},
		{"RevokeToken", RoleAdmin, OfAll},
		{"Pools", RoleAdmin, OfAll},
		{"Pool", RoleAdmin, OfAll},
		{"CreatePool", RoleAdmin, OfAll},
		{"ResizePool", RoleAdmin, OfAll},
		{"RemovePool", RoleAdmin, OfAll},
		{"Engines", RoleAdmin, OfAll},
		{"Nodes", RoleAdmin, OfAll},
		{"CordonNode", RoleAdmin, OfAll},
		{"UncordonNode", RoleAdmin, OfAll},
	}
}

// Needs returns the least role that may call a verb; empty: nobody has decided.
func Needs(verb string) Role {
	all := Accesses()
	if at := slices.IndexFunc(all, func(a Access) bool { return a.Verb == verb }); at >= 0 {
		return all[at].Role
	}
	return ""
}

// May reports whether the principal's role includes a verb.
func (p Principal) May(verb string) bool { return p.Role.Includes(Needs(verb)) }
