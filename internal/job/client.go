package job

import "context"

type clientKey struct{}

// WithClient records in ctx which client makes the request, e.g. "cli" or
// "mcp:claude-code".
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// ClientFrom returns the client recorded in ctx; empty if there is none.
func ClientFrom(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}
