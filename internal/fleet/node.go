package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"linus/internal/job"
)

// Nodes returns the nodes on which VMs are created, by name.
func (f *Fleet) Nodes(ctx context.Context) ([]job.NodeInfo, error) {
	inv, err := f.o.Provider.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	cordoned, err := f.o.Store.Cordons(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := f.Placed(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]job.NodeInfo, len(inv.Nodes))
	for i, n := range inv.Nodes {
		infos[i] = nodeInfo(inv, n, ours, slices.Contains(cordoned, n.Name))
	}
	slices.SortFunc(infos, func(a, b job.NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

func nodeInfo(inv job.Inventory, n job.Node, ours []job.PlacedVM, cordoned bool) job.NodeInfo {
	info := job.NodeInfo{
		Name: n.Name, Status: job.NodeOnline, Spread: inv.Spread, Cordoned: cordoned,
		Address: n.Address, HostKeys: n.HostKeys,
		MemoryMB: n.MemoryMB, UsedMB: n.UsedMB, CommittedMB: n.MostMB() - inv.FreeMB(n, ours), FreeMB: max(0, inv.FreeMB(n, ours)),
	}
	switch {
	case !n.Online:
		info.Status, info.CommittedMB, info.FreeMB = job.NodeOffline, 0, 0
	case n.Maintained():
		info.Status = job.NodeMaintenance
	}
	for _, vm := range ours {
		if vm.Node == n.Name {
			info.VMs++
		}
	}
	for _, t := range n.Templates {
		info.Templates = append(info.Templates, t.Name)
		if why := n.Unused(t.Name, inv.NewestBuild(t.Name)); why != "" {
			if info.Unused == nil {
				info.Unused = map[string]string{}
			}
			info.Unused[t.Name] = why
		}
	}
	slices.Sort(info.Templates)
	return info
}

// CordonNode keeps new VMs off a node. Existing VMs stay.
func (f *Fleet) CordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return f.setCordon(ctx, name, true)
}

// UncordonNode allows new VMs on a node again.
func (f *Fleet) UncordonNode(ctx context.Context, name string) (job.NodeInfo, error) {
	return f.setCordon(ctx, name, false)
}

func (f *Fleet) setCordon(ctx context.Context, name string, cordoned bool) (job.NodeInfo, error) {
	node, err := f.node(ctx, name)
	if err != nil {
		return job.NodeInfo{}, err
	}
	if !node.Spread {
		return job.NodeInfo{}, &job.FieldError{Field: "node", Problem: fmt.Sprintf("all VMs go to %q: there is no other", name), Remedy: "set PROXMOX_NODES to spread VMs over the nodes of a cluster", Fault: job.FaultState}
	}
	if err := f.o.Store.SetCordon(ctx, name, cordoned); err != nil {
		return job.NodeInfo{}, err
	}
	f.o.Log.Info("node is cordoned or not", "node", name, "cordoned", cordoned, "client", job.ClientFrom(ctx))
	f.observed(ctx, job.CordonChange{Node: name, Cordoned: cordoned, By: job.CallerFrom(ctx)})
	if !cordoned {
		f.MadeRoom()
	}
	node.Cordoned = cordoned
	return node, nil
}

// node returns the node with a name given by a caller.
func (f *Fleet) node(ctx context.Context, name string) (job.NodeInfo, error) {
	infos, err := f.Nodes(ctx)
	if err != nil {
		return job.NodeInfo{}, err
	}
	at := slices.IndexFunc(infos, func(n job.NodeInfo) bool { return n.Name == name })
	if at < 0 {
		known := make([]string, len(infos))
		for i, n := range infos {
			known[i] = n.Name
		}
		return job.NodeInfo{}, &job.FieldError{Field: "node", Problem: fmt.Sprintf("%q is not a node that VMs go to", name), Remedy: "use one of: " + strings.Join(known, ", "), Fault: job.FaultUnknown}
	}
	return infos[at], nil
}
