package proxmox

import (
	"context"

	"linus/internal/job"
)

// Room returns what the host has left for VMs.
func (p *Provider) Room(ctx context.Context, origins []job.Origin, leases []job.LeaseRenewal) (job.HostRoom, error) {
	return job.HostRoom{}, nil
}
