// Package mcptask serves the extension io.modelcontextprotocol/tasks of MCP 2026-07-28: handles for
// what a tool call has begun, tasks/get, tasks/update, tasks/cancel, and notifications/tasks on
// subscriptions/listen. It stands between a transport and mcp-go, which (v1.2.1) only knows the
// tasks of 2025-11-25: clients ask for those, and they belong to a session. It passes all other
// requests on to mcp-go. Once mcp-go has the extension, only the Source is needed. The package
// knows nothing of jobs.
package mcptask

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// Extension is the extension's name in the capabilities of clients and servers.
const Extension = "io.modelcontextprotocol/tasks"

// Status is the status of a task.
type Status string

// The statuses. A call with a result is Completed, even if the result is an error of the tool.
const (
	Working       Status = "working"
	InputRequired Status = "input_required"
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// Task is a task as tasks/get returns it.
type Task struct {
	ID        string    `json:"taskId"`
	Status    Status    `json:"status"`
	Message   string    `json:"statusMessage,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"lastUpdatedAt"`
	TTL       *int64    `json:"ttlMs"`                    // milliseconds from CreatedAt; nil: unlimited
	Poll      int64     `json:"pollIntervalMs,omitempty"` // milliseconds

	Requests mcp.InputRequests        `json:"inputRequests,omitempty"` // of InputRequired
	Result   *mcp.CallToolResult      `json:"result,omitempty"`        // of Completed
	Error    *mcp.JSONRPCErrorDetails `json:"error,omitempty"`         // of Failed
}

func (t Task) over() bool {
	return t.Status == Completed || t.Status == Failed || t.Status == Cancelled
}

// ErrNotFound is a Source's error for a task that does not exist for the caller.
var ErrNotFound = errors.New("task not found")

// Source has the tasks. Its contexts are those of requests: they have the principal, if the
// transport knows one, and mcp-go's RequestProtocolInfo.
type Source interface {
	Task(ctx context.Context, id string) (Task, error)
	// Look is Task for listeners: the answer may be as old as age, and shared among them.
	Look(ctx context.Context, id string, age time.Duration) (Task, error)
	// Update answers a task's Requests; it ignores answers without a request.
	Update(ctx context.Context, id string, answers mcp.InputResponses) error
	// Cancel may take effect later. It does not change a task that is over.
	Cancel(ctx context.Context, id string) error
}

// Options of a Server.
type Options struct {
	Source Source
	Info   mcp.Implementation // of the server, in each result
	Every  time.Duration      // between two looks at a task with listeners
	// Subscribe begins subscriptions to resources, until ctx ends, for a client that listens for
	// tasks on the same stream.
	Subscribe func(ctx context.Context, session server.ClientSession, stream any, uris []string)
}

// Server answers requests about tasks.
type Server struct{ o Options }

// New returns a server.
func New(o Options) *Server { return &Server{o} }

// Declared reports whether the client of the current request knows tasks: only then a tool may
// return Begun.
func Declared(ctx context.Context) bool {
	info := server.RequestProtocolInfoFromContext(ctx)
	return info != nil && info.Modern && declares(info.ClientCapabilities)
}

func declares(c *mcp.ClientCapabilities) bool {
	if c == nil {
		return false
	}
	_, ok := c.Extensions[Extension].(map[string]any)
	return ok
}

// Offer names the extension in server/discover, which older clients do not call.
func Offer(hooks *server.Hooks) {
	hooks.AddAfterDiscover(func(_ context.Context, _ any, _ *mcp.DiscoverRequest, r *mcp.DiscoverResult) {
		all := maps.Clone(r.Capabilities.Extensions)
		if all == nil {
			all = map[string]any{}
		}
		all[Extension] = struct{}{}
		r.Capabilities.Extensions = all
	})
}

// resultTask is the type of a result that is a task's handle.
const resultTask mcp.ResultType = "task"

// Begun returns the result of a tool call that continues as a task. The task's fields are in _meta,
// which mcp-go passes through; Lift moves them to their place.
func Begun(t Task) *mcp.CallToolResult {
	t.Requests, t.Result, t.Error = nil, nil, nil
	return &mcp.CallToolResult{Result: mcp.Result{
		ResultType: resultTask, Meta: &mcp.Meta{AdditionalFields: map[string]any{Extension: t}},
	}}
}

// Lift moves the task of Begun into a message's result, and returns other messages unchanged.
func Lift(message []byte) []byte {
	if !bytes.Contains(message, []byte(`"resultType":"task"`)) {
		return message
	}
	var m struct {
		JSONRPC string                     `json:"jsonrpc"`
		ID      json.RawMessage            `json:"id"`
		Result  map[string]json.RawMessage `json:"result"`
	}
	var meta, task map[string]json.RawMessage
	if json.Unmarshal(message, &m) != nil || string(m.Result["resultType"]) != `"task"` ||
		json.Unmarshal(m.Result["_meta"], &meta) != nil || json.Unmarshal(meta[Extension], &task) != nil {
		return message
	}
	delete(meta, Extension)
	delete(m.Result, "content")
	var err error
	if m.Result["_meta"], err = json.Marshal(meta); err != nil {
		return message
	}
	maps.Copy(m.Result, task)
	lifted, err := json.Marshal(m)
	if err != nil {
		return message
	}
	if bytes.HasSuffix(message, []byte("\n")) {
		lifted = append(lifted, '\n')
	}
	return lifted
}

// request is a request about tasks.
type request struct {
	ID     any    `json:"id"`
	Method string `json:"method"`
	Params struct {
		TaskID        string             `json:"taskId"`
		Answers       mcp.InputResponses `json:"inputResponses"`
		Notifications struct {
			TaskIDs   []string `json:"taskIds"`
			Resources []string `json:"resourceSubscriptions"`
		} `json:"notifications"`
		Meta *mcp.Meta `json:"_meta"`
	} `json:"params"`
	wrong *fault // a field has the wrong type
}

const (
	methodGet    = "tasks/get"
	methodUpdate = "tasks/update"
	methodCancel = "tasks/cancel"
	methodListen = string(mcp.MethodSubscriptionsListen)
	told         = "notifications/tasks"
)

// parse decodes a client's message, and reports whether it is a request about tasks.
func parse(message []byte) (q request, mine bool) {
	err := json.Unmarshal(message, &q) // continues after a wrong type
	if other, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		q.wrong, err = &fault{Code: mcp.INVALID_PARAMS, Message: other.Field + " cannot be of type " + other.Value}, nil
	}
	if err != nil || q.ID == nil || !mcp.IsModernProtocol(q.Params.Meta.ProtocolVersion()) {
		return q, false
	}
	switch q.Method {
	case methodGet, methodUpdate, methodCancel:
		return q, true
	}
	return q, q.Method == methodListen && q.Params.Notifications.TaskIDs != nil
}

