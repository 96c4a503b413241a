package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/state"
)

// A cluster is a lab of several nodes. Each node is a lab of its own, with its own sshd, units,
// VMs, local storages and faults. The first node's directory stands for the cluster: the cluster is
// brought up and taken down by it, and the directories of the other nodes lie below it. What
// Proxmox's nodes share, /etc/pve and the storage called shared, is in one directory for all nodes.

const maxNodes = 9

// planCluster turns the settings of a new lab into those of a cluster's first node.
func planCluster(s *state.State, opts Options) error {
	switch {
	case opts.Nodes > maxNodes:
		return fmt.Errorf("a lab has at most %d nodes", maxNodes)
	case s.Config.Driver != state.DriverProcess:
		return errors.New("a lab of several nodes needs the process driver: the qemu lab has one node")
	case s.Config.RealSystemd:
		return errors.New("a lab of several nodes needs the simulated systemd")
	}
	s.Config.Node, s.Config.Cluster = nodeName(0), s.Path("cluster")
	var sizes []string
	for i := range opts.Nodes {
		memory, cpus := int64(32)<<30, 8
		if n := len(opts.NodeMemory); n > 0 {
			var err error
			if memory, err = state.ParseSize(opts.NodeMemory[min(i, n-1)]); err != nil || memory < 1<<30 {
				return fmt.Errorf("memory of node %d: %q is no size of at least 1G", i+1, opts.NodeMemory[min(i, n-1)])
			}
		}
		if n := len(opts.NodeCPUs); n > 0 {
			if cpus = opts.NodeCPUs[min(i, n-1)]; cpus < 1 {
				return fmt.Errorf("node %d has %d CPUs", i+1, cpus)
			}
		}
		sizes = append(sizes, fmt.Sprintf("%d/%d", memory>>20, cpus))
	}
	s.Config.Sizes = strings.Join(sizes, " ")
	return nil
}

func nodeName(i int) string { return "pve" + strconv.Itoa(i+1) }

func (l *Lab) size() int { return max(1, len(strings.Fields(l.Config.Sizes))) }

// onlyANode returns the error for an operation that is allowed on the whole cluster only.
func (l *Lab) onlyANode() error {
	return fmt.Errorf("%s is node %s of the lab in %s: give that directory", l.Dir, l.Config.Node, l.Root())
}

