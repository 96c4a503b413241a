// Package mcptool is linus as an MCP server: the tools, with a file for each toolset, the
// resources, and the transports stdio and Streamable HTTP. It turns arguments into calls of the
// engine and results into structured content. It knows the engine only as job.Engine.
package mcptool

import (
	"cmp"
	"encoding/base64"
	"errors"
	"log/slog"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/mcptask"
	"linus/internal/vm"
)

// Options of a server.
type Options struct {
	Engine  job.Engine
	Version string // of linus, reported to clients
	Log     *slog.Logger
	// These fields select the tools: those of some sets (of job.Toolsets; empty: all), those that
	// change nothing, and those that do nothing irreversible. Prompts and resources that refer to a
	// missing tool are left out, too.
	Toolsets           []string
	ReadOnly           bool
	DisableDestructive bool
	Icon               []byte // of linus, SVG; empty: none
	// Retention is how long a job is kept after its end; 0: forever.
	Retention time.Duration
	// SSHCommand is the shell command that logs in to a VM.
	SSHCommand func(v vm.VM) string
	// Challenge returns the WWW-Authenticate header for an OAuth token without the scope of the
	// role that a tool needs; nil: there are no OAuth tokens.
	Challenge func(need job.Role) string

	notice time.Duration // between two notices to a subscriber; shorter in tests
	answer time.Duration // answerTime; longer in tests

	background *background // of the server that has the tools
}

// mcpServer is the MCP server that all transports share, with its background work.
type mcpServer struct {
	*server.MCPServer
	background *background
	notices    *notices
	tasks      *mcptask.Server // nil: no tool begins tasks
}

func newServer(o Options, extra ...server.ServerOption) *mcpServer {
	o.Engine = job.Phrased(o.Engine, words)
	s := &mcpServer{background: newBackground(o.Log), notices: newNotices(o.Engine, cmp.Or(o.notice, noticeTime), o.Log)}
	o.background = s.background
	all := tools(o)
	has := havingTools(all)
	completer := completer{o.Engine}
	hooks := s.notices.hooks()
	filterLists(hooks)
	if has.any(taskTools...) {
		mcptask.Offer(hooks)
		s.tasks = mcptask.New(mcptask.Options{
			Source: jobTasks{o, &job.Looks[subject, mcptask.Task]{}}, Info: mcp.Implementation{Name: "linus", Title: "linus", Version: o.Version},
			Every: cmp.Or(o.notice, noticeTime), Subscribe: s.notices.subscribe,
		})
	}
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
		server.WithHooks(hooks),
		server.WithToolHandlerMiddleware(refuseTools),
	}, extra...)
	if len(o.Icon) > 0 {
		options = append(options, server.WithIcons(mcp.Icon{Src: "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(o.Icon), MIMEType: "image/svg+xml", Sizes: []string{"any"}}))
	}
	s.MCPServer = server.NewMCPServer("linus", o.Version, options...)
	s.AddTools(all...)
	s.AddPrompts(prompts(o.Engine, has)...)
	s.AddResources(resources(o.Engine, has)...)
	s.AddResourceTemplates(jobResources(o.Engine, has)...)
	return s
}

func (s *mcpServer) close() {
	s.notices.close()
	s.background.close()
}

// errorText returns an error in MCP's words, with the next step.
func errorText(err error) string {
	var notComplete *job.NotCompleteError
	text := words.In(job.Naming(job.Written).In(err.Error()))
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

type jobArg struct {
	JobID string `json:"job_id"`
}

func (a jobArg) check(bad *faults) {
	bad.required("job_id", a.JobID, "give the ID that submit_job or execute_command returned; list_jobs shows them")
}
