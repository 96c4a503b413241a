package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os/user"
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
	Faults     map[state.Fault]string `json:"faults"`
}

// Status says what there is and what runs.
func (l *Lab) Status(ctx context.Context) (Report, error) {
	if l.outside() && l.container().Running() {
		return l.statusInside(ctx)
	}
	report := Report{Dir: l.Dir, Driver: l.Config.Driver, Version: l.Config.Version, SSH: l.sshAddress(), VMs: l.VMs(ctx)}
	_, report.SSHRunning = sys.ReadPidFile(l.Path("ssh", "pid"))
	var err error
	report.Faults, err = l.ActiveFaults()
	return report, err
}

// statusInside is what `pvelab status` tells on the host.
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

// loginName is the user the lab's sshd lets in: the one who runs it.
func loginName() string {
	current, err := user.Current()
	if err != nil {
		return "root"
	}
	return current.Username
}
