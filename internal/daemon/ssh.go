package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/remote"
)

// GuestKnownHosts is the file with a VM's host key.
func GuestKnownHosts(c config.Config, vm job.VM) string {
	return filepath.Join(c.StateDir, "ssh", vm.Job+".known_hosts")
}

// SSHCommand is the ssh command that logs in to a VM.
func SSHCommand(c config.Config, vm job.VM) ([]string, error) {
	options, err := SSHOptions(c, vm)
	return append(append([]string{"ssh"}, options...), "-p", strconv.Itoa(c.VMSSHPort), vm.User+"@"+vm.IP), err
}

// SSHOptions are the options with which ssh and scp reach a VM: through the
// host, its host key pinned, with the login key that is this VM's. It writes the file with the VM's host
// key that they name.
func SSHOptions(c config.Config, vm job.VM) ([]string, error) {
	known, alias := GuestKnownHosts(c, vm), "linus-"+vm.Job
	checking := "yes"
	if vm.HostKey == "" {
		checking = "accept-new" // nobody could tell it; ssh shows when it changes
	} else {
		err := os.MkdirAll(filepath.Dir(known), 0o700)
		if err == nil {
			err = os.WriteFile(known, []byte(alias+" "+vm.HostKey+"\n"), 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("write the VM's host key: %w", err)
		}
	}
	jump := append(append([]string{"ssh"}, sshAlone()...),
		"-o", "StrictHostKeyChecking=yes", "-o", sshFile("UserKnownHostsFile", c.ProxmoxKnownHosts), "-p", strconv.Itoa(c.ProxmoxSSHPort))
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", c.ProxmoxSSHKeyPath))
	}
	through := strings.ReplaceAll(remote.Quote(append(jump, "-W")...), "%", "%%") + " '[%h]:%p' " +
		strings.ReplaceAll(remote.Quote(c.ProxmoxSSHUser+"@"+c.ProxmoxHost), "%", "%%")
	return append(sshAlone(),
		"-o", "ProxyCommand="+through,
		"-o", "HostKeyAlias="+alias, "-o", "StrictHostKeyChecking="+checking, "-o", sshFile("UserKnownHostsFile", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", loginKeys(c).Path(vm)),
		"-o", "PreferredAuthentications=publickey", // a VM's server asks nobody for a password
	), nil
}

// sshAlone are the options that leave ssh_config out, the user's and the
// machine's: what it turns on for hosts they trust (an agent or a display
// forwarded, ports, commands to run) is not for VMs, and linus itself reaches the
// host without it. ssh's own defaults have all of that off; the host keys that
// count are the ones named beside these.
func sshAlone() []string {
	return []string{"-F", "none", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"}
}

// sshFile is an option of ssh's that names a file, whatever is in its name:
// ssh_config splits at blanks and replaces %.
func sshFile(option, path string) string {
	return option + `="` + strings.ReplaceAll(path, "%", "%%") + `"`
}
