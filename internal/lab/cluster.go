package lab

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
)

// What PVE keeps in its cluster file system: whose VM or container an ID is.

const otherNodeIP = "192.0.2.2" // a documentation address: nothing answers there

// nodeDir is a node's directory below etc/pve/nodes.
func (s *State) nodeDir(node, kind string) string {
	return s.path("etc", "pve", "nodes", node, kind)
}

// ConfPath is the config file of this node's VM.
func (s *State) ConfPath(id int) string {
	return filepath.Join(s.nodeDir(s.Config.Node, "qemu-server"), strconv.Itoa(id)+".conf")
}

// VMIDs are the IDs of this node's VMs, in order.
func (s *State) VMIDs() []int { return s.idsOf(s.Config.Node, "qemu-server") }

func (s *State) idsOf(node, kind string) []int {
	entries, err := os.ReadDir(s.nodeDir(node, kind))
	if err != nil {
		return nil
	}
	var ids []int
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), ".conf")
		if id, err := strconv.Atoi(name); ok && err == nil && !s.lists(FaultMissingTemplate, name) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// holder finds who has an ID anywhere in the cluster: kind is VM or CT.
func (s *State) holder(id int) (kind, node string, taken bool) {
	for _, node := range s.nodes() {
		if slices.Contains(s.idsOf(node.name, "qemu-server"), id) {
			return "VM", node.name, true
		}
		if slices.Contains(s.idsOf(node.name, "lxc"), id) {
			return "CT", node.name, true
		}
	}
	return "", "", false
}

// NextID is the lowest free ID from 100. It reserves nothing.
func (s *State) NextID() int {
	for id := 100; ; id++ {
		if _, _, taken := s.holder(id); !taken {
			return id
		}
	}
}

type node struct {
	name   string
	online bool
}

// writeMembers makes etc/pve/.members where it is not there. It is one of the
// files by which pmxcfs is told from a directory that it is not mounted on.
func (s *State) writeMembers() error {
	err := createFile(s.path("etc", "pve", ".members"), fmt.Sprintf("{\n\"nodename\": %q,\n\"version\": 0\n}\n", s.Config.Node))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// members is etc/pve/.members, which has no list of nodes where there is one.
type members struct {
	NodeList map[string]member `json:"nodelist"`
}

type member struct {
	Online int    `json:"online"`
	IP     string `json:"ip"`
}

// nodes are the cluster's nodes, this one first.
func (s *State) nodes() []node {
	all := []node{{s.Config.Node, !s.lists(FaultMissingNode, s.Config.Node)}}
	var m members
	if raw, err := os.ReadFile(s.path("etc", "pve", ".members")); err == nil && json.Unmarshal(raw, &m) == nil {
		for name, other := range m.NodeList {
			if name != s.Config.Node {
				all = append(all, node{name, other.Online == 1 && !s.lists(FaultMissingNode, name)})
			}
		}
	}
	slices.SortFunc(all[1:], func(a, b node) int { return strings.Compare(a.name, b.name) })
	return all
}

// LoadConf reads the config of this node's VM.
func (s *State) LoadConf(id int) (*Conf, error) {
	raw, err := os.ReadFile(s.ConfPath(id))
	if errors.Is(err, fs.ErrNotExist) || s.lists(FaultMissingTemplate, strconv.Itoa(id)) {
		return nil, fail(2, "Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", s.Config.Node, id)
	}
	if err != nil {
		return nil, err
	}
	return ParseConf(string(raw)), nil
}

// writeConf replaces a VM's config. The caller holds the VM's lock.
func (s *State) writeConf(id int, conf *Conf) error {
	if err := s.quorate(); err != nil {
		return err
	}
	return writeFileAtomic(s.ConfPath(id), []byte(conf.String()), 0o640)
}

// quorate is the error of every write without quorum.
func (s *State) quorate() error {
	if s.fault(FaultNoQuorum) != "" {
		return fail(255, "cluster not ready - no quorum?")
	}
	return nil
}

// errTaken says who has an ID that was to be reserved.
type errTaken struct {
	id         int
	kind, node string
}

func (e *errTaken) Error() string {
	return fmt.Sprintf("%s %d already exists on node '%s'", e.kind, e.id, e.node)
}

// reserve takes an ID by writing its config: the one moment that decides a
// race. It fails with *errTaken when anybody in the cluster has the ID.
func (s *State) reserve(ctx context.Context, id int, conf *Conf) error {
	if err := s.quorate(); err != nil {
		return err
	}
	switch {
	case s.useFault(FaultTaken):
		if err := s.PlantVM(s.Config.Node, id, "foreign-vm"); err != nil {
			return err
		}
	case s.useFault(FaultTakenCT):
		if err := s.PlantContainer(s.Config.Node, id); err != nil {
			return err
		}
	}
	return s.withLock(ctx, io.Discard, "vmids", "vmids", lockWait, func() error {
		if kind, node, taken := s.holder(id); taken {
			return &errTaken{id, kind, node}
		}
		return createFile(s.ConfPath(id), conf.String())
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
	if err := os.MkdirAll(s.nodeDir(node, kind), 0o755); err != nil {
		return err
	}
	return createFile(filepath.Join(s.nodeDir(node, kind), strconv.Itoa(id)+".conf"), content)
}

// PlantNode makes another node part of the cluster, or changes whether it is
// online.
func (s *State) PlantNode(name string, online bool) error {
	path := s.path("etc", "pve", ".members")
	m := members{NodeList: map[string]member{s.Config.Node: {Online: 1, IP: "127.0.0.1"}}}
	if raw, err := os.ReadFile(path); err == nil {
		if err := json.Unmarshal(raw, &m); err != nil {
			return err
		}
	}
	other := member{IP: otherNodeIP}
	if online {
		other.Online = 1
	}
	m.NodeList[name] = other
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.nodeDir(name, "qemu-server"), 0o755); err != nil {
		return err
	}
	return writeFileAtomic(path, raw, 0o644)
}
