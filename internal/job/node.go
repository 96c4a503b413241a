package job

import (
	"fmt"
	"slices"
	"strings"
)

// Inventory is what a node reports about its cluster. A host without a cluster
// is the one node.
type Inventory struct {
	Asked    string // the node that reported it
	Cluster  bool
	Quorum   bool // of the part of the cluster that Asked is in; true without a cluster
	Nodes    []Node
	Spread   bool // VMs are spread over the nodes as they have room; else they go to Asked
	Excluded int  // nodes of the cluster that are not used for VMs, and not among Nodes
}

// Node returns the node of that name.
func (i Inventory) Node(name string) (Node, bool) {
	at := slices.IndexFunc(i.Nodes, func(n Node) bool { return n.Name == name })
	if at < 0 {
		return Node{}, false
	}
	return i.Nodes[at], true
}

// Locate returns the node that has the VM or container with that ID; empty: none,
// or it is not known.
func (i Inventory) Locate(id int) string {
	for _, n := range i.Nodes {
		if slices.ContainsFunc(n.VMs, func(vm NodeVM) bool { return vm.ID == id }) {
			return n.Name
		}
	}
	return ""
}

// FreeMB returns the memory that a node has for new VMs: what is neither reserved nor
// configured for VMs and containers that are not off. Of ours, those that are being
// made count in full, also where the cluster does not show them yet.
func (i Inventory) FreeMB(n Node, ours []PlacedVM) int {
	free := n.MostMB() - n.CommittedMB()
	for _, vm := range ours {
		seen := slices.IndexFunc(n.VMs, func(v NodeVM) bool { return v.ID == vm.ID })
		switch {
		case seen >= 0 && vm.Making && n.VMs[seen].Stopped:
			free -= vm.MemoryMB
		case vm.Node == n.Name && (vm.ID == 0 || i.Locate(vm.ID) == ""):
			free -= vm.MemoryMB
		}
	}
	return free
}

// NewestBuild returns the newest build of a template on any node; empty where none has a
// build that tells its time. Builds by this version are UUIDs of version 7, which sort
// by time.
func (i Inventory) NewestBuild(nameOrID string) string {
	newest := ""
	for _, n := range i.Nodes {
		for _, t := range n.Templates {
			if t.Is(nameOrID) && len(t.Build) == 36 && t.Build[14] == '7' {
				newest = max(newest, t.Build)
			}
		}
	}
	return newest
}

// Node is one node of a cluster. What changes while it runs is up to 20 s old.
type Node struct {
	Name     string
	Address  string // an IP address; empty: unknown
	Online   bool
	HA       string // the HA manager's state of the node, such as online or maintenance; empty: none
	MemoryMB int    // MiB; 0: unknown
	UsedMB   int    // measured
	HostKeys []string

	Storages  []NodeStorage
	Templates []NodeTemplate
	VMs       []NodeVM // and containers, without templates
}

// Template returns which of the node's templates is meant by a name or ID, or -1, and
// whether it is the name of several.
func (n Node) Template(nameOrID string) (at int, several bool) {
	at = -1
	for i, t := range n.Templates {
		if t.Is(nameOrID) {
			at, several = i, at >= 0
		}
	}
	return at, several
}

// Unused returns why VMs are not cloned from a template on the node, to be read after its
// name, given the newest build of it on any node; empty: they are.
func (n Node) Unused(nameOrID, newest string) string {
	at, several := n.Template(nameOrID)
	switch {
	case at < 0:
		return "not there"
	case several:
		return "is the name of several there"
	case newest == "" || n.Templates[at].Build == newest:
		return ""
	case n.Templates[at].Build == "":
		return "was not built by linus, as on other nodes"
	}
	return "is of an older build than on other nodes"
}

// CommittedMB returns the memory that the node's VMs and containers are configured
// with, except those that are off.
func (n Node) CommittedMB() int {
	sum := 0
	for _, vm := range n.VMs {
		if !vm.Stopped {
			sum += vm.MemoryMB
		}
	}
	return sum
}

// MostMB returns the memory that all VMs of the node may have together: the rest is
// reserved.
func (n Node) MostMB() int { return n.MemoryMB - HostRoom{TotalMB: n.MemoryMB}.ReserveMB() }

// Maintained reports whether the HA manager keeps VMs off the node: in
// maintenance, or fenced.
func (n Node) Maintained() bool { return n.HA != "" && n.HA != "online" }

// NodeStorage is a storage as one node sees it.
type NodeStorage struct {
	Name   string
	Active bool
	Shared bool // every node has the same
}

// NodeTemplate is a template on a node.
type NodeTemplate struct {
	ID     int
	Name   string
	Build  string   // the UUID of the build that made it; empty: it was made elsewhere
	Sum    string   // of its config
	Shared bool     // all its disks are on shared storages
	Has    []string // what its build has installed, of TemplateSpec.Bootstrap's; nil: unknown
}

// Is reports whether a manifest means this template by the text.
func (t NodeTemplate) Is(nameOrID string) bool {
	return nameOrID == t.Name || nameOrID == fmt.Sprint(t.ID)
}