type fault = mcp.JSONRPCErrorDetails

// begin checks a request, and returns the context to serve it in.
func (s *Server) begin(ctx context.Context, q request) (context.Context, *fault) {
	meta := q.Params.Meta
	caps := meta.ClientCapabilities()
	switch {
	case !mcp.IsValidProtocolVersion(meta.ProtocolVersion()):
		return ctx, &fault{Code: mcp.UNSUPPORTED_PROTOCOL_VERSION, Message: "unsupported protocol version " + meta.ProtocolVersion()}
	case caps == nil:
		return ctx, &fault{Code: mcp.INVALID_PARAMS, Message: "missing or invalid _meta field " + mcp.MetaKeyClientCapabilities}
	case !declares(caps):
		return ctx, &fault{
			Code: mcp.MISSING_REQUIRED_CLIENT_CAPABILITY, Message: "missing required client capability: " + Extension,
			Data: map[string]any{"requiredCapabilities": map[string]any{"extensions": map[string]any{Extension: struct{}{}}}},
		}
	case q.wrong != nil:
		return ctx, q.wrong
	case q.Method != methodListen && q.Params.TaskID == "":
		return ctx, &fault{Code: mcp.INVALID_PARAMS, Message: "taskId is required"}
	}
	return server.WithRequestProtocolInfo(ctx, &server.RequestProtocolInfo{
		Modern: true, ProtocolVersion: meta.ProtocolVersion(), ClientInfo: meta.ClientInfo(), ClientCapabilities: caps,
	}), nil
}

type detailed struct {
	mcp.Result
	Task
}

