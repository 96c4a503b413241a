package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"linus/internal/lab/sys"
)

// What PVE keeps in its cluster file system: which VM or container has an ID.

// NodeDir is a node's directory below etc/pve/nodes.
func (s *State) NodeDir(node, kind string) string {
	return s.Path("etc", "pve", "nodes", node, kind)
}

// ConfPath is the config file of this node's VM.
func (s *State) ConfPath(id int) string { return s.ConfPathOn(s.Config.Node, id) }

// ConfPathOn is the config file of a VM on any node.
func (s *State) ConfPathOn(node string, id int) string {
	return filepath.Join(s.NodeDir(node, "qemu-server"), strconv.Itoa(id)+".conf")
}

// IDsOf returns the IDs of a node's VMs (kind qemu-server) or containers (lxc), in order.
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

// Holder finds who has an ID anywhere in the cluster. The kind it returns is VM or CT.
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

// LoadConf reads the config of this node's VM.
func (s *State) LoadConf(id int) (*Conf, error) { return s.LoadConfOf(s.Config.Node, id) }

// LoadConfOf reads the config of a VM on any node.
func (s *State) LoadConfOf(node string, id int) (*Conf, error) {
	raw, err := os.ReadFile(s.ConfPathOn(node, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, Fail(2, "Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", node, id)
	}
	if err != nil {
		return nil, err
	}
	return ParseConf(string(raw)), nil
}

// ConfsOf iterates over the IDs and configs of a node's VMs, in the order of the IDs.
func (s *State) ConfsOf(node string) iter.Seq2[int, *Conf] {
	return func(yield func(int, *Conf) bool) {
		for _, id := range s.IDsOf(node, "qemu-server") {
			conf, err := s.LoadConfOf(node, id)
			if err == nil && !yield(id, conf) { // otherwise the VM was destroyed since it was listed
				return
			}
		}
	}
}

// WriteConf replaces a VM's config. The caller holds the VM's lock.
func (s *State) WriteConf(id int, conf *Conf) error {
	if s.Quorate() != nil { // pmxcfs refuses the write from anyone
		return Fail(int(syscall.EACCES), "unable to open file '/etc/pve/nodes/%s/qemu-server/%d.conf.tmp.%d' - Permission denied", s.Config.Node, id, os.Getpid())
	}
	return sys.WriteFile(s.ConfPath(id), []byte(conf.String()), 0o640)
}

// TakenError reports who has an ID that was to be reserved.
type TakenError struct {
	id         int
	Kind, Node string
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("%s %d already exists on node '%s'", e.Kind, e.id, e.Node)
}

// Reserve takes an ID by writing its config, which is the one step that decides a race. It fails
// with *TakenError if any VM or container in the cluster has the ID.
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
	return s.WithClusterLock(ctx, io.Discard, "vmids", func() error {
		if kind, node, taken := s.Holder(id); taken {
			return &TakenError{id, kind, node}
		}
		if err := s.noteBirth(id); err != nil {
			return err
		}
		return sys.CreateFile(s.ConfPath(id), []byte(conf.String()))
	})
}

// PlantVM writes the config of a foreign VM, without disks, on this or another node of the cluster.
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
	return sys.CreateFile(filepath.Join(s.NodeDir(node, kind), strconv.Itoa(id)+".conf"), []byte(content))
}

// showFaults makes the cluster's files agree with the faults that show in them: programs that read
// these files directly run none of the work-alikes.
func (s *State) showFaults() error {
	if err := s.hideConfs(); err != nil {
		return err
	}
	return s.ShowCluster()
}

// hideConfs moves away the configs that a fault hides, and moves the others back.
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
