package proxmox

import "context"

// Fence makes every node of the host's cluster refuse all further requests of an engine. It fails without quorum.
func (p *Provider) Fence(ctx context.Context, engine string) error {
	_, err := p.run(ctx, call{op: "fence engine " + engine, script: "fence-engine", env: map[string]string{"FENCE_ENGINE": engine}})
	return err
}
