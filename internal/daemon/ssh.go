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

// GuestKnownHosts returns the path of the file with a VM's host key.
func GuestKnownHosts(c config.Config, vm job.VM) string {
	return filepath.Join(c.StateDir, "ssh", vm.Job+".known_hosts")
}

// SSHCommand returns the ssh command that logs in to a VM.
func SSHCommand(c config.Config, vm job.VM) ([]string, error) {
	options, err := SSHOptions(c, vm)
	return append(append([]string{"ssh"}, options...), "-p", strconv.Itoa(c.VMSSHPort), vm.User+"@"+vm.IP), err
}

// SSHOptions returns the options with which ssh and scp reach a VM: through the host (of
// several, the first), with its host key pinned and its own login key. It writes the file with the VM's
// host key that they name.
func SSHOptions(c config.Config, vm job.VM) ([]string, error) {
	known, alias := GuestKnownHosts(c, vm), "linus-"+vm.Job
	checking := "yes"
	if vm.HostKey == "" {
		checking = "accept-new" // not known; ssh refuses a changed one
	} else {
		err := os.MkdirAll(filepath.Dir(known), 0o700)
		if err == nil {
			err = os.WriteFile(known, []byte(alias+" "+vm.HostKey+"\n"), 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("write the VM's host key: %w", err)
		}
	}
	keys, err := loginKeys(c)
	if err != nil {
		return nil, err
	}
	jump := append(append([]string{"ssh"}, sshAlone()...),
		"-o", "StrictHostKeyChecking=yes", "-o", sshFile("UserKnownHostsFile", c.ProxmoxKnownHosts), "-p", strconv.Itoa(c.ProxmoxSSHPort))
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", c.ProxmoxSSHKeyPath))
	}
	through := strings.ReplaceAll(remote.Quote(append(jump, "-W")...), "%", "%%") + " '[%h]:%p' " +
		strings.ReplaceAll(remote.Quote(c.ProxmoxSSHUser+"@"+c.Hosts()[0]), "%", "%%")
	return append(sshAlone(),
		"-o", "ProxyCommand="+through,
		"-o", "HostKeyAlias="+alias, "-o", "StrictHostKeyChecking="+checking, "-o", sshFile("UserKnownHostsFile", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", keys.Path(vm)),
		"-o", "PreferredAuthentications=publickey", // never a password prompt from a VM
	), nil
}

// sshAlone are the options that make ssh ignore ssh_config, the user's and the
// machine's. What it enables for trusted hosts (forwarding of agents, displays and
// ports, commands to run) is not for VMs, and linus itself connects to the host
// without it. ssh's own defaults disable all of that. The host keys are in the files
// that the other options name.
func sshAlone() []string {
	return []string{"-F", "none", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"}
}

// sshFile returns an ssh option that names a file, with its name quoted: ssh splits
// values at blanks and expands %.
func sshFile(option, path string) string {
	return option + `="` + strings.ReplaceAll(path, "%", "%%") + `"`
}
