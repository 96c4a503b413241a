package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type submitInput struct {
	Manifest       job.Manifest `json:"manifest" jsonschema_description:"What to run and in which VM."`
	IdempotencyKey string       `json:"idempotency_key,omitempty" jsonschema_description:"Any text of your choice, at most 200 bytes: submitting again with the same key returns the first job and starts nothing; with another manifest it is an error."`
	Wait           *int         `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Seconds to wait for the job to finish, 0 to 45. Default 0: the job's ID at once."`
}

func submitJob(e job.Engine) server.ServerTool {
	return defineCall("submit_job", "Submit a job",
		"Run a script, a command or a Claude agent in a virtual machine of its own, which is destroyed afterwards (or in an existing one: manifest.vm). "+
			"With wait_seconds the result is in the same call if the job finishes in time; if not, get_job_result with wait_seconds goes on waiting. "+
			"A call that is cancelled or cut off does not cancel the job. To interact with a command use execute_command.",
		hints{openWorld: true},
		func(ctx context.Context, in submitInput, c call) (startedOutput, error) {
			given, _ := c.tree.(map[string]any)
			if given["manifest"] == nil {
				return startedOutput{}, &job.FieldError{
					Field: "manifest", Problem: "is required",
					Remedy: `give an object such as {"task": "uname -a", "agentType": "script"}`,
				}
			}
			if err := in.Manifest.Check(given["manifest"]); err != nil {
				return startedOutput{}, err
			}
			if err := job.CheckKey(in.IdempotencyKey); err != nil {
				return startedOutput{}, err
			}
			wait, err := waitTime(in.Wait)
			if err != nil {
				return startedOutput{}, err
			}
			j, err := e.Submit(ctx, job.Submission{Manifest: in.Manifest, IdempotencyKey: in.IdempotencyKey, Client: clientName(ctx)})
			if err != nil {
				return startedOutput{}, err
			}
			return started(ctx, e, c, j, wait), nil
		})
}
