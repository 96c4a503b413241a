package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type cancelOutput struct {
	JobID     string `json:"job_id"`
	Cancelled bool   `json:"cancelled"`
}

func cancelJob(e job.Engine) server.ServerTool {
	return define("cancel_job", "Cancel a job",
		"End a job that is waiting, being provisioned or running: its task is killed and its VM destroyed. "+
			"The status becomes failed with reason cancelled once its output so far is collected. "+
			"If the task has already exited, collecting its output stops 5 seconds later: what was collected is kept, and the task's own outcome stands. "+
			"Cancelling a finished job is an error.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in jobArg) (cancelOutput, error) {
			if err := in.check(); err != nil {
				return cancelOutput{}, err
			}
			if err := e.Cancel(ctx, in.JobID); err != nil {
				return cancelOutput{}, err
			}
			return cancelOutput{JobID: in.JobID, Cancelled: true}, nil
		})
}
