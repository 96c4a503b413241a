package state

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"linus/internal/lab/sys"
)

// The nodes of a cluster, and what each sees of the others. A lab of one node has no members.

// Member is a node of a cluster, as stored in cluster.json: a lab with its own directory.
type Member struct {
	Name        string    `json:"name"`
	Dir         string    `json:"dir"`
	IP          string    `json:"ip"`
	MemoryMB    int       `json:"memory_mb"`
	CPUs        int       `json:"cpus"`
	Down        time.Time `json:"down,omitzero"`    // since when the node is off; zero: it is on
	CutOff      time.Time `json:"cut_off,omitzero"` // since when no other node hears this one; zero: they do
	Running     []int     `json:"running,omitempty"`
	Maintenance bool      `json:"maintenance,omitempty"`
}

// Gone returns since when the other nodes have not heard from the member, or zero if they do.
func (m Member) Gone() time.Time {
	if m.Down.IsZero() {
		return m.CutOff
	}
	return m.Down
}

// Common is a path in what all nodes of a cluster share, or without one in the state directory.
func (s *State) Common(elem ...string) string {
	if s.Config.Cluster == "" {
		return s.Path(elem...)
	}
	return filepath.Join(append([]string{s.Config.Cluster}, elem...)...)
}

func (s *State) membersPath() string { return s.Common("cluster.json") }

// Members returns the cluster's nodes in order, or none without a cluster.
func (s *State) Members() ([]Member, error) {
	if s.Config.Cluster == "" {
		return nil, nil
	}
	var members []Member
	err := sys.ReadJSON(s.membersPath(), &members)
	return members, err
}

// SetMembers replaces the list of the cluster's nodes.
func (s *State) SetMembers(members []Member) error {
	return sys.WriteJSON(s.membersPath(), members, 0o644)
}

// EditMembers changes the cluster's nodes, and what each of them shows of the others.
func (s *State) EditMembers(ctx context.Context, edit func([]Member) error) error {
	return s.WithClusterLock(ctx, io.Discard, "members", func() error {
		members, err := s.Members()
		if err == nil {
			err = edit(members)
		}
		if err == nil {
			err = s.SetMembers(members)
		}
		if err == nil {
			err = s.writeManagerStatus(members)
		}
		for _, m := range members {
			var node *State
			if err == nil {
				node, err = Open(m.Dir)
			}
			if err == nil {
				err = node.ShowCluster()
			}
		}
		return err
	})
}

// Member returns the state of the named node; ok is false if it cannot be found or opened.
func (s *State) Member(name string) (node *State, m Member, ok bool) {
	members, err := s.Members()
	if err != nil {
		return nil, m, false
	}
	at := slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
	if at < 0 {
		return nil, m, false
	}
	node, err = Open(members[at].Dir)
	return node, members[at], err == nil
}

// Node is a node as another sees it.
type Node struct {
	ID     int
	Name   string
	IP     string
	Local  bool
	Online bool
}

// Nodes returns the cluster's nodes as this one sees them, in the order of their IDs.
func (s *State) Nodes() []Node {
	members, _ := s.Members()
	all := []Node{{Name: s.Config.Node, IP: "127.0.0.1", Local: true, Online: true}}
	if len(members) > 0 {
		all = nil
		for _, m := range members {
			all = append(all, Node{Name: m.Name, IP: m.IP, Local: m.Name == s.Config.Node, Online: sees(members, s.Config.Node, m)})
		}
	}
	for i := range all {
		all[i].ID = i + 1
		all[i].Online = all[i].Online && !s.Lists(FaultMissingNode, all[i].Name)
	}
	return all
}

// sees reports whether a node sees a member online.
func sees(members []Member, node string, m Member) bool {
	if m.Name == node {
		return true
	}
	self := slices.IndexFunc(members, func(m Member) bool { return m.Name == node })
	return m.Gone().IsZero() && self >= 0 && members[self].Gone().IsZero()
}

