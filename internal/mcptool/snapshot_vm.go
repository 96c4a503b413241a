package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type snapshotInput struct {
	VMID     string `json:"vm_id" jsonschema_description:"The VM's name or ID, as text."`
	Snapshot string `json:"snapshot" jsonschema_description:"Name of the snapshot: a letter, then letters, digits, - and _; at most 40."`
	Memory   bool   `json:"memory,omitempty" jsonschema_description:"true: include what runs in the VM: revert_vm continues it there. Refused while jobs run in it."`
}

func (in snapshotInput) check() error {
	var bad faults
	bad.required("vm_id", in.VMID, whichVM)
	bad.required("snapshot", in.Snapshot, "give a name such as clean")
	return bad.err()
}

func snapshotVM(o Options, b *background) server.ServerTool {
	return define("snapshot_vm", "Snapshot a VM",
		"Take a named snapshot of a persistent VM's disk, to return to with revert_vm. Needs a storage with snapshots.",
		hints{openWorld: true},
		func(ctx context.Context, in snapshotInput) (changedVM, error) {
			if err := in.check(); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, b, in.VMID, "The snapshot", func(ctx context.Context, ref string) (job.VMInfo, error) {
				return o.Engine.SnapshotVM(ctx, ref, in.Snapshot, in.Memory)
			})
		})
}
