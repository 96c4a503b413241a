package executor

import (
	"context"

	"linus/internal/job"
)

// The verbs about the whole installation.

// Pools implements job.Pools.
func (g *guard) Pools(ctx context.Context) ([]job.PoolInfo, error) {
	return guarded(ctx, g, "Pools", "", func() ([]job.PoolInfo, error) { return g.e.Pools(ctx) })
}

// Pool implements job.Pools.
func (g *guard) Pool(ctx context.Context, name string) (job.PoolInfo, error) {
	return guarded(ctx, g, "Pool", "", func() (job.PoolInfo, error) { return g.e.Pool(ctx, name) })
}

// CreatePool implements job.Pools.
func (g *guard) CreatePool(ctx context.Context, p job.Pool) (job.PoolInfo, error) {
	return guarded(ctx, g, "CreatePool", "", func() (job.PoolInfo, error) { return g.e.CreatePool(ctx, p) })
}

// ResizePool implements job.Pools.
func (g *guard) ResizePool(ctx context.Context, name string, size job.PoolSize) (job.PoolInfo, error) {
	return guarded(ctx, g, "ResizePool", "", func() (job.PoolInfo, error) { return g.e.ResizePool(ctx, name, size) })
}

// RemovePool implements job.Pools.
func (g *guard) RemovePool(ctx context.Context, name string) (job.PoolInfo, error) {
	return guarded(ctx, g, "RemovePool", "", func() (job.PoolInfo, error) { return g.e.RemovePool(ctx, name) })
}

// Engines implements job.Engines.
func (g *guard) Engines(ctx context.Context) ([]job.EngineInfo, error) {
	return guarded(ctx, g, "Engines", "", func() ([]job.EngineInfo, error) { return g.e.Engines(ctx) })
}

// CheckHost implements job.Host.
func (g *guard) CheckHost(ctx context.Context) (job.HostReport, error) {
	return guarded(ctx, g, "CheckHost", "", func() (job.HostReport, error) { return g.e.CheckHost(ctx) })
}

// Nodes implements job.Host.
func (g *guard) Nodes(ctx context.Context) ([]job.NodeInfo, error) {
	return guarded(ctx, g, "Nodes", "", func() ([]job.NodeInfo, error) { return g.e.Nodes(ctx) })
}

// CordonNode implements job.Host.
func (g *guard) CordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return guarded(ctx, g, "CordonNode", "", func() (job.NodeInfo, error) { return g.e.CordonNode(ctx, name) })
}

// UncordonNode implements job.Host.
func (g *guard) UncordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return guarded(ctx, g, "UncordonNode", "", func() (job.NodeInfo, error) { return g.e.UncordonNode(ctx, name) })
}
