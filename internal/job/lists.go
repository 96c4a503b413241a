package job

import "slices"

// DefaultSystem is the system that templates are built from.
const DefaultSystem = "debian-12"

// Signals are the signals a task can be killed with; the first is the default.
var Signals = []string{"TERM", "KILL", "INT", "HUP", "QUIT"}

// The phases of a job's life, as events, metrics and traces name them. A requested VM has
// PhaseProvision and PhaseDestroy.
const (
	PhaseQueue     = "queue"     // waits for a slot
	PhaseProvision = "provision" // creates its VM
	PhasePush      = "push"      // puts runner, task and files into the VM
	PhaseStart     = "start"     // starts the task, detached
	PhaseRun       = "run"       // until something ends the task
	PhaseCollect   = "collect"   // fetches output and artifacts
	PhaseDestroy   = "destroy"   // destroys the VM
	PhaseRelease   = "release"   // releases a VM that stays, instead of PhaseDestroy
)

// Phases are the phases of a job with a task, in order.
var Phases = []string{PhaseProvision, PhasePush, PhaseStart, PhaseRun, PhaseCollect, PhaseDestroy}

// Toolsets are the groups of tools that MCP clients can be given.
var Toolsets = []string{"jobs", "exec", "vm", "files", "admin"}

// DispatchToolset has no tools: dispatchers need it for their verbs and to submit jobs as sessions. A token
// has it only if it is granted explicitly, or if the token is an admin's and not narrowed to toolsets.
const DispatchToolset = "dispatch"

// TokenToolsets are the toolsets that tokens can be narrowed to.
var TokenToolsets = append(slices.Clip(Toolsets), DispatchToolset)
