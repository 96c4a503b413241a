package mcptool

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// maxKey bounds an idempotency key, in bytes.
const maxKey = 200

type submitInput struct {
	Manifest       job.Manifest `json:"manifest" jsonschema_description:"What to run and in which VM."`
	IdempotencyKey string       `json:"idempotency_key,omitempty" jsonschema_description:"Any text of your choice, at most 200 bytes: submitting again with the same key returns the first job and starts nothing; with another manifest it is an error."`
}

type submitOutput struct {
	JobID  string     `json:"job_id"`
	Status job.Status `json:"status"`
}

func submitJob(e job.Engine) server.ServerTool {
	return defineCall("submit_job", "Submit a job",
		"Run a script, a command or a Claude agent in a virtual machine of its own, which is destroyed afterwards (or in an existing one: manifest.vm). "+
			"Returns the job's ID at once; follow it with get_job_status, read it with get_job_result, both with wait_seconds. "+
			"To interact with a command use execute_command.",
		hints{openWorld: true},
		func(ctx context.Context, in submitInput, c call) (submitOutput, error) {
			var given struct{ Manifest json.RawMessage }
			if err := json.Unmarshal(c.raw, &given); err != nil || given.Manifest == nil {
				return submitOutput{}, &job.FieldError{
					Field: "manifest", Problem: "is required",
					Remedy: `give an object such as {"task": "uname -a", "agentType": "script"}`,
				}
			}
			manifest, err := job.DecodeManifest(given.Manifest)
			if err != nil {
				return submitOutput{}, err
			}
			if len(in.IdempotencyKey) > maxKey {
				return submitOutput{}, &job.FieldError{
					Field: "idempotency_key", Remedy: "use a shorter one, such as a UUID",
					Problem: fmt.Sprintf("is %d bytes, the limit is %d", len(in.IdempotencyKey), maxKey),
				}
			}
			j, err := e.Submit(ctx, job.Submission{Manifest: manifest, IdempotencyKey: in.IdempotencyKey, Client: clientName(ctx)})
			if err != nil {
				return submitOutput{}, err
			}
			return submitOutput{JobID: j.ID, Status: j.Status}, nil
		})
}
