package job

import (
	"cmp"
	"context"
	"time"

	"linus/internal/vm"
)

// CheckpointMode says whether checkpoints are made without a request.
type CheckpointMode string

// The modes.
const (
	CheckpointsOff    CheckpointMode = "off"    // only those that somebody requests
	CheckpointsTested CheckpointMode = "tested" // auto on nodes where a test has shown that VMs resume from checkpoints
	CheckpointsAuto   CheckpointMode = "auto"   // for a template and size requested a second time
	CheckpointsAlways CheckpointMode = "always" // for every template and size requested
)

// CheckpointSpec is a request for a checkpoint. Empty fields get the defaults of a manifest.
type CheckpointSpec struct {
	Template  string       `json:"template,omitempty"` // name or VM ID; VMs that give their template by the same text resume from the checkpoint
	Resources vm.Resources `json:"resources,omitzero"`
	Node      string       `json:"node,omitempty"` // empty: any node that has room
}

// CheckpointStatus is the state of a checkpoint.
type CheckpointStatus string

// The states.
const (
	CheckpointMaking    CheckpointStatus = "making"
	CheckpointReady     CheckpointStatus = "ready"
	CheckpointFailed    CheckpointStatus = "failed"     // it could not be made
	CheckpointLeaving   CheckpointStatus = "destroying" // nobody wants it anymore
	CheckpointGone      CheckpointStatus = "gone"
	CheckpointLeftAlone CheckpointStatus = "left_alone" // the host does not prove that linus owns it, so linus does not touch it
)

// CheckpointStatuses are all statuses.
var CheckpointStatuses = []CheckpointStatus{CheckpointMaking, CheckpointReady, CheckpointFailed, CheckpointLeaving, CheckpointGone, CheckpointLeftAlone}

// CheckpointInfo describes a checkpoint: the memory of a booted VM, kept beside a template, from
// which VMs of that template and size resume instead of booting.
type CheckpointInfo struct {
	ID        string           `json:"id"`
	Name      string           `json:"name"`
	VMID      int              `json:"vm_id,omitempty"` // of the template on the host that has the checkpoint's disk
	Node      string           `json:"node,omitempty"`
	Template  string           `json:"template"`
	Resources vm.Resources     `json:"resources"`
	Status    CheckpointStatus `json:"status"`
	Text      string           `json:"text,omitempty"` // what is happening, or what went wrong
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
	// Checkpoints returns the checkpoints that exist or are being made, oldest first.
	Checkpoints(ctx context.Context) ([]CheckpointInfo, error)
	// Checkpoint returns one checkpoint. By its UUID it is found even if it is gone or could not be made.
	Checkpoint(ctx context.Context, ref string) (CheckpointInfo, error)
	// CreateCheckpoint starts to make a checkpoint: a VM boots from the template, its memory is
	// saved, and the VM never runs again. It returns once the request is stored.
	CreateCheckpoint(ctx context.Context, spec CheckpointSpec) (CheckpointInfo, error)
	// RemoveCheckpoint starts to destroy a checkpoint. VMs that resumed from it stay.
	RemoveCheckpoint(ctx context.Context, ref string) (CheckpointInfo, error)
}
