package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type killInput struct {
	JobID  string `json:"job_id" jsonschema_description:"The job's ID."`
	Signal string `json:"signal,omitempty" jsonschema:"enum=@signals" jsonschema_description:"Default TERM. What is still running 5 seconds later gets KILL."`
}

type killOutput struct {
	JobID  string     `json:"job_id"`
	Result job.Killed `json:"result" jsonschema:"enum=killed,enum=already_terminated,enum=not_found"`
}

func killJob(e job.Engine) server.ServerTool {
	return define("kill_job", "Kill a job",
		"End a job's task and all processes it has started with a signal; the status becomes failed, reason killed. "+
			"Its own VM is destroyed, a persistent one stays. To send Ctrl-C without ending the job, use interact_with_job on a tty.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in killInput) (killOutput, error) {
			if err := (jobArg{in.JobID}).check(); err != nil {
				return killOutput{}, err
			}
			var bad faults
			bad.word("signal", in.Signal, job.Signals...)
			if err := bad.err(); err != nil {
				return killOutput{}, err
			}
			killed, err := e.Kill(ctx, in.JobID, in.Signal)
			if err != nil {
				return killOutput{}, err
			}
			return killOutput{JobID: in.JobID, Result: killed}, nil
		})
}
