package providertest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"linus/internal/job"
)

// FakeGeneration is FakeTemplate's generation, unless Behaviour.Room gives it another.
const FakeGeneration = "1"

// Room returns Behaviour's room. It doubts VMs that are not the ones meant, and renews the leases of
// the others.
func (f *Fake) Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Rooms++
	if err := asked(ctx, "read the host's room", &f.behaviour.Rooms); err != nil {
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
	room.Doubts, room.Leases = map[string]string{}, map[string]job.LeaseState{}
	for _, w := range vms {
		there := f.vms[w.VM.ID]
		ours := there != nil && there.is(w.VM)
		if there != nil && !ours {
			room.Doubts[w.VM.Job] = "its description does not carry linus-job=" + w.VM.Job
		}
		if (w.Renew > 0 || w.Never) && ours {
			room.Leases[w.VM.Job], there.lease = job.LeaseRenewed, w.Renew
		} else if w.Renew > 0 || w.Never {
			room.Leases[w.VM.Job] = job.LeaseGone
		}
	}
	return room, nil
}

// Lease returns the lease last given to a VM, or 0.
func (f *Fake) Lease(id int) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms[id] == nil {
		return 0
	}
	return f.vms[id].lease
}

// Ping succeeds if a job's VM runs.
func (f *Fake) Ping(ctx context.Context, j job.Job) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats.Pings++
	_, err := f.inside(ctx, fmt.Sprintf("reach VM %d", j.VM.ID), j, &f.behaviour.Pings)
	return err
}

// Rename sets the host name of a VM's system.
func (f *Fake) Rename(ctx context.Context, j job.Job, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.inside(ctx, fmt.Sprintf("rename VM %d", j.VM.ID), j, &f.behaviour.Renames)
	if err == nil {
		f.vms[j.VM.ID].hostName = name
	}
	return err
}

// HostName returns the host name set for a VM, or "".
func (f *Fake) HostName(id int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.vms[id] == nil {
		return ""
	}
	return f.vms[id].hostName
}

// Nodes returns one node, with the memory of Behaviour.Room.
func (f *Fake) Nodes(context.Context) (job.Inventory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	total := cmp.Or(f.behaviour.Room.TotalMB, 64<<10)
	n := job.Node{Name: "pve", Online: true, MemoryMB: total, UsedMB: total / 8, Templates: []job.NodeTemplate{{ID: 9000, Name: FakeTemplate, Has: f.behaviour.Has}}}
	for id, vm := range f.vms {
		n.VMs = append(n.VMs, job.NodeVM{ID: id, MemoryMB: 2048, Stopped: vm.stopped || vm.suspended})
	}
	return job.Inventory{Asked: "pve", Quorum: true, Nodes: []job.Node{n}}, nil
}
