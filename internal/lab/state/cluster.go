package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lab/sys"
)

// What PVE keeps in its cluster file system: whose VM or container an ID is.

const OtherNodeIP = "192.0.2.2" // a documentation address: nothing answers there

// NodeDir is a node's directory below etc/pve/nodes.
func (s *State) NodeDir(node, kind string) string {
	return s.Path("etc", "pve", "nodes", node, kind)
}

// ConfPath is the config file of this node's VM.
func (s *State) ConfPath(id int) string {
	return filepath.Join(s.NodeDir(s.Config.Node, "qemu-server"), strconv.Itoa(id)+".conf")
}

// VMIDs are the IDs of this node's VMs, in order.
func (s *State) VMIDs() []int { return s.IDsOf(s.Config.Node, "qemu-server") }

// IDsOf are the IDs of a node's VMs (kind qemu-server) or containers (lxc), in
// order.
func (s *State) IDsOf(node, kind string) []int {
	entries, err := os.ReadDir(s.NodeDir(node, kind))
	if err != nil {
		return nil
	}
	var ids []int
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".conf")
		if id, err := strconv.Atoi(name); ok && err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Holder finds who has an ID anywhere in the cluster: kind is VM or CT.
func (s *State) Holder(id int) (kind, node string, taken bool) {
	for _, node := range s.Nodes() {
		if slices.Contains(s.IDsOf(node.Name, "qemu-server"), id) {
			return "VM", node.Name, true
		}
		if slices.Contains(s.IDsOf(node.Name, "lxc"), id) {
			return "CT", node.Name, true
		}
	}
	return "", "", false
}

// NextID is the lowest free ID from 100. It reserves nothing.
func (s *State) NextID() int {
	for id := 100; ; id++ {
		if _, _, taken := s.Holder(id); !taken {
			return id
		}
	}
}

// Node is a node of the cluster.
type Node struct {
	Name   string
	Online bool
}

