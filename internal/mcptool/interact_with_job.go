package mcptool

import (
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Output within quietTime of the last belongs to the same answer.
const (
	defaultAnswer = 500   // milliseconds
	mostAnswer    = 10000 // milliseconds
	quietTime     = 80 * time.Millisecond
	lookTime      = 20 * time.Millisecond
)

type interactInput struct {
	JobID     string `json:"job_id" jsonschema_description:"The job's ID."`
	Input     string `json:"input,omitempty" jsonschema_description:"Text for the task's stdin, exactly as given, at most 4 MiB: end a line with \\n. On a terminal \\u0003 is Ctrl-C."`
	Close     bool   `json:"close,omitempty" jsonschema_description:"Close stdin after the input."`
	Wait      *int   `json:"wait_ms,omitempty" jsonschema:"minimum=0,maximum=10000" jsonschema_description:"Milliseconds to wait for an answer, 0 to 10000. Default 500. Returns sooner once output has arrived and paused."`
	StripANSI bool   `json:"strip_ansi,omitempty" jsonschema_description:"Strip colours and escape sequences."`
}

func interactWithJob(e job.Engine) server.ServerTool {
	return define("interact_with_job", "Type into a job",
		"Send input to a running task whose stdin is open (execute_command, or a manifest with stdin open), and return what it writes next. "+
			"For shells, REPLs, password prompts and yes-no questions. An error when stdin is closed or the job has ended. "+
			"For later output call get_job_output with the next offsets.",
		hints{openWorld: true},
		func(ctx context.Context, in interactInput) (outputOutput, error) {
			if err := (jobArg{in.JobID}).check(); err != nil {
				return outputOutput{}, err
			}
			var bad faults
			wait := bad.number("wait_ms", in.Wait, defaultAnswer, 0, mostAnswer)
			if in.Input == "" && !in.Close {
				bad.add("input", "is required", "give text, or close: true; get_job_output only reads")
			}
			if err := bad.err(); err != nil {
				return outputOutput{}, err
			}
			before, err := end(ctx, e, in.JobID)
			if err != nil {
				return outputOutput{}, err
			}
			if err := e.Input(ctx, in.JobID, []byte(in.Input), in.Close); err != nil {
				return outputOutput{}, err
			}
			if err := awaitAnswer(ctx, e, in.JobID, before, time.Duration(wait)*time.Millisecond); err != nil {
				return outputOutput{}, err
			}
			return output(ctx, e, in.JobID, "", before, defaultBytes, in.StripANSI)
		})
}

// awaitAnswer waits until output after a position has arrived and paused, the
// job has ended, or the time is up.
func awaitAnswer(ctx context.Context, e job.Engine, id string, before position, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	at, changed := before, time.Time{}
	for time.Now().Before(deadline) {
		over := true
		for i, stream := range streams {
			chunk, err := e.Output(ctx, id, stream, at[i], defaultBytes)
			if err != nil {
				return err
			}
			if len(chunk.Data) > 0 {
				at[i], changed = chunk.Next, time.Now()
			}
			over = over && chunk.Complete
		}
		if over || at != before && time.Since(changed) >= quietTime {
			return nil
		}
		if err := pause(ctx, lookTime); err != nil {
			return err
		}
	}
	return nil
}
