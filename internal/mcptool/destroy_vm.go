package mcptool

import (
	"context"
	"fmt"

	"github.com/mark3labs/mcp-go/server"
)

type destroyInput struct {
	VMID    string `json:"vm_id" jsonschema_description:"The VM's name or ID, as text."`
	Confirm bool   `json:"confirm,omitempty" jsonschema_description:"true: the VM and its disk may be lost. Without it the user is asked, where the client can."`
}

func destroyVM(o Options) server.ServerTool {
	return defineCall("destroy_vm", "Destroy a VM",
		"Destroy a persistent VM of ours with its disk, for good. Refused while jobs run in it: kill or cancel them first. "+
			"Answers once that is decided; list_vms shows it until it is gone. VMs of single jobs go by themselves (cancel_job).",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in destroyInput, c call) (changedVM, error) {
			if err := (vmArg{in.VMID}).check(); err != nil {
				return changedVM{}, err
			}
			v, err := o.Engine.VM(ctx, in.VMID)
			if err != nil {
				return changedVM{}, vmError(err)
			}
			if err := c.confirmed(ctx, in.Confirm, fmt.Sprintf("Destroy VM %d (%s) with its disk?", v.ID, v.Name)); err != nil {
				return changedVM{}, err
			}
			v, err = o.Engine.DestroyVM(ctx, in.VMID)
			if err != nil {
				return changedVM{}, vmError(err)
			}
			return o.changedVM(v, ""), nil
		})
}
