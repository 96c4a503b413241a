package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"
)

func getVM(o Options) server.ServerTool {
	return define("get_vm", "VM",
		"One VM of ours: status, address, user, ssh command, the jobs in it, when it expires.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (vmOutput, error) {
			if err := in.check(); err != nil {
				return vmOutput{}, err
			}
			v, err := o.Engine.VM(ctx, in.VMID)
			if err != nil {
				return vmOutput{}, vmError(err)
			}
			return o.vmOutput(v), nil
		})
}