// NodeVM is a VM or container on a node, ours or not.
type NodeVM struct {
	ID       int
	MemoryMB int // as configured
	Stopped  bool
}

// Placement asks for a node for a new VM.
type Placement struct {
	Spec     VMSpec
	VMs      []PlacedVM // the VMs of ours that exist or are being made, but for the new one
	Cordoned []string   // nodes that get no new VMs
	Only     string     // the one node that is asked for; empty: any
	Planned  bool       // no VM is created for it: its refusals are not counted
}

// Placed is the node for a new VM.
type Placed struct {
	Node string
	Why  string // it was chosen, and what of the others
}

// PlacedVM is a VM of ours on a node, or on its way there.
type PlacedVM struct {
	ID       int // 0: not known yet
	Node     string
	MemoryMB int
	Making   bool // it may not run yet
}

// NoRoomError is returned if no node can take a VM.
type NoRoomError struct {
	Text     string    // why, if it is not because of single nodes
	Refusals []Refusal // one for each node
}

// Waiting says that a VM waits for room, for people.
func (e *NoRoomError) Waiting() string { return "waiting: " + e.Error() }

func (e *NoRoomError) Error() string {
	if e.Text != "" {
		return e.Text
	}
	reasons := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		reasons[i] = r.Node + ": " + r.Text
	}
	return "no node can take it: " + strings.Join(reasons, "; ")
}

// Never reports whether no node can take the VM until something is configured
// otherwise.
func (e *NoRoomError) Never() bool {
	return len(e.Refusals) > 0 && !slices.ContainsFunc(e.Refusals, func(r Refusal) bool { return !r.Never })
}

// Refusal is why a node cannot take a VM.
type Refusal struct {
	Node   string
	Reason RefusalReason
	Text   string // with the remedy, if there is one
	Never  bool   // waiting does not help
}

// RefusalReason is the kind of a Refusal.
type RefusalReason string

// The reasons.
const (
	RefusedOffline     RefusalReason = "offline"
	RefusedMaintenance RefusalReason = "maintenance"
	RefusedCordoned    RefusalReason = "cordoned"
	RefusedUnreachable RefusalReason = "unreachable" // over SSH
	RefusedTemplate    RefusalReason = "template"
	RefusedStorage     RefusalReason = "storage"
	RefusedVolume      RefusalReason = "volume"
	RefusedBridge      RefusalReason = "bridge"
	RefusedLimit       RefusalReason = "limit"
	RefusedMemory      RefusalReason = "memory"
)

// MovedError is returned for a VM that is on another node than it was looked for
// on. Nothing was done to it.
type MovedError struct {
	Node string // where it is
	Err  error  // of class HostLeftAlone
}

func (e *MovedError) Error() string { return e.Err.Error() }

func (e *MovedError) Unwrap() error { return e.Err }

// NodeInfo is a node as people see it.
type NodeInfo struct {
	Name        string     `json:"name"`
	Status      NodeStatus `json:"status"`
	Spread      bool       `json:"spread"` // it gets VMs as it has room; else all VMs go to it
	Cordoned    bool       `json:"cordoned"`
	MemoryMB    int        `json:"memory_mb"`    // 0: unknown
	UsedMB      int        `json:"used_mb"`      // measured
	CommittedMB int        `json:"committed_mb"` // what VMs and containers that are not off are configured with, ours or not
	FreeMB      int        `json:"free_mb"`      // for new VMs: what is neither committed nor reserved
	VMs         int        `json:"vms"`          // ours
	Templates   []string   `json:"templates,omitempty"`
	// Unused has, by name, why VMs are not cloned from some of the templates.
	Unused   map[string]string `json:"unused_templates,omitempty"`
	Address  string            `json:"address,omitempty"`   // an IP address; empty: unknown
	HostKeys []string          `json:"host_keys,omitempty"` // of its SSH server, as in known_hosts: the cluster vouches for them
}

// NodeStatus is the status of a node, as the cluster reports it.
type NodeStatus string

// The statuses of a node.
const (
	NodeOnline      NodeStatus = "online"
	NodeOffline     NodeStatus = "offline"
	NodeMaintenance NodeStatus = "maintenance"
)

// NodeStatuses are all of them.
var NodeStatuses = []NodeStatus{NodeOnline, NodeOffline, NodeMaintenance}

// FileSource is where a file comes from, which has to have this checksum.
type FileSource struct{ URL, SHA256 string }

// TemplateSpec describes a template to build. For empty values build-template.sh's
// defaults apply.
type TemplateSpec struct {
	Name        string
	OS          string // one of vm.Systems
	ImageURL    string // another image than the OS's
	ImageSHA256 string
	Bootstrap   string // what to install: base, python, node, docker, claude, codex, gemini, code-interpreter, github-runner, forgejo-runner, gitea-runner (some of them, separated by blanks), all or none

	// Runners are where the runners of Bootstrap come from, by their names in it: the archive of
	// github-runner, and the programs of the others.
	Runners map[string]FileSource

	// Build identifies the build: a UUID of version 7. Templates on several nodes are
	// the same if theirs is. Empty: a new one.
	Build string
}
