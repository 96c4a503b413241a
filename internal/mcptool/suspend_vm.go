package mcptool

import (
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

func suspendVM(o Options, b *background) server.ServerTool {
	return define("suspend_vm", "Suspend a VM",
		"Write a persistent VM's memory to its disk and turn it off; resume_vm continues it where it was, in seconds. "+
			"Refused while jobs run in it. Returns after at most 45 seconds while the work goes on.",
		hints{idempotent: true, openWorld: true},
		o.acting(b, "The suspend", job.Engine.SuspendVM))
}
