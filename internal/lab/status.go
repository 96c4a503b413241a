package lab

import (
	"context"
	"os/user"

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
	report := Report{Dir: l.Dir, Driver: l.Config.Driver, Version: l.Config.Version, SSH: l.sshAddress(), VMs: l.VMs(ctx)}
	_, report.SSHRunning = sys.ReadPidFile(l.Path("ssh", "pid"))
	var err error
	report.Faults, err = l.ActiveFaults()
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
