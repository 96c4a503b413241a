package job

import (
	"cmp"
	"context"
	"time"

	"linus/internal/vm"
)

// CheckpointMode says whether checkpoints are made without being asked for.
type CheckpointMode string

// The modes.
const (
	CheckpointsOff    CheckpointMode = "off"    // only those that somebody asks for
	CheckpointsTested CheckpointMode = "tested" // auto on nodes where a test has shown that VMs go on from them
	CheckpointsAuto   CheckpointMode = "auto"   // of what is asked for a second time
	CheckpointsAlways CheckpointMode = "always" // of what is asked for once
)

// CheckpointSpec is a checkpoint that is asked for. Empty fields get the defaults of a manifest.
type CheckpointSpec struct {
	Template  string       `json:"template,omitempty"` // name or VM ID; VMs that ask for it by the same text go on from it
	Resources vm.Resources `json:"resources,omitzero"`
	Node      string       `json:"node,omitempty"` // empty: one that has room
}

// CheckpointStatus is the state of a checkpoint.
type CheckpointStatus string

// The states.
const (
	CheckpointMaking    CheckpointStatus = "making"
	CheckpointReady     CheckpointStatus = "ready"
	CheckpointFailed    CheckpointStatus = "failed"     // it could not be made
	CheckpointLeaving   CheckpointStatus = "destroying" // nobody wants it any more
	CheckpointGone      CheckpointStatus = "gone"
	CheckpointLeftAlone CheckpointStatus = "left_alone" // the host does not prove it to be ours: linus does not touch it
)

// CheckpointStatuses are all of them.
var CheckpointStatuses = []CheckpointStatus{CheckpointMaking, CheckpointReady, CheckpointFailed, CheckpointLeaving, CheckpointGone, CheckpointLeftAlone}

// CheckpointInfo is a checkpoint as it is shown: a booted VM's memory, kept beside a template, from
// which VMs of that template and size go on instead of booting.
type CheckpointInfo struct {
	ID        string           `json:"id"`
	Name      string           `json:"name"`
	VMID      int              `json:"vm_id,omitempty"` // of the template on the host that has its disk
	Node      string           `json:"node,omitempty"`
	Template  string           `json:"template"`
	Resources vm.Resources     `json:"resources"`
	Status    CheckpointStatus `json:"status"`
	Text      string           `json:"text,omitempty"` // what is happening, or went wrong
	vm.Checkpoint
	CreatedAt time.Time `json:"created_at"`
}

// CheckpointOf describes a checkpoint.
func CheckpointOf(v vm.VM) CheckpointInfo {
	c := CheckpointInfo{
		ID: v.Job, Name: v.Name, VMID: v.ID, Node: v.Node, Template: v.Template, Resources: v.Resources, Checkpoint: *v.Checkpoint, CreatedAt: v.CreatedAt,
		Status: CheckpointMaking,
	}
	own := vm.Own{}
	if v.Own != nil {
		own = *v.Own
	}
	c.Text = cmp.Or(own.Failed, own.Waits, own.Progress)
	switch {
	case own.Failed != "":
		c.Status = CheckpointFailed
	case v.State == vm.LeftAlone:
		c.Status, c.Text = CheckpointLeftAlone, v.Reason
	case v.State.Settled():
		c.Status = CheckpointGone
	case v.Unwanted:
		c.Status = CheckpointLeaving
	case v.Saved():
		c.Status = CheckpointReady
	}
	return c
}

// Checkpoints are the operations on checkpoints. ref is a checkpoint's name, the VM ID of its
// template, or its UUID.
type Checkpoints interface {
	// Checkpoints returns those there are or are being made, oldest first.
	Checkpoints(ctx context.Context) ([]CheckpointInfo, error)
	// Checkpoint returns one. By its UUID it is found also when it is gone, or could not be made.
	Checkpoint(ctx context.Context, ref string) (CheckpointInfo, error)
	// CreateCheckpoint has one made: a VM boots from the template, its memory is saved, and it
	// does not run again. It returns once that is stored.
	CreateCheckpoint(ctx context.Context, spec CheckpointSpec) (CheckpointInfo, error)
	// RemoveCheckpoint has one destroyed. VMs that went on from it stay.
	RemoveCheckpoint(ctx context.Context, ref string) (CheckpointInfo, error)
}
