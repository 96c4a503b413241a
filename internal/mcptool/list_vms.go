package mcptool

import (
	"context"
	"slices"

	"github.com/mark3labs/mcp-go/server"
)

type listVMsInput struct{}

type listVMsOutput struct {
	VMs []vmOutput `json:"vms" jsonschema_description:"Oldest first."`
}

// inText is without the ssh commands, which are long: get_vm has one VM's.
func (l listVMsOutput) inText() any {
	l.VMs = slices.Clone(l.VMs)
	for i := range l.VMs {
		l.VMs[i].SSH = ""
	}
	return l
}

func listVMs(o Options) server.ServerTool {
	return define("list_vms", "List VMs",
		"The VMs linus has created and not yet destroyed, with status, address and the jobs in them. Others on the host are never shown or touched.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, _ listVMsInput) (listVMsOutput, error) {
			vms, err := o.Engine.VMs(ctx)
			if err != nil {
				return listVMsOutput{}, err
			}
			out := listVMsOutput{VMs: make([]vmOutput, len(vms))}
			for i, v := range vms {
				out.VMs[i] = o.vmOutput(v)
			}
			return out, nil
		})
}
