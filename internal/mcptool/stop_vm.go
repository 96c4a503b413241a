package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"
)

func stopVM(o Options, b *background) server.ServerTool {
	return define("stop_vm", "Stop a VM",
		"Shut a persistent VM down; its disk stays, start_vm brings it back. Refused while jobs run in it. Answers after 45 seconds at most, while it goes on.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (changedVM, error) {
			if err := in.check(); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, b, in.VMID, "The shutdown", o.Engine.StopVM)
		})
}