// serve returns the answer to a request that begin has accepted. If tell returns an error, the
// message did not reach the client, and no later one will. tell(nil) keeps a stream open.
func (s *Server) serve(ctx context.Context, q request, tell func(any) error) any {
	done := mcp.Result{ResultType: mcp.ResultTypeComplete}
	done.EnsureResultMeta().SetServerInfo(s.o.Info)
	var result any = done
	var err error
	switch q.Method {
	case methodGet:
		var t Task
		t, err = s.o.Source.Task(ctx, q.Params.TaskID)
		result = detailed{done, t}
	case methodUpdate:
		err = s.o.Source.Update(ctx, q.Params.TaskID, q.Params.Answers)
	case methodCancel:
		err = s.o.Source.Cancel(ctx, q.Params.TaskID)
	case methodListen:
		s.listen(ctx, q, tell)
		done.Meta.SetSubscriptionID(q.ID)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return answer(q, nil, &fault{Code: mcp.INVALID_PARAMS, Message: "Task not found"})
	case err != nil:
		return answer(q, nil, &fault{Code: mcp.INTERNAL_ERROR, Message: err.Error()})
	}
	return answer(q, result, nil)
}

func answer(q request, result any, f *fault) any {
	if f != nil {
		return mcp.JSONRPCError{JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(q.ID), Error: *f}
	}
	return mcp.NewJSONRPCResultResponse(mcp.NewRequestId(q.ID), result)
}

// mostTasks bounds the tasks of a stream. keepOpen is the number of looks at them between two
// messages that keep the stream open.
const (
	mostTasks = 100
	keepOpen  = 30
)

// listen notifies a client of tasks until all are over or ctx ends, or only until ctx ends if it
// also listens for resources. It sends each task at once: it may have changed since the last look.
func (s *Server) listen(ctx context.Context, q request, tell func(any) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asked := q.Params.Notifications
	meta := map[string]any{mcp.MetaKeySubscriptionID: q.ID}
	notification := func(method string, params map[string]any) mcp.JSONRPCNotification {
		n := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION}
		n.Method, n.Params = method, mcp.NotificationParams{Meta: meta, AdditionalFields: params}
		return n
	}
	tasks := []string{}
	for _, id := range asked.TaskIDs[:min(len(asked.TaskIDs), mostTasks)] {
		if slices.Contains(tasks, id) {
			continue
		}
		if _, err := s.o.Source.Look(ctx, id, s.o.Every/2); err == nil {
			tasks = append(tasks, id)
		}
	}
	agreed := map[string]any{"taskIds": tasks}
	to := &stream{messages: make(chan mcp.JSONRPCNotification, 100)}
	if len(asked.Resources) > 0 {
		agreed["resourceSubscriptions"] = asked.Resources
	}
	if tell(notification(mcp.MethodNotificationSubscriptionsAcknowledged, map[string]any{"notifications": agreed})) != nil {
		return
	}
	if len(asked.Resources) > 0 {
		s.o.Subscribe(ctx, to, q.ID, asked.Resources)
	}
	last := map[string]string{}
	look := func(id string) (over bool) {
		t, err := s.o.Source.Look(ctx, id, s.o.Every/2)
		if err != nil {
			return errors.Is(err, ErrNotFound)
		}
		now, params := t.news()
		if now != last[id] && tell(notification(told, params)) != nil {
			cancel()
		}
		last[id] = now
		return t.over()
	}
	tick := time.NewTicker(s.o.Every)
	defer tick.Stop()
	for looks := 1; ; looks++ {
		tasks = slices.DeleteFunc(tasks, look)
		for waiting := len(tasks) > 0 || len(asked.Resources) > 0; waiting; {
			select {
			case n := <-to.messages:
				if tell(n) != nil {
					return
				}
				continue
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			break
		}
		if len(tasks) == 0 && len(asked.Resources) == 0 || looks%keepOpen == 0 && tell(nil) != nil {
			return
		}
	}
}

// news returns a text that changes when a client wants to be notified of the task, and the task as
// the parameters of a notification.
func (t Task) news() (text string, params map[string]any) {
	data, err := json.Marshal(t)
	if err == nil {
		err = json.Unmarshal(data, &params)
	}
	if err != nil {
		return "", nil // cannot happen: the task was decoded from JSON
	}
	t.UpdatedAt, t.Poll, t.Result = time.Time{}, 0, nil
	data, _ = json.Marshal(t)
	return string(data), params
}

// stream is the session of a listening client, for subscriptions to resources.
type stream struct{ messages chan mcp.JSONRPCNotification }

func (*stream) Initialize()       {}
func (*stream) Initialized() bool { return true }
func (*stream) SessionID() string { return "" }

func (s *stream) NotificationChannel() chan<- mcp.JSONRPCNotification { return s.messages }