// Quorate returns the error with which every change fails without quorum, else nil. A node of a
// cluster has quorum when it sees more than half of all nodes.
func (s *State) Quorate() error {
	members, err := s.Members()
	if err != nil {
		return err
	}
	online := 0
	for _, m := range members {
		if sees(members, s.Config.Node, m) {
			online++
		}
	}
	if s.Fault(FaultNoQuorum) != "" || len(members) > 0 && online <= len(members)/2 {
		return Fail(255, "cluster not ready - no quorum?")
	}
	return nil
}

// WriteMembers writes etc/pve/.members as pmxcfs shows it: without a cluster, it lists no nodes.
func (s *State) WriteMembers() error {
	nodes := s.Nodes()
	m := map[string]any{"nodename": s.Config.Node, "version": len(nodes) - 1}
	if len(nodes) > 1 {
		quorate := 1
		if s.Quorate() != nil {
			quorate = 0
		}
		list := map[string]any{}
		for _, n := range nodes {
			online := 0
			if n.Online {
				online = 1
			}
			list[n.Name] = map[string]any{"id": n.ID, "online": online, "ip": n.IP}
		}
		m["cluster"] = map[string]any{"name": "lab", "version": len(nodes), "nodes": len(nodes), "quorate": quorate}
		m["nodelist"] = list
	}
	raw, err := json.MarshalIndent(m, "", "")
	if err != nil {
		return err
	}
	return sys.WriteFile(s.Path("etc", "pve", ".members"), append(raw, '\n'), 0o644)
}

// writeManagerStatus writes the HA manager's status of the nodes. The manager is idle, and has no
// status file, until a node is put into maintenance for the first time.
func (s *State) writeManagerStatus(members []Member) error {
	path := s.Common("pve", "ha", "manager_status")
	_, err := os.Stat(path)
	used := err == nil || slices.ContainsFunc(members, func(m Member) bool { return m.Maintenance })
	if !used {
		return nil
	}
	nodes := map[string]string{}
	for _, m := range members {
		nodes[m.Name] = "online"
		if m.Maintenance {
			nodes[m.Name] = "maintenance"
		} else if !m.Gone().IsZero() {
			nodes[m.Name] = "unknown"
		}
	}
	raw, err := json.Marshal(map[string]any{"node_status": nodes, "service_status": map[string]any{}, "timestamp": time.Now().Unix()})
	if err != nil {
		return err
	}
	return sys.WriteFile(path, raw, 0o640)
}

// HAStates returns the HA manager's state of each node, or nil while the manager is idle.
func (s *State) HAStates() map[string]string {
	var status struct {
		Nodes map[string]string `json:"node_status"`
	}
	_ = sys.ReadJSON(s.Path("etc", "pve", "ha", "manager_status"), &status)
	return status.Nodes
}

// For each node, the API shows the statistics that the node sent last. Nodes send them every 10 s
// (pvestatd), and pmxcfs forgets those older than 5 minutes.
const (
	StatisticsInterval = 10 * time.Second
	StatisticsKept     = 5 * time.Minute
)

func (s *State) birthPath(id int) string { return s.Common("born", fmt.Sprint(id)) }

// noteBirth records when an ID was taken, because the statistics do not show a new VM at once.
func (s *State) noteBirth(id int) error {
	if s.Config.Cluster == "" {
		return nil
	}
	if err := sys.WriteFile(s.birthPath(id), nil, 0o644); err != nil {
		return err
	}
	now := time.Now() // the time that the kernel gives a file is up to 4 ms old
	return os.Chtimes(s.birthPath(id), now, now)
}

// BornAfter reports whether a VM of a cluster was made after the given moment.
func (s *State) BornAfter(id int, moment time.Time) bool {
	info, err := os.Stat(s.birthPath(id))
	return err == nil && info.ModTime().After(moment)
}

// ForgetBirths makes all existing VMs as old as the lab.
func (s *State) ForgetBirths() error {
	if s.Config.Cluster == "" {
		return nil
	}
	if err := os.RemoveAll(s.Common("born")); err != nil {
		return err
	}
	return os.MkdirAll(s.Common("born"), 0o755)
}

// NodeName completes a node's name: 2 stands for pve2.
func NodeName(name string) string {
	if strings.Trim(name, "0123456789") == "" {
		return "pve" + name
	}
	return name
}
