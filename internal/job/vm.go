package job

import (
	"slices"
	"time"
)

// VMState is the state of a VM of ours.
type VMState string

// A VM is intended (a row exists before it can), then created, then destroyed:
// it was seen gone. One that was to be destroyed and is not proven ours is left
// alone, until it is seen gone or an operator forgets it. A job that shares
// another's VM releases it after cleaning up.
const (
	VMIntended  VMState = "intended"
	VMCreated   VMState = "created"
	VMDestroyed VMState = "destroyed"
	VMReleased  VMState = "released"
	VMLeftAlone VMState = "left_alone"
	VMForgotten VMState = "forgotten"
)

// VMStates lists every state. A job without a VM has none of them, the empty one.
var VMStates = []VMState{VMIntended, VMCreated, VMDestroyed, VMReleased, VMLeftAlone, VMForgotten}

// vmTransitions is the whole life of a job's VM as data: from a state, the ones that may
// follow. One that is another job's is entered when it is created already, and a pool's is
// given back, by a job that then has none, when it does not answer. After a VM was destroyed
// another that a create has left can be found, which is left alone.
var vmTransitions = map[VMState][]VMState{
	"":          {VMIntended, VMCreated},
	VMIntended:  {VMCreated, VMDestroyed, VMLeftAlone},
	VMCreated:   {"", VMDestroyed, VMReleased, VMLeftAlone},
	VMDestroyed: {VMLeftAlone},
	VMLeftAlone: {VMDestroyed, VMForgotten},
}

// CanBecome reports whether a job's VM may go from s to next.
func (s VMState) CanBecome(next VMState) bool { return slices.Contains(vmTransitions[s], next) }

// Settled reports whether the VM's job is finished with it.
func (s VMState) Settled() bool {
	return s == VMDestroyed || s == VMReleased || s == VMLeftAlone || s == VMForgotten
}

// VMState is the state of the job's VM; empty: it has none.
func (j Job) VMState() VMState {
	if j.VM == nil {
		return ""
	}
	return j.VM.State
}

// VM is a virtual machine of ours. Job and Owner are the markers that prove it.
type VM struct {
	ID      int     `json:"id,omitempty"` // Proxmox VM ID; 0 until reserved
	Name    string  `json:"name"`         // DNS label, unique to the job
	Node    string  `json:"node,omitempty"`
	IP      string  `json:"ip,omitempty"`
	User    string  `json:"user,omitempty"`     // SSH user
	HostKey string  `json:"host_key,omitempty"` // guest's SSH host key, "ssh-ed25519 AAAA..."; pinned
	Job     string  `json:"job"`                // linus-job=<uuid> in the VM's description
	Owner   string  `json:"owner"`              // linus-owner=<installation id>
	State   VMState `json:"state"`

	ExpiresAt time.Time `json:"expires_at,omitzero"` // when a persistent VM is destroyed, once no job runs in it
	Unwanted  bool      `json:"unwanted,omitempty"`  // a persistent VM, or a pool's, is to be destroyed

	Reason string `json:"reason,omitempty"` // why it is left alone
	Remedy string `json:"remedy,omitempty"` // what an operator can do about it

	// Lent says that a pool's VM is the job's alone, with all of its directories.
	Lent bool `json:"lent,omitempty"`

	Source VMSource `json:"source,omitempty"` // where the job's VM came from; empty: it is another job's

	Status VMStatus `json:"status,omitempty"` // what the host said when it was asked; not stored
}

// VMInfo is a VM of ours, Status included.
type VMInfo struct {
	VM

	Lifecycle Lifecycle `json:"lifecycle"`
	Resources Resources `json:"resources"`
	Network   Network   `json:"network,omitzero"`
	Source    string    `json:"source"`         // the template or operating system it was created from
	Jobs      []string  `json:"jobs,omitempty"` // unfinished jobs that run in it
	CreatedAt time.Time `json:"created_at"`
	Principal string    `json:"principal,omitempty"` // the name of its owner; empty: the operator
}

// VMStatus is the status of a VM, as the host reports it.
type VMStatus string

// The statuses of a VM.
const (
	VMProvisioning VMStatus = "provisioning" // it is being created
	VMRunning      VMStatus = "running"
	VMStopped      VMStatus = "stopped"
	VMSuspended    VMStatus = "suspended" // off, with its memory on disk
	VMDestroying   VMStatus = "destroying"
	VMGone         VMStatus = "gone"    // the host has no VM of its ID, or another VM has it now
	VMUnknown      VMStatus = "unknown" // the host could not be asked
	// The host has a VM of its ID that is proven neither ours nor another's, or
	// that is on another node: linus does not touch it.
	VMUnproven VMStatus = "left_alone"
)

// Down reports whether nothing runs in a VM of this status.
func (s VMStatus) Down() bool { return s == VMStopped || s == VMSuspended || s == VMGone }
