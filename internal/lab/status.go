package lab

import (
	"context"
	"fmt"
	"os/user"
)

// Report is what `pvelab status` tells.
type Report struct {
	Dir        string           `json:"dir"`
	Driver     string           `json:"driver"`
	Version    string           `json:"version"`
	SSH        string           `json:"ssh"`
	SSHRunning bool             `json:"ssh_running"`
	VMs        []VMStatus       `json:"vms"`
	Faults     map[Fault]string `json:"faults"`
}

// VMStatus is one VM of a Report; PID is 0 unless it runs.
type VMStatus struct {
	ID     int    `json:"id"`
	Name   string `json:"name"`
	Status string `json:"status"`
	PID    int    `json:"pid"`
}

// Status says what there is and what runs.
func (s *State) Status(ctx context.Context) (Report, error) {
	report := Report{Dir: s.Dir, Driver: s.Config.Driver, Version: s.Config.Version, SSH: s.sshAddress(), VMs: []VMStatus{}}
	drv, err := s.driver()
	if err != nil {
		return report, err
	}
	_, report.SSHRunning = readPidFile(s.path("ssh", "pid"))
	c := &call{ctx: ctx, s: s, drv: drv}
	for _, id := range s.VMIDs() {
		conf, err := s.LoadConf(id)
		if err != nil {
			continue // destroyed since it was listed
		}
		status := c.vmStatus(id, conf)
		pid, _ := status["pid"].(int)
		report.VMs = append(report.VMs, VMStatus{id, fmt.Sprint(status["name"]), fmt.Sprint(status["status"]), pid})
	}
	report.Faults, err = s.ActiveFaults()
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
