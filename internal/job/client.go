package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

type clientKey struct{}

// WithClient records in ctx which client makes the request, e.g. "cli" or
// "mcp:claude-code".
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// Caller is who makes a request, for records of what was done.
type Caller struct {
	Client    string `json:"client,omitempty"`    // e.g. "cli" or "mcp:claude-code"
	Principal string `json:"principal,omitempty"` // its name
	Token     string `json:"token,omitempty"`     // the ID of the token it has shown; empty: none
}

type listenerKey struct{}

// WithListener has what takes a while told while a call with ctx is under way, as soon as it
// begins: that a VM is resumed, say. It is not called any more once the call has returned.
func WithListener(ctx context.Context, tell func(Progress)) context.Context {
	return context.WithValue(ctx, listenerKey{}, tell)
}

// Listener returns who is told what takes a while; nil: nobody.
func Listener(ctx context.Context) func(Progress) {
	tell, _ := ctx.Value(listenerKey{}).(func(Progress))
	return tell
}

// errNoAnswer is why a call with Hurried's context ended.
var errNoAnswer = errors.New("no answer yet")

// Hurried returns a context for calls that are to fail where they would wait: it ends as soon as
// its listener is told of anything.
func Hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	return WithListener(ctx, func(Progress) { end(errNoAnswer) }), func() { end(nil) }
}

// Unanswered reports whether err is that of a hurried call which nothing had answered.
func Unanswered(err error) bool { return errors.Is(err, errNoAnswer) }

// Waits tells the listener of ctx, if there is one, what is waited for and until when.
func Waits(ctx context.Context, what string, cause error, until time.Time) {
	text := fmt.Sprintf("waiting for %s until %s: %v", what, until.UTC().Format("15:04:05 UTC"), cause)
	Tell(ctx, Progress{Text: text, Warning: text})
}

// Tell tells the context's listener of a step, or a warning.
func Tell(ctx context.Context, p Progress) {
	if tell := Listener(ctx); tell != nil {
		tell(p)
	}
}

type callerKey struct{}

// WithCaller records in ctx on whose behalf the engine works, for records alone: it gives
// no rights.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(WithClient(ctx, c.Client), callerKey{}, c)
}

// CallerFrom returns who makes the request with ctx, or on whose behalf the engine does.
func CallerFrom(ctx context.Context) Caller {
	if c, ok := ctx.Value(callerKey{}).(Caller); ok {
		return c
	}
	p, _ := PrincipalFrom(ctx)
	return Caller{Client: ClientFrom(ctx), Principal: p.Name, Token: p.Token}
}

// ClientFrom returns the client recorded in ctx; empty if there is none.
func ClientFrom(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}

// IsMCP reports whether a client, as in Submission, is one of MCP.
func IsMCP(client string) bool { return client == "mcp" || strings.HasPrefix(client, "mcp:") }
