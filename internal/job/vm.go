package job

import (
	"time"

	"linus/internal/vm"
)

// VMState is the state of the job's VM; empty: it has none.
func (j Job) VMState() vm.State {
	if j.VM == nil {
		return ""
	}
	return j.VM.State
}

// VMInfo is a VM of ours, Status included.
type VMInfo struct {
	vm.VM

	Lifecycle vm.Lifecycle `json:"lifecycle"`
	Resources vm.Resources `json:"resources"`
	Network   vm.Network   `json:"network,omitzero"`
	Source    string       `json:"source"`         // the template or operating system it was created from
	Jobs      []string     `json:"jobs,omitempty"` // unfinished jobs that run in it
	CreatedAt time.Time    `json:"created_at"`
	Principal string       `json:"principal,omitempty"` // the name of its owner; empty: the operator
}
