package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"
)

func stopVM(o Options, b *background) server.ServerTool {
	return define("stop_vm", "Stop a VM",
		"Shut down a persistent VM; its disk stays and start_vm starts it again. Refused while jobs run in it. Returns after at most 45 seconds while the work goes on.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (changedVM, error) {
			if err := in.check(); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, b, in.VMID, "The shutdown", o.Engine.StopVM)
		})
}
