// Package mcptool is linus as an MCP server: one file per tool, and the stdio
// transport. It turns arguments into calls of the engine and answers into
// structured results; it knows the engine by the interface below only.
package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Engine is what the tools call. Jobs live on when a call's context ends.
type Engine interface {
	Submit(ctx context.Context, s job.Submission) (job.Job, error)
	Job(ctx context.Context, id string) (job.Job, error)
	Result(ctx context.Context, id string) (job.Result, error)
	Cancel(ctx context.Context, id string) error
	List(ctx context.Context, f job.Filter) (job.Page, error)
	CheckHost(ctx context.Context) (job.HostReport, error)
}

// Options of a server.
type Options struct {
	Engine  Engine
	Version string // of linus, told to clients
	Log     *slog.Logger
}

const instructions = `Runs jobs (scripts, commands, Claude agents) in Proxmox virtual machines, one VM per job, destroyed afterwards.
submit_job answers at once with a job_id; ask get_job_status every few seconds until the status is success, failed or timeout, then get_job_result. Making a VM takes from seconds to a few minutes. check_host says whether the Proxmox host is ready, and what to do when it is not.`

// tools lists every tool.
func tools(e Engine) []server.ServerTool {
	return []server.ServerTool{
		submitJob(e), getJobStatus(e), getJobResult(e), cancelJob(e), listJobs(e), checkHost(e),
	}
}

// newServer makes the MCP server all transports share.
func newServer(o Options, extra ...server.ServerOption) *server.MCPServer {
	options := append([]server.ServerOption{
		server.WithToolCapabilities(false),
		server.WithInstructions(instructions),
		server.WithTitle("linus"),
		server.WithRecovery(),
	}, extra...)
	s := server.NewMCPServer("linus", o.Version, options...)
	s.AddTools(tools(o.Engine)...)
	return s
}

// hints tell clients what a tool may do.
type hints struct {
	readOnly, destructive, idempotent, openWorld bool
}

// define makes a tool whose arguments are In and whose result is Out, both
// structs. run's errors become tool errors, in words that say what to do next.
func define[In, Out any](name, title, description string, h hints, run func(context.Context, In) (Out, error)) server.ServerTool {
	return defineRaw(name, title, description, h, func(ctx context.Context, in In, _ []byte) (Out, error) { return run(ctx, in) })
}

// defineRaw is define for tools that look at the arguments' JSON themselves.
func defineRaw[In, Out any](name, title, description string, h hints, run func(context.Context, In, []byte) (Out, error)) server.ServerTool {
	tool := mcp.Tool{
		Name:            name,
		Title:           title,
		Description:     description,
		RawInputSchema:  schemaOf[In](true),
		RawOutputSchema: schemaOf[Out](false),
		Annotations: mcp.ToolAnnotation{
			Title:           title,
			ReadOnlyHint:    &h.readOnly,
			DestructiveHint: &h.destructive,
			IdempotentHint:  &h.idempotent,
			OpenWorldHint:   &h.openWorld,
		},
	}
	return server.ServerTool{Tool: tool, Handler: func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		raw := []byte("{}")
		if args := req.GetRawArguments(); args != nil {
			var err error
			if raw, err = json.Marshal(args); err != nil {
				return mcp.NewToolResultErrorFromErr("arguments", err), nil
			}
		}
		if string(raw) == "null" { // how some clients write "no arguments"
			raw = []byte("{}")
		}
		var in In
		if err := job.DecodeStrict("", raw, &in); err != nil {
			return mcp.NewToolResultError(words(err)), nil
		}
		out, err := run(ctx, in, raw)
		if err != nil {
			return mcp.NewToolResultError(words(err)), nil
		}
		return structured(out)
	}}
}

// structured is a result as structured content, and as JSON text for clients
// that know no other. Without HTML's escapes: models read it.
func structured(out any) (*mcp.CallToolResult, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(out); err != nil {
		return nil, fmt.Errorf("encode the result: %w", err)
	}
	return mcp.NewToolResultStructured(out, strings.TrimSuffix(text.String(), "\n")), nil
}

// words is an error with the next step in it.
func words(err error) string {
	var notComplete *job.NotCompleteError
	switch {
	case errors.Is(err, job.ErrNotFound):
		return err.Error() + ". Use list_jobs to see the jobs there are."
	case errors.Is(err, job.ErrCompleted):
		return err.Error() + ". Use get_job_result to read its result."
	case errors.As(err, &notComplete):
		return err.Error() + ". Use get_job_status until the status is success, failed or timeout, then ask again."
	}
	return err.Error()
}

// jobArg is the argument most tools take.
type jobArg struct {
	JobID string `json:"job_id" jsonschema_description:"The job's id, as submit_job answered it."`
}

func (a jobArg) check() error {
	if a.JobID == "" {
		return &job.FieldError{Field: "job_id", Problem: "is required", Remedy: "give the id submit_job answered; list_jobs shows them"}
	}
	return nil
}
