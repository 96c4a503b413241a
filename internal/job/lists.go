package job

import "slices"

// DefaultSystem is what templates are built from.
const DefaultSystem = "debian-12"

// Signals are what a task can be killed with; the first is the default.
var Signals = []string{"TERM", "KILL", "INT", "HUP", "QUIT"}

// The phases of a job's life, as events, metrics and traces name them. A VM that somebody
// has asked for has PhaseProvision and PhaseDestroy.
const (
	PhaseQueue     = "queue"     // waits for a slot
	PhaseProvision = "provision" // creates its VM
	PhasePush      = "push"      // puts runner, task and files into the VM
	PhaseStart     = "start"     // starts the task, detached
	PhaseRun       = "run"       // until something ends the task
	PhaseCollect   = "collect"   // fetches output and artifacts
	PhaseDestroy   = "destroy"   // destroys the VM
	PhaseRelease   = "release"   // gives back a VM that stays: in the place of PhaseDestroy
)

// Phases are those of a job with a task, in order.
var Phases = []string{PhaseProvision, PhasePush, PhaseStart, PhaseRun, PhaseCollect, PhaseDestroy}

// Toolsets are the groups of tools that MCP clients can be given.
var Toolsets = []string{"jobs", "exec", "vm", "files", "admin"}

// DispatchToolset has no tools: its verbs, and to submit jobs as sessions, are for dispatchers. A
// token has it only if it is given it, or is an admin's that is not narrowed to toolsets.
const DispatchToolset = "dispatch"

// TokenToolsets are those that tokens are narrowed to.
var TokenToolsets = append(slices.Clip(Toolsets), DispatchToolset)
