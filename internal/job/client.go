package job

import "context"

type clientKey struct{}

// WithClient notes in ctx which client asks, e.g. "cli" or "mcp:claude-code".
func WithClient(ctx context.Context, client string) context.Context {
	return context.WithValue(ctx, clientKey{}, client)
}

// ClientFrom returns the client that asks; empty when nobody was noted.
func ClientFrom(ctx context.Context) string {
	client, _ := ctx.Value(clientKey{}).(string)
	return client
}
