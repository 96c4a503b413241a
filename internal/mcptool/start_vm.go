package mcptool

import (
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

func startVM(o Options, b *background) server.ServerTool {
	return define("start_vm", "Start a VM",
		"Start a stopped persistent VM. Returns when it accepts logins, or after 45 seconds while the work goes on. A VM that is already running is fine.",
		hints{idempotent: true, openWorld: true},
		o.acting(b, "The start", job.Engine.StartVM))
}
