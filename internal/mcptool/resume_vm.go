package mcptool

import (
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

func resumeVM(o Options, b *background) server.ServerTool {
	return define("resume_vm", "Resume a VM",
		"Continue a suspended persistent VM where it was suspended, with its clock set. Returns when it accepts logins, or after 45 seconds while the work goes on. A VM that is already running is fine.",
		hints{idempotent: true, openWorld: true},
		o.acting(b, "The resume", job.Engine.ResumeVM))
}
