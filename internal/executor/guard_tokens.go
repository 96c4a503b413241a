package executor

import (
	"context"

	"linus/internal/job"
)

// CreateToken implements job.Tokens.
func (g *guard) CreateToken(ctx context.Context, s job.TokenSpec) (job.NewToken, error) {
	return guarded(ctx, g, "CreateToken", "", func() (job.NewToken, error) { return g.e.CreateToken(ctx, s) })
}

// Tokens implements job.Tokens.
func (g *guard) Tokens(ctx context.Context) ([]job.Token, error) {
	return guarded(ctx, g, "Tokens", "", func() ([]job.Token, error) { return g.e.Tokens(ctx) })
}

// RevokeToken implements job.Tokens.
func (g *guard) RevokeToken(ctx context.Context, ref string) ([]job.Token, error) {
	return guarded(ctx, g, "RevokeToken", "", func() ([]job.Token, error) { return g.e.RevokeToken(ctx, ref) })
}
