// Package cluster implements job.Provider over the nodes of one Proxmox cluster. It chooses a node
// for each new VM, and has everything about a VM done by the node that the VM is on. It knows the
// cluster by what one of its entries reports, and nothing of how a node is reached or what runs
// there: each node is a Provider of its own.
package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// Node is what linus does on one node. For a VM on another node, its methods return
// *job.MovedError.
type Node interface {
	job.Provider
	// Inventory reads the state of the whole cluster.
	Inventory(ctx context.Context) (job.Inventory, error)
	// HasBridge reports whether the node has a network interface of that name.
	HasBridge(ctx context.Context, name string) (bool, error)
	BuildTemplate(ctx context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error)
	// Templates returns the node's templates that this installation built.
	Templates(ctx context.Context) ([]vm.VM, error)
	RemoveTemplate(ctx context.Context, nameOrID string) (vm.VM, error)
	RenameTemplate(ctx context.Context, nameOrID, name string) (vm.VM, error)
	// Uninstall removes what linus keeps on the node besides VMs and templates.
	Uninstall(ctx context.Context, spec job.UninstallSpec) (job.Uninstalled, error)
	// Fence makes every node of the cluster refuse an engine's further requests.
	Fence(ctx context.Context, engine string) error
	// Generation identifies what VMs of an origin are made from: the template's state, and the
	// settings that shape VMs.
	Generation(o job.Origin, template string) string
	// Close ends the node's connections.
	Close()
}

// Entry is a node whose host key the operator has pinned.
type Entry struct {
	Host string // as the operator names it
	Node Node
}

// Options configure a Provider. Entries and Open are required.
type Options struct {
	Entries []Entry
	// Open returns a node that is not an entry, to be reached at its address with one of its host
	// keys: the cluster trusts them, and an entry has reported them. Open does not connect
	// yet.
	Open func(n job.Node) Node

	Only    []string // the nodes for new VMs; empty: all
	Storage string   // that every node with VMs has
	Bridge  string   // of VMs whose spec has none
	MaxVMs  int      // of linus on one node; 0: no limit

	Refused func(r job.Refusal) // called for each refusal of a node; nil: none
	Log     *slog.Logger        // nil: none
}

// How old the known state of the cluster may be, and how long a failed attempt to read it counts:
// otherwise every call would wait for the same entries.
const (
	freshFor  = 10 * time.Second
	failedFor = 3 * time.Second
)

// firstPatience is how long Create waits for the first report of the cluster.
const firstPatience = 2 * time.Minute

// Provider provides VMs on the nodes of a cluster.
type Provider struct {
	o    Options
	turn chan struct{} // held by the call that reads the inventory

	asking sync.WaitGroup // requests to entries, even those nobody waits for any more

	watchEvery time.Duration // between two checks whether a node with work under way is online

	mu      sync.Mutex
	inv     job.Inventory // as last read; Asked is empty before that
	readAt  time.Time     // when inv was read
	err     error         // of the last attempt
	triedAt time.Time
	entry   int            // the entry that answered last
	entries []string       // names of the entries' nodes; empty: not known yet
	nodes   map[string]*at // nodes that are not entries
	retired []Node         // replaced nodes: their address or keys have changed
	bridges map[bridgeOn]sight
}

var _ job.Provider = (*Provider)(nil)

// at is an open node, with the address and keys it was opened with.
type at struct {
	node    Node
	address string
	keys    []string
}

// New returns a Provider, which does not connect yet.
func New(o Options) *Provider {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Refused == nil {
		o.Refused = func(job.Refusal) {}
	}
	return &Provider{
		o: o, turn: make(chan struct{}, 1), watchEvery: freshFor, entries: make([]string, len(o.Entries)),
		nodes: map[string]*at{}, bridges: map[bridgeOn]sight{},
	}
}

// Close ends all connections.
func (p *Provider) Close() {
	p.mu.Lock()
	all := p.retired
	for _, e := range p.o.Entries {
		all = append(all, e.Node)
	}
	for _, a := range p.nodes {
		all = append(all, a.node)
	}
	p.mu.Unlock()
	for _, n := range all {
		n.Close()
	}
	p.asking.Wait()
}

// inventory returns the state of the cluster, at most freshFor old. With an error it returns the
// last known state, if there is one (otherwise Asked is empty).
func (p *Provider) inventory(ctx context.Context) (job.Inventory, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return p.known(), context.Cause(ctx)
	}
	p.mu.Lock()
	inv, err, fresh := p.inv, p.err, time.Since(p.readAt) < freshFor
	failed := err != nil && time.Since(p.triedAt) < failedFor
	p.mu.Unlock()
	if fresh || failed {
		return inv, err
	}
	began := time.Now() // the report may be from then
	entry, inv, err := p.ask(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return p.inv, err // the error says nothing about the cluster
	}
	p.err, p.triedAt = err, time.Now()
	if err == nil {
		p.inv, p.readAt, p.entry, p.entries[entry] = inv, began, entry, inv.Asked
	}
	return p.inv, err
}

// known returns the state of the cluster as last read.
func (p *Provider) known() job.Inventory {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inv
}

