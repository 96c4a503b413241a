package mcptool

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/server"
)

type destroyInput struct {
	VMID    string `json:"vm_id" jsonschema_description:"The VM's name or ID, as text."`
	Confirm bool   `json:"confirm,omitempty" jsonschema_description:"true: the VM and its disk may be lost. Without it the user is asked, if the client supports that."`
}

func destroyVM(o Options) server.ServerTool {
	return defineCall("destroy_vm", "Destroy a VM",
		"Destroy a persistent VM of ours and its disk, irreversibly. Refused while jobs run in it: kill or cancel them first. "+
			"Returns once that is decided; list_vms shows the VM until it is gone. VMs of single jobs are destroyed with them (cancel_job).",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in destroyInput, c call) (changedVM, error) {
			if err := (vmArg{in.VMID}).check(); err != nil {
				return changedVM{}, err
			}
			v, err := o.Engine.VM(ctx, in.VMID)
			if err != nil {
				return changedVM{}, vmError(err)
			}
			if err := c.confirmed(ctx, in.Confirm, fmt.Sprintf("Destroy VM %d (%s) and its disk?", v.ID, v.Name)); err != nil {
				return changedVM{}, err
			}
			v, err = o.Engine.DestroyVM(ctx, in.VMID)
			if err != nil {
				return changedVM{}, vmError(err)
			}
			return o.changedVM(v, ""), nil
		})
}
