package mcptool

import (
	"context"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/sleep"
)

type call struct {
	tree   any // the arguments' JSON, as job.DecodeStrict returns it
	params mcp.CallToolParams
}

var notInName = lazyregexp.New(`[^A-Za-z0-9._-]+`)

// clientName identifies the caller in the job's record and in limits per client: "mcp:" and the
// name that the client gave itself, or "mcp". It is not verified.
func clientName(ctx context.Context) string {
	name := ""
	if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.ClientInfo != nil {
		name = info.ClientInfo.Name
	} else if s, ok := server.ClientSessionFromContext(ctx).(server.SessionWithClientInfo); ok {
		name = s.GetClientInfo().Name
	}
	name = notInName.ReplaceAllString(name, "-")
	if name == "" {
		return "mcp"
	}
	return "mcp:" + name[:min(len(name), 64)]
}

// canAsk reports whether the client can ask its user a question.
func canAsk(ctx context.Context) bool {
	if info := server.RequestProtocolInfoFromContext(ctx); info != nil && info.Modern {
		return info.ClientCapabilities != nil && info.ClientCapabilities.Elicitation != nil
	}
	s, ok := server.ClientSessionFromContext(ctx).(server.SessionWithClientInfo)
	return ok && s.GetClientCapabilities().Elicitation != nil
}

// confirmed returns nil if the caller, or the user behind it, agrees to something irreversible. A
// client that can ask its user must do so; for other clients the argument confirm decides.
func (c call) confirmed(ctx context.Context, given bool, question string) error {
	if given {
		return nil
	}
	if answer := server.ElicitationResponse(c.params.InputResponses, "confirm"); answer != nil {
		content, _ := answer.Content.(map[string]any)
		if yes, _ := content["confirm"].(bool); yes && answer.Action == mcp.ElicitationResponseActionAccept {
			return nil
		}
		return &job.FieldError{Field: "confirm", Problem: "the user did not agree; nothing was done", Remedy: "ask the user what to do instead"}
	}
	if canAsk(ctx) {
		return &askError{question: question}
	}
	return &job.FieldError{Field: "confirm", Problem: "is required: " + question, Remedy: "call again with confirm: true if you mean it"}
}

// askError is a question that the user must answer before the call can continue.
type askError struct{ question string }

func (e *askError) Error() string { return e.question }

// result asks the client to call again with the answer. For older clients, mcp-go asks.
func (e *askError) result() *mcp.CallToolResult {
	return server.NewInputRequestBuilder("").Elicit("confirm", mcp.ElicitationParams{
		Mode: mcp.ElicitationModeForm, Message: e.question,
		RequestedSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"confirm": map[string]any{"type": "boolean", "title": "Do it", "default": false}},
			"required":   []string{"confirm"},
		},
	}).ToolResult()
}

// notify queues a notification for a client. It returns false if the queue is full because the
// client does not read.
func notify(s server.ClientSession, method string, meta, params map[string]any) bool {
	n := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION}
	n.Method = method
	n.Params = mcp.NotificationParams{Meta: meta, AdditionalFields: params}
	select {
	case s.NotificationChannel() <- n:
		return true
	default:
		return false
	}
}

// settleTime is the minimum time between the last notification of a call and its result: they take
// different paths to stdout.
const settleTime = 20 * time.Millisecond

// progress reports a job's progress to a caller that gave a progress token.
type progress struct {
	session server.ClientSession
	token   mcp.ProgressToken
	value   float64
	told    string
	at      time.Time
}

func (c call) progress(ctx context.Context) *progress {
	p := &progress{session: server.ClientSessionFromContext(ctx)}
	if c.params.Meta != nil {
		p.token = c.params.Meta.ProgressToken
	}
	return p
}

// send sends phase and step if they are new. The value only increases, as the protocol requires: a
// whole number per phase, hundredths for its steps.
func (p *progress) send(j job.Job) {
	if p.token == nil || p.session == nil {
		return
	}
	text := string(j.Status)
	if j.Phase != "" {
		text = j.Phase
	}
	if j.Progress != "" {
		text += ": " + j.Progress
	}
	if text == p.told {
		return
	}
	phase := j.Phase
	if phase == job.PhaseRelease {
		phase = job.PhaseDestroy
	}
	value := max(p.value+0.01, float64(slices.Index(job.Phases, phase)+1))
	p.value, p.told, p.at = value, text, time.Now()
	notify(p.session, "notifications/progress", nil, map[string]any{
		"progressToken": p.token, "progress": value, "total": float64(len(job.Phases)), "message": text,
	})
}

func (p *progress) settle(ctx context.Context) {
	_ = sleep.For(ctx, settleTime-time.Since(p.at))
}

// follow waits until the job has ended, for at most limit, and returns its current state. A caller
// that gave a progress token is notified of every step.
func follow(ctx context.Context, e job.Engine, c call, id string, limit time.Duration) (job.Job, error) {
	j, err := e.Job(ctx, id)
	if err != nil || limit <= 0 || j.Status.Terminal() {
		return j, err
	}
	return followOn(ctx, e, c, id, limit)
}

// followOn is follow for a job that was just submitted: all of its events are new.
func followOn(ctx context.Context, e job.Engine, c call, id string, limit time.Duration) (job.Job, error) {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p := c.progress(ctx)
	defer p.settle(ctx)
	var seen int64
	if p.token == nil {
		seen = job.OnlyEnd // no caller to notify of the steps
	}
	for {
		events, j, err := e.Watch(waiting, id, seen)
		switch {
		case waiting.Err() != nil:
			return e.Job(ctx, id)
		case err != nil:
			return job.Job{}, err
		case j.Status.Terminal():
			p.send(j)
			return j, nil
		case len(events) == 0: // the engine's own wait is over, or the job is held up
			p.send(j)
			_ = sleep.For(waiting, 100*time.Millisecond)
			continue
		}
		seen = events[len(events)-1].Seq
		p.send(j)
	}
}
