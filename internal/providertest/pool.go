package providertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"linus/internal/job"
)

// FakeGeneration is FakeTemplate's, unless Behaviour.Room gives it another.
const FakeGeneration = "1"

// Room returns Behaviour's, and renews the leases of VMs that exist.
func (f *Fake) Room(ctx context.Context, origins []job.Origin, leases []job.LeaseRenewal) (job.HostRoom, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Rooms++
	if ctx.Err() != nil {
		return job.HostRoom{}, fault("read the host's room", job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	if err := next(&f.behaviour.Rooms); err != nil {
		return job.HostRoom{}, err
	}
	room := f.behaviour.Room
	if room.TotalMB == 0 {
		room.TotalMB, room.FreeMB = 64<<10, 64<<10
	}
	all := map[job.Origin]string{{Template: FakeTemplate}: FakeGeneration}
	maps.Copy(all, room.Generations)
	room.Generations = map[job.Origin]string{}
	for _, o := range origins {
		if all[o] != "" {
			room.Generations[o] = all[o]
		}
	}
	room.Leases = map[string]job.LeaseState{}
	for _, l := range leases {
		state := job.LeaseGone
		if there := f.vms[l.VM.ID]; there != nil && there.is(l.VM) {
			state, there.lease = job.LeaseRenewed, l.For
		}
		room.Leases[l.VM.Job] = state
	}
	return room, nil
}

// Lease returns the lease that a VM was last given; 0: none.
func (f *Fake) Lease(id int) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms[id] == nil {
		return 0
	}
	return f.vms[id].lease
}

// Ping succeeds where a job's VM runs.
func (f *Fake) Ping(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Pings++
	_, err := f.inside(ctx, fmt.Sprintf("reach VM %d", j.VM.ID), j, &f.behaviour.Pings)
	return err
}

// Nodes returns one node, with the memory of Behaviour.Room.
func (f *Fake) Nodes(context.Context) (job.Inventory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	total := cmp.Or(f.behaviour.Room.TotalMB, 64<<10)
	n := job.Node{Name: "pve", Online: true, MemoryMB: total, UsedMB: total / 8, Templates: []job.NodeTemplate{{ID: 9000, Name: FakeTemplate}}}
	for id, vm := range f.vms {
		n.VMs = append(n.VMs, job.NodeVM{ID: id, MemoryMB: 2048, Stopped: vm.stopped})
	}
	return job.Inventory{Asked: "pve", Quorum: true, Nodes: []job.Node{n}}, nil
}
