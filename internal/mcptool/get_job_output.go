package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type outputInput struct {
	JobID        string `json:"job_id" jsonschema_description:"The job's ID."`
	Stream       string `json:"stream,omitempty" jsonschema:"enum=stdout,enum=stderr" jsonschema_description:"Only this one. Default: both."`
	Offset       int64  `json:"offset,omitempty" jsonschema_description:"Byte to start at: stdout_next of the previous call. Negative: from the end. Default 0. An offset in stderr if stream is stderr."`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema_description:"The same for stderr, if both streams are read."`
	Limit        *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"Bytes per stream. Default 16384."`
	StripANSI    bool   `json:"strip_ansi,omitempty" jsonschema_description:"Strip colours, escape sequences and all but the last state of progress bars."`
}

type outputOutput struct {
	JobID  string     `json:"job_id"`
	Status job.Status `json:"status"`
	outputPart
}

// outputPart is a part of a job's output.
type outputPart struct {
	Stdout        string `json:"stdout"`
	StdoutNext    int64  `json:"stdout_next" jsonschema_description:"The offset for the next call."`
	StdoutDropped int64  `json:"stdout_dropped,omitempty" jsonschema_description:"Bytes missing before this: the output was larger than what is kept."`
	Stderr        string `json:"stderr"`
	StderrNext    int64  `json:"stderr_next"`
	StderrDropped int64  `json:"stderr_dropped,omitempty"`
	Complete      bool   `json:"complete" jsonschema_description:"The job has finished and there is no more output."`
	InvalidUTF8   bool   `json:"invalid_utf8,omitempty" jsonschema_description:"Bytes that are not UTF-8 were replaced."`
}

func getJobOutput(e job.Engine) server.ServerTool {
	return define("get_job_output", "Job output",
		"A job's output from a byte offset on, while it runs and after. Call again with the next offsets until complete. "+
			"For the last lines use tail_job_output; for a finished job's exit code and output get_job_result.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in outputInput) (outputOutput, error) {
			if err := (jobArg{in.JobID}).check(); err != nil {
				return outputOutput{}, err
			}
			var bad faults
			bad.word("stream", in.Stream, streams...)
			limit := bad.number("limit", in.Limit, defaultBytes, 1, mostBytes)
			if in.Stream != "" && in.StderrOffset != 0 {
				bad.add("stderr_offset", "is for both streams", "give offset, or omit stream")
			}
			if err := bad.err(); err != nil {
				return outputOutput{}, err
			}
			at := position{in.Offset, in.StderrOffset}
			if in.Stream == job.Stderr {
				at[1] = in.Offset
			}
			return output(ctx, e, in.JobID, in.Stream, at, limit, in.StripANSI)
		})
}

// position is an offset in each stream: stdout, stderr.
type position [2]int64

// output reads both streams, or only the named one, from a position.
func output(ctx context.Context, e job.Engine, id, only string, at position, limit int, plain bool) (outputOutput, error) {
	part, err := readPart(ctx, e, id, only, at, limit, plain)
	if err != nil {
		return outputOutput{}, err
	}
	j, err := e.Job(ctx, id)
	return outputOutput{JobID: id, Status: j.Status, outputPart: part}, err
}

// readPart is output without the job's status.
func readPart(ctx context.Context, e job.Engine, id, only string, at position, limit int, plain bool) (outputPart, error) {
	out := outputPart{Complete: true}
	var pieces [2]piece
	for i, stream := range streams {
		if only != "" && only != stream {
			continue
		}
		p, err := read(ctx, e, id, stream, at[i], limit, plain)
		if err != nil {
			return outputPart{}, err
		}
		pieces[i] = p
		out.Complete = out.Complete && p.whole
		out.InvalidUTF8 = out.InvalidUTF8 || p.invalid
	}
	out.Stdout, out.StdoutNext, out.StdoutDropped = pieces[0].text, pieces[0].next, pieces[0].dropped
	out.Stderr, out.StderrNext, out.StderrDropped = pieces[1].text, pieces[1].next, pieces[1].dropped
	return out, nil
}

// end returns where the streams end now.
func end(ctx context.Context, e job.Engine, id string) (position, error) {
	var at position
	for i, stream := range streams {
		chunk, err := e.Output(ctx, id, stream, -1, 1)
		if err != nil {
			return at, err
		}
		at[i] = chunk.Next
	}
	return at, nil
}
