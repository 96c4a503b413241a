package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os/user"
	"slices"
	"strings"

	"linus/internal/lab/pve"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// Report is what `pvelab status` reports.
type Report struct {
	Dir        string                 `json:"dir"`
	Driver     string                 `json:"driver"`
	Version    string                 `json:"version"`
	SSH        string                 `json:"ssh"`
	SSHRunning bool                   `json:"ssh_running"`
	VMs        []pve.VMStatus         `json:"vms"`
	Nodes      []NodeStatus           `json:"nodes,omitempty"` // only of a cluster; VMs then has the first node's
	Faults     map[state.Fault]string `json:"faults"`
}

// Status reports what the lab has and what runs.
func (l *Lab) Status(ctx context.Context) (Report, error) {
	if l.outside() && l.container().Running() {
		return l.statusInside(ctx)
	}
	report := Report{Dir: l.Dir, Driver: l.Config.Driver, Version: l.Config.Version, SSH: l.sshAddress(), VMs: l.VMs(ctx)}
	_, report.SSHRunning = sys.ReadPidFile(l.Path("ssh", "pid"))
	var err error
	if report.Nodes, err = l.nodeStatus(ctx); err != nil {
		return report, err
	}
	report.Faults, err = l.ActiveFaults()
	return report, err
}

// statusInside returns what `pvelab status` reports on the lab's host.
func (l *Lab) statusInside(ctx context.Context) (Report, error) {
	var report Report
	var out, errs strings.Builder
	if code := l.enter(ctx, "status", []string{"--json"}, sys.Streams{Out: &out, Err: &errs}); code != 0 {
		return report, fmt.Errorf("status of the lab's host: exit code %d: %s", code, strings.TrimSpace(errs.String()))
	}
	err := json.Unmarshal([]byte(out.String()), &report)
	if err == nil {
		report.SSHRunning = sshGreets(ctx, l.sshAddress()) == nil
	}
	return report, err
}

// NodeStatus is a node of a Report. State is up, or what is wrong: down, cut off, maintenance.
type NodeStatus struct {
	Name  string         `json:"name"`
	Dir   string         `json:"dir"`
	SSH   string         `json:"ssh"`
	State string         `json:"state"`
	VMs   []pve.VMStatus `json:"vms"`
}

// nodeStatus lists the nodes of a cluster; without a cluster the list is empty.
func (l *Lab) nodeStatus(ctx context.Context) ([]NodeStatus, error) {
	members, err := l.Members()
	if err != nil {
		return nil, err
	}
	var all []NodeStatus
	for _, m := range members {
		node, err := l.Node(m.Name)
		if err != nil {
			return nil, err
		}
		var words []string
		for word, is := range map[string]bool{"down": !m.Down.IsZero(), "cut off": !m.CutOff.IsZero(), "maintenance": m.Maintenance} {
			if is {
				words = append(words, word)
			}
		}
		slices.Sort(words)
		if len(words) == 0 {
			words = []string{"up"}
		}
		all = append(all, NodeStatus{Name: m.Name, Dir: m.Dir, SSH: node.sshAddress(), State: strings.Join(words, ", "), VMs: node.VMs(ctx)})
	}
	return all, nil
}

// loginName is the user the lab's sshd lets in: the user who runs it.
func loginName() string {
	current, err := user.Current()
	if err != nil {
		return "root"
	}
	return current.Username
}
