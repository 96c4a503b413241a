package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"linus/internal/job"
	"linus/internal/vm"
)

// answer is what one node returned.
type answer[T any] struct {
	node  string
	value T
	err   error
}

// every asks the nodes concurrently, and returns their answers in the nodes' order.
func every[T any](ctx context.Context, p *Provider, nodes []job.Node, ask func(n Node, name string) (T, error)) []answer[T] {
	answers := make([]answer[T], len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		asking.Go(func() {
			answers[i].node = n.Name
			var node Node
			if node, answers[i].err = p.node(ctx, n.Name); answers[i].err == nil {
				answers[i].value, answers[i].err = ask(node, n.Name)
			}
		})
	}
	asking.Wait()
	return answers
}

// List returns every VM of this installation, on all nodes of the cluster. If a node could not be
// asked, it returns what it found and an error of class HostOffline.
func (p *Provider) List(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list VMs", Node.List)
}

// ListVolumes returns the holders of volumes on all nodes that are online.
func (p *Provider) ListVolumes(ctx context.Context) ([]vm.VM, error) {
	return p.list(ctx, "list volumes", Node.ListVolumes)
}

func (p *Provider) list(ctx context.Context, op string, ask func(n Node, ctx context.Context) ([]vm.VM, error)) ([]vm.VM, error) {
	inv, err := p.inventory(ctx)
	if inv.Asked == "" {
		return nil, err
	}
	var vms []vm.VM
	var missing []string
	for _, a := range every(ctx, p, inv.Nodes, func(n Node, _ string) ([]vm.VM, error) { return ask(n, ctx) }) {
		vms = append(vms, a.value...)
		if a.err != nil {
			missing = append(missing, fmt.Sprintf("node '%s' did not list its own: %s", a.node, textOf(a.err)))
		}
	}
	if len(missing) > 0 {
		return vms, &job.HostError{
			Op: op, Host: p.hosts(), Class: job.HostOffline, Text: strings.Join(missing, "; "),
			Remedy: "bring the node back online, or remove it from the cluster",
		}
	}
	return vms, nil
}

// textOf returns an error's text without what was tried and where.
func textOf(err error) string {
	if host, ok := errors.AsType[*job.HostError](err); ok {
		return host.Text
	}
	return err.Error()
}

// Check checks all nodes that VMs are created on, concurrently. If one is in order, the others'
// failures are warnings.
func (p *Provider) Check(ctx context.Context) (job.HostReport, error) {
	inv, err := p.Nodes(ctx)
	if err != nil {
		return job.HostReport{Host: p.hosts()}, err
	}
	r := job.HostReport{Host: p.hosts(), Node: inv.Asked}
	r.Checks = append(r.Checks, checkCluster(inv))
	answers := every(ctx, p, inv.Nodes, func(n Node, _ string) (job.HostReport, error) { return n.Check(ctx) })
	for i, a := range answers {
		n := inv.Nodes[i]
		var host *job.HostError
		switch {
		case n.Maintained() && n.Online:
			a.value.OK = false
			r.Checks = append(r.Checks, job.Check{Node: n.Name, Name: "maintenance", Level: "warn", Text: "it gets no VMs: its HA state is " + n.HA, Remedy: "when that is over: ha-manager crm-command node-maintenance disable " + n.Name})
		case errors.As(a.err, &host):
			a.value.Checks = []job.Check{{Name: "node", Level: "fail", Text: host.Text, Remedy: host.Remedy}}
		case a.err != nil:
			a.value.Checks = []job.Check{{Name: "node", Level: "fail", Text: a.err.Error()}}
		}
		r.OK, r.Facts = r.OK || a.err == nil && a.value.OK, append(r.Facts, a.value.Facts...)
		for _, c := range a.value.Checks {
			c.Node = n.Name
			r.Checks = append(r.Checks, c)
		}
	}
	r.OK = r.OK && inv.Quorum
	for i := range r.Checks {
		if r.OK && r.Checks[i].Level == "fail" {
			r.Checks[i].Level = "warn"
		}
	}
	return r, nil
}

// checkCluster reports on the cluster as a whole.
func checkCluster(inv job.Inventory) job.Check {
	c := job.Check{Name: "cluster", Level: "ok", Text: fmt.Sprintf("asked on node '%s': VMs go to %d nodes", inv.Asked, len(inv.Nodes))}
	if inv.Excluded > 0 {
		c.Text += fmt.Sprintf(", and not to %d others (PROXMOX_NODES)", inv.Excluded)
	}
	if !inv.Quorum {
		c.Level, c.Text = "fail", "the cluster has no quorum (asked on node '"+inv.Asked+"')"
		c.Remedy = "bring the other nodes back: until then Proxmox refuses every change; look at: pvecm status"
	}
	return c
}

// Room returns what the node with the most memory left has, and the generations of templates on all
// nodes together. It watches VMs on the nodes that have them. A node that does not answer keeps its
// leases as they are, and raises no doubt about its VMs.
func (p *Provider) Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error) {
	inv, err := p.Nodes(ctx)
	if err != nil {
		return job.HostRoom{}, err
	}
	room := job.HostRoom{Generations: map[job.Origin]string{}, Doubts: map[string]string{}, Leases: map[string]job.LeaseState{}}
	of := map[string][]job.Watched{}
	asked := slices.Clone(inv.Nodes)
	for _, w := range vms {
		room.Leases[w.VM.Job] = job.LeaseKept
		of[w.VM.Node] = append(of[w.VM.Node], w)
		if _, among := inv.Node(w.VM.Node); !among && len(of[w.VM.Node]) == 1 {
			asked = append(asked, job.Node{Name: w.VM.Node})
		}
	}
	answered := false
	var last error
	for _, a := range every(ctx, p, asked, func(n Node, name string) (job.HostRoom, error) { return n.Room(ctx, origins, of[name]) }) {
		if a.err != nil {
			last = a.err
			continue
		}
		answered = true
		maps.Copy(room.Leases, a.value.Leases)
		maps.Copy(room.Doubts, a.value.Doubts)
		if n, among := inv.Node(a.node); among && !n.Maintained() && a.value.FreeMB-a.value.ReserveMB() > room.FreeMB-room.ReserveMB() || room.TotalMB == 0 {
			room.FreeMB, room.TotalMB, room.Pressure = a.value.FreeMB, a.value.TotalMB, a.value.Pressure
		}
	}
	if !answered {
		return job.HostRoom{}, last
	}
	for _, o := range origins {
		if made := onAll(inv, o.Template); made != "" || o.Template == "" {
			room.Generations[o] = p.o.Entries[0].Node.Generation(o, made)
		}
	}
	return room, nil
}

// onAll identifies a template on all nodes together. That changes as soon as the template changes
// on one node, but not when a node goes down: the cluster shows the configs of all nodes.
func onAll(inv job.Inventory, template string) string {
	var made []string
	for _, n := range inv.Nodes {
		if at, several := n.Template(template); at >= 0 && !several {
			t := n.Templates[at]
			made = append(made, fmt.Sprint(n.Name, " ", t.ID, " ", t.Sum))
		}
	}
	return strings.Join(made, ", ")
}
