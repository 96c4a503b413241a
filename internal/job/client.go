package job

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

type clientKey struct{}

// WithClient records in ctx which client makes the request, e.g. "cli" or "mcp:claude-code".
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// Caller is who makes a request, for records.
type Caller struct {
	Client    string `json:"client,omitempty"`    // e.g. "cli" or "mcp:claude-code"
	Principal string `json:"principal,omitempty"` // its name
	Token     string `json:"token,omitempty"`     // the ID of the token it presented; empty: none
}

type listenerKey struct{}

// WithListener has slow steps of a call with ctx reported to tell as soon as they begin, for example
// that a VM is being resumed. tell is not called after the call has returned.
func WithListener(ctx context.Context, tell func(Progress)) context.Context {
	return context.WithValue(ctx, listenerKey{}, tell)
}

// Listener returns the function to report slow steps to; nil if there is none.
func Listener(ctx context.Context) func(Progress) {
	tell, _ := ctx.Value(listenerKey{}).(func(Progress))
	return tell
}

// errNoAnswer is the cause with which the context of Hurried ends.
var errNoAnswer = errors.New("no answer yet")

// Hurried returns a context for calls that must fail rather than wait: the context ends as soon as
// anything is reported to its listener.
func Hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	return WithListener(ctx, func(Progress) { end(errNoAnswer) }), func() { end(nil) }
}

// Unanswered reports whether err comes from a hurried call that ended without an answer.
func Unanswered(err error) bool { return errors.Is(err, errNoAnswer) }

// Waits reports to the listener of ctx, if there is one, what is waited for and until when.
func Waits(ctx context.Context, what string, cause error, until time.Time) {
	text := fmt.Sprintf("waiting for %s until %s: %v", what, until.UTC().Format("15:04:05 UTC"), cause)
	Tell(ctx, Progress{Text: text, Warning: text})
}

// Tell reports a step or a warning to the listener of ctx, if there is one.
func Tell(ctx context.Context, p Progress) {
	if tell := Listener(ctx); tell != nil {
		tell(p)
	}
}

type callerKey struct{}

// WithCaller records in ctx on whose behalf the engine works. This is for records only and grants no rights.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(WithClient(ctx, c.Client), callerKey{}, c)
}

// CallerFrom returns who makes the request with ctx, or on whose behalf the engine works.
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

// IsMCP reports whether a client, as in Submission, is an MCP client.
func IsMCP(client string) bool { return client == "mcp" || strings.HasPrefix(client, "mcp:") }