// layOutNodes creates the directories and files of all nodes and returns the nodes that are not
// down. A lab without a cluster is its only node.
func (l *Lab) layOutNodes(ctx context.Context) ([]*Lab, error) {
	if l.Config.Cluster == "" {
		return []*Lab{l}, l.layOut()
	}
	if err := l.LayOutCluster(); err != nil {
		return nil, err
	}
	if _, err := l.Members(); errors.Is(err, fs.ErrNotExist) {
		if err := l.join(ctx); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	members, err := l.Members()
	if err != nil {
		return nil, err
	}
	var nodes []*Lab
	for i, m := range members {
		node := l
		if i > 0 {
			if node, err = l.claimNode(m); err != nil {
				return nil, err
			}
		}
		if err := node.layOut(); err != nil {
			return nil, err
		}
		if m.Down.IsZero() {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// join writes the list of nodes. Each has its own loopback address; all use the same port.
func (l *Lab) join(ctx context.Context) error {
	var members []state.Member
	var addresses []string
	for i, size := range strings.Fields(l.Config.Sizes) {
		m := state.Member{Name: nodeName(i), Dir: l.Dir, IP: fmt.Sprintf("127.78.%d.%d", l.Hash()%254+1, i+1)}
		if i > 0 {
			m.Dir = l.Path("nodes", m.Name)
		}
		if _, err := fmt.Sscanf(size, "%d/%d", &m.MemoryMB, &m.CPUs); err != nil {
			return fmt.Errorf("size of node %d, %q: %w", i+1, size, err)
		}
		members, addresses = append(members, m), append(addresses, m.IP)
	}
	if err := chooseSSHPort(ctx, l.State, addresses...); err != nil {
		return err
	}
	if err := l.Save(); err != nil {
		return err
	}
	return l.SetMembers(members)
}

// claimNode writes the settings of another node and opens its lab.
func (l *Lab) claimNode(m state.Member) (*Lab, error) {
	s := &state.State{Dir: m.Dir, Config: l.Config, Log: l.Log}
	s.Config.Node, s.Config.SSHHost, s.Config.Sizes = m.Name, m.IP, ""
	if err := os.MkdirAll(s.Path("locks"), 0o755); err != nil {
		return nil, err
	}
	if err := s.Save(); err != nil {
		return nil, err
	}
	return withDriver(s)
}

// Node returns the lab of the named cluster node.
func (l *Lab) Node(name string) (*Lab, error) {
	s, _, ok := l.Member(name)
	if !ok {
		return nil, fmt.Errorf("the lab in %s has no node %q", l.Root(), name)
	}
	return withDriver(s)
}

// Nodes returns the labs of the cluster's nodes in order, or the lab itself if it is no cluster.
func (l *Lab) Nodes() ([]*Lab, error) {
	if l.Config.Cluster == "" {
		return []*Lab{l}, nil
	}
	members, err := l.Members()
	if err != nil {
		return nil, err
	}
	var nodes []*Lab
	for _, m := range members {
		node, err := l.Node(m.Name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// edit changes a node's record in the cluster.
func (l *Lab) edit(ctx context.Context, name string, change func(*state.Member)) error {
	if l.Config.Cluster == "" {
		return fmt.Errorf("the lab in %s is no cluster: it was not brought up with --nodes", l.Dir)
	}
	return l.EditMembers(ctx, func(members []state.Member) error {
		at := slices.IndexFunc(members, func(m state.Member) bool { return m.Name == name })
		if at < 0 {
			return fmt.Errorf("the lab in %s has no node %q", l.Root(), name)
		}
		change(&members[at])
		return nil
	})
}

func (l *Lab) runningVMs(ctx context.Context) (ids []int) {
	for _, vm := range l.VMs(ctx) {
		if vm.PID != 0 {
			ids = append(ids, vm.ID)
		}
	}
	return ids
}

// NodeDown cuts a node's power: its sshd, units and VMs end, and other nodes see it offline.
func (l *Lab) NodeDown(ctx context.Context, name string) error {
	node, err := l.Node(name)
	if err != nil {
		return err
	}
	return node.alone(ctx, func() error {
		ran := node.runningVMs(ctx)
		if err := node.powerCut(ctx); err != nil { // until the record changes below, nothing on the node notices
			return err
		}
		return l.edit(ctx, name, func(m *state.Member) {
			if m.Down.IsZero() {
				m.Down, m.Running = time.Now(), ran
			}
		})
	})
}

// NodeUp boots a node that is down. Its VMs stay stopped, except those with onboot, which it starts
// if it has quorum.
func (l *Lab) NodeUp(ctx context.Context, name string) error {
	node, err := l.Node(name)
	if err != nil {
		return err
	}
	return node.alone(ctx, func() error {
		if err := l.edit(ctx, name, func(m *state.Member) { m.Down, m.Running = time.Time{}, nil }); err != nil {
			return err
		}
		if err := node.start(ctx); err != nil {
			return err
		}
		if node.Quorate() != nil {
			return nil
		}
		for _, vm := range node.VMs(ctx) {
			conf, err := node.LoadConf(vm.ID)
			if err == nil && conf.Get("onboot") == "1" && vm.PID == 0 {
				if _, err := node.QM(ctx, "start", strconv.Itoa(vm.ID)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// SetMaintenance starts or ends maintenance, as `ha-manager crm-command node-maintenance` does.
func (l *Lab) SetMaintenance(ctx context.Context, name string, on bool) error {
	return l.edit(ctx, name, func(m *state.Member) { m.Maintenance = on })
}

// SetCutOff cuts a node's link to all others, or restores it. The node stays up and can be reached
// from outside the cluster, but it has no quorum, and the others see it offline.
func (l *Lab) SetCutOff(ctx context.Context, name string, off bool) error {
	node, err := l.Node(name)
	if err != nil {
		return err
	}
	ran := node.runningVMs(ctx)
	return l.edit(ctx, name, func(m *state.Member) {
		switch {
		case !off:
			m.CutOff, m.Running = time.Time{}, nil
		case m.CutOff.IsZero():
			m.CutOff, m.Running = time.Now(), ran
		}
	})
}

// alone runs fn while no up, down or reboot of this node runs.
func (l *Lab) alone(ctx context.Context, fn func() error) error {
	return l.WithLock(ctx, io.Discard, upLock, l.Path("locks", upLock), upWait, fn)
}

// otherNodesDown ends what the other nodes of a cluster run. It also works on a half-made node.
func (l *Lab) otherNodesDown(ctx context.Context) error {
	entries, err := os.ReadDir(l.Path("nodes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		node, openErr := Open(l.Path("nodes", entry.Name()))
		switch {
		case errors.Is(openErr, state.ErrNoLab):
		case openErr != nil:
			err = errors.Join(err, openErr)
		default:
			err = errors.Join(err, node.powerCut(ctx), node.Driver.Down(ctx, node.State), node.Thaw())
		}
	}
	return err
}
