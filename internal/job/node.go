package job

import (
	"fmt"
	"slices"
	"strings"
)

// Inventory is what a node reports about its cluster. A host without a cluster is its only node.
type Inventory struct {
	Asked    string // the node that reported it
	Cluster  bool
	Quorum   bool // of the part of the cluster that Asked is in; true without a cluster
	Nodes    []Node
	Spread   bool // VMs are spread over the nodes by free room; else they go to Asked
	Excluded int  // nodes of the cluster that are not used for VMs and not in Nodes
}

// Node returns the node of that name.
func (i Inventory) Node(name string) (Node, bool) {
	at := slices.IndexFunc(i.Nodes, func(n Node) bool { return n.Name == name })
	if at < 0 {
		return Node{}, false
	}
	return i.Nodes[at], true
}

// Locate returns the node that has the VM or container with that ID; empty if there is none or it is unknown.
func (i Inventory) Locate(id int) string {
	for _, n := range i.Nodes {
		if slices.ContainsFunc(n.VMs, func(vm NodeVM) bool { return vm.ID == id }) {
			return n.Name
		}
	}
	return ""
}

// FreeMB returns the memory that a node has for new VMs: what is neither reserved nor configured for
// VMs and containers that are not off. linus's VMs that are being created count in full, even if the
// cluster does not show them yet.
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

// NewestBuild returns the newest build of a template on any node; empty if no build tells its time.
// Builds by this version are UUIDs of version 7, which sort by time.
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

// Node is one node of a cluster. Data that changes while the node runs is up to 20 s old.
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
	VMs       []NodeVM // and containers, but not templates
}

// Template returns the index of the node's template with a name or ID, or -1, and whether several
// templates have that name.
func (n Node) Template(nameOrID string) (at int, several bool) {
	at = -1
	for i, t := range n.Templates {
		if t.Is(nameOrID) {
			at, several = i, at >= 0
		}
	}
	return at, several
}

// Unused returns why VMs are not cloned from a template on the node, as text to follow the node's
// name, given the template's newest build on any node; empty if they are.
func (n Node) Unused(nameOrID, newest string) string {
	at, several := n.Template(nameOrID)
	switch {
	case at < 0:
		return "not there"
	case several:
		return "is the name of several templates there"
	case newest == "" || n.Templates[at].Build == newest:
		return ""
	case n.Templates[at].Build == "":
		return "was not built by linus, as on other nodes"
	}
	return "is of an older build than on other nodes"
}

// CommittedMB returns the memory configured for the node's VMs and containers, except those that are off.
func (n Node) CommittedMB() int {
	sum := 0
	for _, vm := range n.VMs {
		if !vm.Stopped {
			sum += vm.MemoryMB
		}
	}
	return sum
}

// MostMB returns the memory that all VMs of the node may have together; the rest is reserved.
func (n Node) MostMB() int { return n.MemoryMB - HostRoom{TotalMB: n.MemoryMB}.ReserveMB() }

// Maintained reports whether the HA manager keeps VMs off the node: in maintenance, or fenced.
func (n Node) Maintained() bool { return n.HA != "" && n.HA != "online" }

// NodeStorage is a storage as one node sees it.
type NodeStorage struct {
	Name   string
	Active bool
	Shared bool // every node has the same content
}

// NodeTemplate is a template on a node.
type NodeTemplate struct {
	ID     int
	Name   string
	Build  string   // the UUID of the build that made it; empty: not built by linus
	Sum    string   // checksum of its config
	Shared bool     // all its disks are on shared storages
	Has    []string // what its build has installed, of TemplateSpec.Bootstrap's; nil: unknown
}

// Is reports whether a text in a manifest means this template.
func (t NodeTemplate) Is(nameOrID string) bool {
	return nameOrID == t.Name || nameOrID == fmt.Sprint(t.ID)
}

// NodeVM is any VM or container on a node, linus's or not.
type NodeVM struct {
	ID       int
	MemoryMB int // as configured
	Stopped  bool
}

// Placement asks for a node for a new VM.
type Placement struct {
	Spec     VMSpec
	VMs      []PlacedVM // linus's VMs that exist or are being created, except the new one
	Cordoned []string   // nodes that get no new VMs
	Only     string     // the requested node; empty: any
	Planned  bool       // no VM is created for it, so its refusals are not counted
}

// Placed is the node for a new VM.
type Placed struct {
	Node string
	Why  string // why it was chosen, and what kept others from being chosen
}

// PlacedVM is one of linus's VMs on a node, or about to be created there.
type PlacedVM struct {
	ID       int // 0: not known yet
	Node     string
	MemoryMB int
	Making   bool // it may not run yet
}

// NoRoomError is returned if no node can take a VM.
type NoRoomError struct {
	Text     string    // why, if the cause is not single nodes
	Refusals []Refusal // one for each node
}

// Waiting says, for people, that a VM waits for room.
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

// Never reports whether no node can take the VM until the configuration changes.
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

// MovedError is returned if a VM is on another node than expected. Nothing was done to the VM.
type MovedError struct {
	Node string // where the VM is
	Err  error  // of class HostLeftAlone
}

func (e *MovedError) Error() string { return e.Err.Error() }

func (e *MovedError) Unwrap() error { return e.Err }

// NodeInfo is a node as people see it.
type NodeInfo struct {
	Name        string     `json:"name"`
	Status      NodeStatus `json:"status"`
	Spread      bool       `json:"spread"` // it gets VMs according to its free room; else all VMs go to it
	Cordoned    bool       `json:"cordoned"`
	MemoryMB    int        `json:"memory_mb"`    // 0: unknown
	UsedMB      int        `json:"used_mb"`      // measured
	CommittedMB int        `json:"committed_mb"` // memory configured for VMs and containers that are not off, linus's or not
	FreeMB      int        `json:"free_mb"`      // for new VMs: what is neither committed nor reserved
	VMs         int        `json:"vms"`          // linus's VMs
	Templates   []string   `json:"templates,omitempty"`
	// Unused says, by template name, why VMs are not cloned from some templates.
	Unused   map[string]string `json:"unused_templates,omitempty"`
	Address  string            `json:"address,omitempty"`   // an IP address; empty: unknown
	HostKeys []string          `json:"host_keys,omitempty"` // of its SSH server, as in known_hosts, as reported by the cluster
}

// NodeStatus is the status of a node, as the cluster reports it.
type NodeStatus string

// The statuses of a node.
const (
	NodeOnline      NodeStatus = "online"
	NodeOffline     NodeStatus = "offline"
	NodeMaintenance NodeStatus = "maintenance"
)

// NodeStatuses are all statuses.
var NodeStatuses = []NodeStatus{NodeOnline, NodeOffline, NodeMaintenance}

// FileSource is where a file comes from and the checksum it must have.
type FileSource struct{ URL, SHA256 string }

// TemplateSpec describes a template to build. Empty values get the defaults of build-template.sh.
type TemplateSpec struct {
	Name        string
	OS          string // one of vm.Systems
	ImageURL    string // replaces the OS's image
	ImageSHA256 string
	Bootstrap   string // what to install: base, python, node, docker, claude, codex, gemini, code-interpreter, github-runner, forgejo-runner, gitea-runner (some of them, separated by blanks), all or none

	// Runners says where the runners of Bootstrap come from, by their names there: the archive of
	// github-runner, and the programs of the others.
	Runners map[string]FileSource

	// Build identifies the build: a UUID of version 7. Templates on several nodes are the same if
	// their builds are equal. Empty: a new one.
	Build string
}
