package e2e

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/mcptask"
)

// fixtureTasks are the tasks that the conformance suite has begun: a Source that works on nothing.
type fixtureTasks struct {
	mu  sync.Mutex
	all map[string]*fixtureTask
}

// fixtureTask is a task as it is at its end, with what it asks for before. It ends when all is
// answered and its time has come.
type fixtureTask struct {
	mcptask.Task
	ends time.Time
}

// begin adds a task that works for a time, and returns its handle.
func (f *fixtureTasks) begin(work time.Duration, t mcptask.Task) (*mcp.CallToolResult, error) {
	now := time.Now().UTC()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.ID, t.CreatedAt, t.UpdatedAt, t.Poll = fmt.Sprint("task-", len(f.all)), now, now, 100
	f.all[t.ID] = &fixtureTask{t, now.Add(work)}
	return mcptask.Begun(f.all[t.ID].now()), nil
}

// now returns the task as it is.
func (t *fixtureTask) now() mcptask.Task {
	now := t.Task
	now.Requests = maps.Clone(t.Requests)
	switch {
	case t.Status == mcptask.Cancelled:
		return now
	case len(t.Requests) > 0:
		now.Status = mcptask.InputRequired
	case time.Now().Before(t.ends):
		now.Status = mcptask.Working
	default:
		return now
	}
	now.Result, now.Error = nil, nil
	return now
}

// at has something done with a task.
func (f *fixtureTasks) at(id string, do func(*fixtureTask)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.all[id]
	if !ok {
		return mcptask.ErrNotFound
	}
	do(t)
	return nil
}

// Look returns a task as it is: the suite's listeners are few.
func (f *fixtureTasks) Look(ctx context.Context, id string, _ time.Duration) (mcptask.Task, error) {
	return f.Task(ctx, id)
}

func (f *fixtureTasks) Task(_ context.Context, id string) (now mcptask.Task, err error) {
	return now, f.at(id, func(t *fixtureTask) { now = t.now() })
}

func (f *fixtureTasks) Update(_ context.Context, id string, answers mcp.InputResponses) error {
	return f.at(id, func(t *fixtureTask) {
		for key := range answers {
			delete(t.Requests, key)
		}
	})
}

func (f *fixtureTasks) Cancel(_ context.Context, id string) error {
	return f.at(id, func(t *fixtureTask) {
		if s := t.now().Status; s == mcptask.Working || s == mcptask.InputRequired {
			t.Status, t.Requests, t.Result, t.Error = mcptask.Cancelled, nil, nil, nil
		}
	})
}

// tools are the tools that the scenarios of tasks call, by their descriptions.
func (f *fixtureTasks) tools() []server.ServerTool {
	completed := func(text string) mcptask.Task {
		return mcptask.Task{Status: mcptask.Completed, Result: &mcp.CallToolResult{Result: mcp.Result{ResultType: mcp.ResultTypeComplete}, Content: []mcp.Content{mcp.NewTextContent(text)}}}
	}
	asks := func(keys ...string) toolHandler {
		return func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			b := server.NewInputRequestBuilder("")
			for _, key := range keys {
				b.Elicit(key, form("Go on?", map[string]any{"confirm": map[string]any{"type": "boolean"}}))
			}
			t := completed("confirmed")
			t.Requests = b.ToolResult().InputRequests
			return f.begin(0, t)
		}
	}
	return []server.ServerTool{
		tool("greet", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return mcp.NewToolResultText("Hello, " + r.GetString("name", "") + "!"), nil
		}, mcp.WithString("name", mcp.Required())),
		tool("slow_compute", func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			t := completed("computed")
			if !mcptask.Declared(ctx) {
				return t.Result, nil
			}
			return f.begin(time.Duration(r.GetInt("seconds", 0))*time.Second, t)
		}, mcp.WithNumber("seconds", mcp.Required()), mcp.WithString("label")),
		tool("failing_job", func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if !mcptask.Declared(ctx) {
				return nil, mcp.MissingRequiredClientCapabilityError{Capability: mcptask.Extension}
			}
			t := completed("it fails")
			t.Result.IsError = true
			return f.begin(time.Second, t)
		}),
		tool("protocol_error_job", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return f.begin(0, mcptask.Task{Status: mcptask.Failed, Error: &mcp.JSONRPCErrorDetails{Code: mcp.INTERNAL_ERROR, Message: "it broke"}})
		}),
		tool("confirm_delete", asks("confirm"), mcp.WithString("filename", mcp.Required())),
		tool("multi_input", asks("first", "second")),
		tool("test_tool_with_task", func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			const state, key = "the name is asked for", "user_name"
			answer := said(r.Params.InputResponses, key)
			if answer == "" || r.Params.RequestState != state {
				return server.NewInputRequestBuilder(state).Elicit(key, form("What is your name?", map[string]any{"name": anyText})).ToolResult(), nil
			}
			return f.begin(0, completed("Hello, "+answer))
		}),
	}
}
