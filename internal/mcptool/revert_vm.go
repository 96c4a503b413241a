package mcptool

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type revertInput struct {
	VMID     string `json:"vm_id" jsonschema_description:"The VM's name or ID, as text."`
	Snapshot string `json:"snapshot" jsonschema_description:"Name of a snapshot taken with snapshot_vm."`
	Confirm  bool   `json:"confirm,omitempty" jsonschema_description:"true: what changed since the snapshot may be lost. Without it the user is asked, if the client supports that."`
}

func revertVM(o Options, b *background) server.ServerTool {
	return defineCall("revert_vm", "Revert a VM",
		"Revert a persistent VM's disk to a snapshot and start the VM, or continue what ran in it where the snapshot has its memory; all changes since are lost. Refused while jobs run in it. "+
			"Returns when the VM accepts logins, or after 45 seconds while the work goes on.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in revertInput, c call) (changedVM, error) {
			if err := (snapshotInput{VMID: in.VMID, Snapshot: in.Snapshot}).check(); err != nil {
				return changedVM{}, err
			}
			question := fmt.Sprintf("Revert VM %s to snapshot %s? All changes since are lost.", in.VMID, in.Snapshot)
			if err := c.confirmed(ctx, in.Confirm, question); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, b, in.VMID, "The revert", func(ctx context.Context, ref string) (job.VMInfo, error) {
				return o.Engine.RevertVM(ctx, ref, in.Snapshot)
			})
		})
}
