package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"
)

func resumeVM(o Options, b *background) server.ServerTool {
	return define("resume_vm", "Resume a VM",
		"Continue a suspended persistent VM where it was suspended, with its clock set. Returns when it accepts logins, or after 45 seconds while the work goes on. A VM that is already running is fine.",
		hints{idempotent: true, openWorld: true},
		func(ctx context.Context, in vmArg) (changedVM, error) {
			if err := in.check(); err != nil {
				return changedVM{}, err
			}
			return o.act(ctx, b, in.VMID, "The resume", o.Engine.ResumeVM)
		})
}
