package mcptool

import (
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

func stopVM(o Options, b *background) server.ServerTool {
	return define("stop_vm", "Stop a VM",
		"Shut down a persistent VM; its disk stays and start_vm starts it again. Refused while jobs run in it. Returns after at most 45 seconds while the work goes on.",
		hints{destructive: true, idempotent: true, openWorld: true},
		o.acting(b, "The shutdown", job.Engine.StopVM))
}
