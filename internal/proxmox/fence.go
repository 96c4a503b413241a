package proxmox

import "context"

// Fence makes every node of the host's cluster refuse what an engine asks from now on.
// Without quorum that is not possible.
func (p *Provider) Fence(ctx context.Context, engine string) error {
	_, err := p.run(ctx, call{op: "fence engine " + engine, script: "fence-engine", env: map[string]string{"FENCE_ENGINE": engine}})
	return err
}
