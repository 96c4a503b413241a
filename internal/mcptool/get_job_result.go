package mcptool

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Bounds of max_bytes.
const (
	defaultBytes = 16 << 10
	mostBytes    = 1 << 20
)

type resultInput struct {
	JobID    string `json:"job_id" jsonschema_description:"The job's id, as submit_job answered it."`
	MaxBytes *int   `json:"max_bytes,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"Bytes of each of output and stderr to answer, 1 to 1048576. Default 16384. Of longer ones head and tail are answered, with a marker between."`
}

type resultOutput struct {
	JobID             string     `json:"job_id"`
	Status            job.Status `json:"status" jsonschema:"enum=success,enum=failed,enum=timeout"`
	Reason            job.Reason `json:"reason" jsonschema_description:"exit_status: the task ended by itself, see exit_code. Else cancelled, killed, timeout, provision_failed, start_failed, lost or internal."`
	ExitCode          *int       `json:"exit_code,omitempty" jsonschema_description:"The task's exit code; absent when it never ran to an end."`
	Output            string     `json:"output" jsonschema_description:"The task's stdout."`
	Stderr            string     `json:"stderr" jsonschema_description:"The task's stderr."`
	OutputBytes       int64      `json:"output_bytes" jsonschema_description:"Bytes the task wrote to stdout."`
	StderrBytes       int64      `json:"stderr_bytes" jsonschema_description:"Bytes the task wrote to stderr."`
	Truncated         bool       `json:"truncated" jsonschema_description:"output or stderr is not whole here."`
	OutputIncomplete  bool       `json:"output_incomplete,omitempty" jsonschema_description:"The VM was lost before all output could be fetched."`
	OutputInvalidUTF8 bool       `json:"output_invalid_utf8,omitempty" jsonschema_description:"Bytes of output that are not UTF-8 were replaced."`
	StderrInvalidUTF8 bool       `json:"stderr_invalid_utf8,omitempty" jsonschema_description:"Bytes of stderr that are not UTF-8 were replaced."`
	Error             string     `json:"error,omitempty" jsonschema_description:"What went wrong and what to do."`
	Duration          float64    `json:"duration_seconds" jsonschema_description:"How long the task ran."`
}

func getJobResult(e Engine) server.ServerTool {
	return define("get_job_result", "Job result",
		"What a finished job came to: exit code, stdout (output), stderr, error. "+
			"For success, failed and timeout; before the end it is an error that names the status.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in resultInput) (resultOutput, error) {
			if err := (jobArg{in.JobID}).check(); err != nil {
				return resultOutput{}, err
			}
			limit, err := bounded("max_bytes", in.MaxBytes, defaultBytes, mostBytes)
			if err != nil {
				return resultOutput{}, err
			}
			r, err := e.Result(ctx, in.JobID)
			if err != nil {
				return resultOutput{}, err
			}
			out := resultOutput{
				JobID: r.JobID, Status: r.Status, Reason: r.Reason, ExitCode: r.ExitCode, Error: r.Error,
				OutputBytes: r.StdoutInfo.Total, StderrBytes: r.StderrInfo.Total, Duration: r.Duration.Seconds(),
				OutputIncomplete:  r.StdoutInfo.Incomplete || r.StderrInfo.Incomplete,
				OutputInvalidUTF8: !utf8.Valid(r.Stdout), StderrInvalidUTF8: !utf8.Valid(r.Stderr),
			}
			var cutOut, cutErr bool
			out.Output, cutOut = headAndTail(r.Stdout, limit)
			out.Stderr, cutErr = headAndTail(r.Stderr, limit)
			out.Truncated = cutOut || cutErr || r.StdoutInfo.Dropped > 0 || r.StderrInfo.Dropped > 0
			return out, nil
		})
}

// headAndTail is data as text; of more than limit bytes, the first and the last
// half of limit with a marker between, and true.
func headAndTail(data []byte, limit int) (string, bool) {
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	if len(text) <= limit {
		return text, false
	}
	head, tail := limit/2, len(text)-limit/2
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[linus: %d bytes left out here; max_bytes asks for more]\n%s", text[:head], tail-head, text[tail:]), true
}

// bounded is an optional number from 1 to most.
func bounded(name string, given *int, def, most int) (int, error) {
	switch {
	case given == nil:
		return def, nil
	case *given < 1 || *given > most:
		return 0, &job.FieldError{Field: name, Problem: fmt.Sprintf("%d is out of range", *given), Remedy: fmt.Sprintf("give 1 to %d", most)}
	default:
		return *given, nil
	}
}