// awaitReport waits for entries that do not answer while nothing is known of the cluster yet, as
// when the engine has just started.
func (p *Provider) awaitReport(ctx context.Context) {
	for over := time.Now().Add(firstPatience); time.Now().Before(over); {
		inv, err := p.inventory(ctx)
		if inv.Asked != "" || !job.IsClass(err, job.HostUnreachable) {
			return
		}
		if sleep.For(ctx, failedFor) != nil {
			return
		}
	}
}

// node returns the node with a name. For the empty name it returns the node of the entry that
// answered last: VMs created before there was a choice have no node.
func (p *Provider) node(ctx context.Context, name string) (Node, error) {
	inv, err := p.inventory(ctx)
	if inv.Asked == "" {
		return nil, err // nothing was ever known of the cluster
	}
	name = cmp.Or(name, inv.Asked)
	n, known := inv.Node(name)
	switch {
	case !known:
		names := make([]string, len(inv.Nodes))
		for i, n := range inv.Nodes {
			names[i] = n.Name
		}
		return nil, p.fault(name, job.HostConfig, "the cluster has no node '"+name+"' (known: "+strings.Join(names, ", ")+")", "look at: pvecm nodes")
	case down(inv, n) && err == nil:
		return nil, p.fault(name, job.HostOffline, "node '"+name+"' is offline, as node '"+inv.Asked+"' sees it", "bring it back online: what is on it is looked after then")
	}
	return p.open(n)
}

// down reports whether a node is known to be down. A part of the cluster without quorum does not
// know that of other nodes.
func down(inv job.Inventory, n job.Node) bool { return !n.Online && inv.Quorum }

// At returns the node to use as a jump host for a VM: the one it is on, as far as is known. It
// reads the state of the cluster only where that may help.
func (p *Provider) At(ctx context.Context, v vm.VM) (Node, error) {
	inv := p.known()
	name := cmp.Or(inv.Locate(v.ID), v.Node, inv.Asked)
	if n, known := inv.Node(name); known && !down(inv, n) {
		return p.open(n)
	}
	if _, err := p.inventory(ctx); err != nil && inv.Asked == "" {
		return nil, err
	}
	return p.node(ctx, cmp.Or(p.known().Locate(v.ID), v.Node))
}

// open returns a node of the inventory.
func (p *Provider) open(n job.Node) (Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.entryOf(n); i >= 0 {
		return p.o.Entries[i].Node, nil
	}
	switch {
	case n.Address == "":
		return nil, p.fault(n.Name, job.HostConfig, "the cluster does not report the address of node '"+n.Name+"'", "look at: pvecm status; or add the node to PROXMOX_HOST")
	case len(n.HostKeys) == 0:
		return nil, p.fault(n.Name, job.HostKeyChanged, "the cluster does not report the SSH host key of node '"+n.Name+"': /etc/pve/nodes/"+n.Name+"/ssh_known_hosts is missing or has none",
			"run `pvecm updatecerts` on that node; or add the node to PROXMOX_HOST, and run `"+string(job.TrustHost)+"`")
	}
	if known := p.nodes[n.Name]; known != nil {
		if known.address == n.Address && slices.Equal(known.keys, n.HostKeys) {
			return known.node, nil
		}
		p.retired = append(p.retired, known.node) // calls may be under way there
	}
	opened := &at{node: p.o.Open(n), address: n.Address, keys: n.HostKeys}
	p.nodes[n.Name] = opened
	return opened.node, nil
}

func (p *Provider) fault(node string, class job.HostClass, text, remedy string) error {
	return &job.HostError{Op: "reach node " + node, Host: p.hosts(), Class: class, Text: text, Remedy: remedy}
}

// entryOf returns the index of the entry that is the node, or -1: the entry that reported as that
// node, or that has its name or address. p.mu is held.
func (p *Provider) entryOf(n job.Node) int {
	if i := slices.Index(p.entries, n.Name); i >= 0 {
		return i
	}
	for i, e := range p.o.Entries {
		label, _, _ := strings.Cut(e.Host, ".")
		ip, err := netip.ParseAddr(e.Host)
		if p.entries[i] == "" && (err == nil && ip.String() == n.Address || err != nil && strings.EqualFold(label, n.Name)) {
			return i
		}
	}
	return -1
}

// used returns the nodes that VMs are created on.
func (p *Provider) used(inv job.Inventory) []job.Node {
	if len(p.o.Only) == 0 {
		return inv.Nodes
	}
	return slices.DeleteFunc(slices.Clone(inv.Nodes), func(n job.Node) bool { return !slices.Contains(p.o.Only, n.Name) })
}

// Nodes returns the nodes that VMs are created on.
func (p *Provider) Nodes(ctx context.Context) (job.Inventory, error) {
	inv, err := p.inventory(ctx)
	if err != nil {
		return job.Inventory{}, err
	}
	for _, name := range p.o.Only {
		if _, known := inv.Node(name); !known {
			return job.Inventory{}, &job.HostError{
				Op: "read the nodes of the cluster", Host: p.hosts(), Class: job.HostConfig,
				Text: fmt.Sprintf("the cluster has no node '%s'", name), Remedy: "correct PROXMOX_NODES; look at: pvecm nodes",
			}
		}
	}
	used := p.used(inv)
	inv.Spread, inv.Excluded, inv.Nodes = true, len(inv.Nodes)-len(used), used
	return inv, nil
}
