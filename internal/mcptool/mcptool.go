// Package mcptool is linus as an MCP server: one file per tool, the resources,
// and the transports stdio and Streamable HTTP. It turns arguments into calls
// of the engine and answers into structured results; it knows the engine by
// job.Engine only.
package mcptool

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Options of a server.
type Options struct {
	Engine  job.Engine
	Version string // of linus, told to clients
	Log     *slog.Logger
	// What of the tools there is: those of some sets only (of job.Toolsets; empty:
	// all), without those that change anything, without those that cannot be
	// undone. Prompts and resources that mean a missing tool are missing, too.
	Toolsets           []string
	ReadOnly           bool
	DisableDestructive bool
	// SSHCommand is the shell command that logs in to a VM. Nil: ssh USER@IP.
	SSHCommand func(vm job.VM) string

	notice time.Duration // between two notices to a subscriber; tests have no second to lose
}

// mcpServer is the MCP server all transports share, and what it has running.
type mcpServer struct {
	*server.MCPServer
	background *background
	notices    *notices
}

func newServer(o Options, extra ...server.ServerOption) *mcpServer {
	o.Engine = job.Worded(o.Engine, words)
	s := &mcpServer{background: newBackground(o.Log), notices: newNotices(o.Engine, cmp.Or(o.notice, noticeTime), o.Log)}
	all := tools(o, s.background)
	has := havingTools(all)
	completer := completer{o.Engine}
	options := append([]server.ServerOption{
		server.WithToolCapabilities(false),
		server.WithResourceCapabilities(true, false),
		server.WithPromptCapabilities(false),
		server.WithCompletions(),
		server.WithPromptCompletionProvider(completer),
		server.WithResourceCompletionProvider(completer),
		server.WithInstructions(instructions(has)),
		server.WithTitle("linus"),
		server.WithRecovery(),
		server.WithResourceRecovery(),
		server.WithHooks(s.notices.hooks()),
	}, extra...)
	s.MCPServer = server.NewMCPServer("linus", o.Version, options...)
	s.AddTools(all...)
	s.AddPrompts(prompts(o.Engine, has)...)
	s.AddResources(hostResources(o.Engine, has)...)
	s.AddResourceTemplates(jobResources(o.Engine, has)...)
	return s
}

// close ends what runs beyond calls, and waits for it.
func (s *mcpServer) close() {
	s.notices.close()
	s.background.close()
}

// errorText is an error in our words, with the next step in it.
func errorText(err error) string {
	var notComplete *job.NotCompleteError
	text := words.In(err.Error())
	switch {
	case errors.Is(err, job.ErrNotFound):
		return text + ". Use list_jobs to see the jobs there are."
	case errors.Is(err, job.ErrCompleted):
		return text + ". Use get_job_result to read its result."
	case errors.As(err, &notComplete):
		return text + ". Call again with wait_seconds until the status is success, failed or timeout."
	}
	return text
}

// jobArg is the argument most tools take.
type jobArg struct {
	JobID string `json:"job_id" jsonschema_description:"The job's ID."`
}

func (a jobArg) check() error {
	if a.JobID == "" {
		return &job.FieldError{Field: "job_id", Problem: "is required", Remedy: "give the ID that submit_job or execute_command returned; list_jobs shows them"}
	}
	return nil
}