// WriteMembers writes etc/pve/.members as pmxcfs shows it: a host without a
// cluster has no list of nodes there.
func (s *State) WriteMembers() error {
	nodes := s.Nodes()
	m := map[string]any{"nodename": s.Config.Node, "version": len(nodes) - 1}
	if len(nodes) > 1 {
		quorate := 1
		if s.Fault(FaultNoQuorum) != "" {
			quorate = 0
		}
		list := map[string]any{}
		for i, n := range nodes {
			online, ip := 0, OtherNodeIP
			if n.Online {
				online = 1
			}
			if i == 0 {
				ip = "127.0.0.1"
			}
			list[n.Name] = map[string]any{"id": i + 1, "online": online, "ip": ip}
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

// plantedPath has the other nodes of the cluster: whether they are online, by name.
func (s *State) plantedPath() string { return s.Path("nodes.json") }

func (s *State) planted() (map[string]bool, error) {
	nodes := map[string]bool{}
	raw, err := os.ReadFile(s.plantedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nodes, nil
	}
	if err != nil {
		return nil, err
	}
	return nodes, json.Unmarshal(raw, &nodes)
}

// Nodes are the cluster's nodes, this one first.
func (s *State) Nodes() []Node {
	all := []Node{{s.Config.Node, !s.Lists(FaultMissingNode, s.Config.Node)}}
	if others, err := s.planted(); err == nil {
		for name, online := range others {
			all = append(all, Node{name, online && !s.Lists(FaultMissingNode, name)})
		}
	}
	slices.SortFunc(all[1:], func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// LoadConf reads the config of this node's VM.
func (s *State) LoadConf(id int) (*Conf, error) {
	raw, err := os.ReadFile(s.ConfPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Fail(2, "Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.Config.Node, id)
	}
	if err != nil {
		return nil, err
	}
	return ParseConf(string(raw)), nil
}

// WriteConf replaces a VM's config. The caller holds the VM's lock.
func (s *State) WriteConf(id int, conf *Conf) error {
	if err := s.Quorate(); err != nil {
		return err
	}
	return sys.WriteFile(s.ConfPath(id), []byte(conf.String()), 0o640)
}

// Quorate is the error of every write without quorum.
func (s *State) Quorate() error {
	if s.Fault(FaultNoQuorum) != "" {
		return Fail(255, "cluster not ready - no quorum?")
	}
	return nil
}

// TakenError says who has an ID that was to be reserved.
type TakenError struct {
	id         int
	Kind, node string
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s %d already exists on node '%s'", e.Kind, e.id, e.node)
}

// Reserve takes an ID by writing its config: the one moment that decides a
// race. It fails with *TakenError when anybody in the cluster has the ID.
func (s *State) Reserve(ctx context.Context, id int, conf *Conf) error {
	if err := s.Quorate(); err != nil {
		return err
	}
	switch {
	case s.UseFault(FaultTaken):
		if err := s.PlantVM(s.Config.Node, id, "foreign-vm"); err != nil {
			return err
		}
	case s.UseFault(FaultTakenCT):
		if err := s.PlantContainer(s.Config.Node, id); err != nil {
			return err
		}
	}
	return s.WithLock(ctx, io.Discard, "vmids", "vmids", LockWait, func() error {
		if kind, node, taken := s.Holder(id); taken {
			return &TakenError{id, kind, node}
		}
		return sys.CreateFile(s.ConfPath(id), conf.String())
	})
}

// PlantVM writes the config of a VM that is not ours, without disks, on this
// or another node of the cluster.
func (s *State) PlantVM(node string, id int, name string) error {
	conf := NewConf()
	conf.Set("name", name)
	conf.Set("memory", "512")
	return s.plant(node, "qemu-server", id, conf.String())
}

// PlantContainer writes the config of a container.
func (s *State) PlantContainer(node string, id int) error {
	return s.plant(node, "lxc", id, fmt.Sprintf("arch: amd64\nhostname: ct%d\nmemory: 512\nrootfs: local-lvm:vm-%d-disk-0,size=4G\n", id, id))
}

func (s *State) plant(node, kind string, id int, content string) error {
	if err := os.MkdirAll(s.NodeDir(node, kind), 0o755); err != nil {
		return err
	}
	return sys.CreateFile(filepath.Join(s.NodeDir(node, kind), strconv.Itoa(id)+".conf"), content)
}

// PlantNode makes another node part of the cluster, or changes whether it is
// online.
func (s *State) PlantNode(name string, online bool) error {
	nodes, err := s.planted()
	if err != nil {
		return err
	}
	nodes[name] = online
	raw, err := json.Marshal(nodes)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.NodeDir(name, "qemu-server"), 0o755); err != nil {
		return err
	}
	if err := sys.WriteFile(s.plantedPath(), raw, 0o644); err != nil {
		return err
	}
	return s.WriteMembers()
}

// showFaults makes the cluster's files agree with the faults that show in them:
// whoever reads these starts none of our commands.
func (s *State) showFaults() error {
	if err := s.hideConfs(); err != nil {
		return err
	}
	return s.WriteMembers()
}

// hideConfs moves the configs that nobody is to find away, and the others back.
func (s *State) hideConfs() error {
	hidden := s.Path("etc", "hidden")
	if err := os.MkdirAll(hidden, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(hidden)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if id, err := strconv.Atoi(entry.Name()); err == nil && !s.Lists(FaultMissingTemplate, entry.Name()) {
			if err := os.Rename(filepath.Join(hidden, entry.Name()), s.ConfPath(id)); err != nil {
				return err
			}
		}
	}
	for _, name := range strings.Split(s.Fault(FaultMissingTemplate), ",") {
		if id, err := strconv.Atoi(name); err == nil {
			if err := os.Rename(s.ConfPath(id), filepath.Join(hidden, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
