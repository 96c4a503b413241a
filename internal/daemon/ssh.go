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
	"linus/internal/vm"
)

// GuestKnownHosts returns the path of the file with a VM's host key.
func GuestKnownHosts(c config.Config, v vm.VM) string {
	return filepath.Join(c.StateDir, "ssh", v.Job+".known_hosts")
}

// Login is what OpenSSH needs to log in to a VM.
type Login struct {
	Config config.Config
	VM     vm.VM
	Node   job.NodeInfo // that the VM is on, to jump through; without its address and host keys, the first entry is
}

// Command returns the ssh command that logs in to the VM.
func (l Login) Command() ([]string, error) {
	options, err := l.Options()
	return append(append([]string{"ssh"}, options...), "-p", strconv.Itoa(l.Config.VMSSHPort), l.VM.User+"@"+l.VM.IP), err
}

// Options returns the options with which ssh and scp reach the VM: through its node, with
// its host key pinned and its own login key. It writes the files with host keys that they
// name.
func (l Login) Options() ([]string, error) {
	c, vm := l.Config, l.VM
	known, alias := GuestKnownHosts(c, vm), "linus-"+vm.Job
	checking := "yes"
	if vm.HostKey == "" {
		checking = "accept-new" // not known; ssh refuses a changed one
	} else if err := writeKnownHosts(known, alias, vm.HostKey); err != nil {
		return nil, err
	}
	keys, err := loginKeys(c)
	if err != nil {
		return nil, err
	}
	through, err := l.through()
	if err != nil {
		return nil, err
	}
	return append(sshAlone(),
		"-o", "ProxyCommand="+through,
		"-o", "HostKeyAlias="+alias, "-o", "StrictHostKeyChecking="+checking, "-o", sshFile("UserKnownHostsFile", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", keys.Path(vm)),
		"-o", "PreferredAuthentications=publickey", // never a password prompt from a VM
	), nil
}

// through returns the ProxyCommand that jumps through the VM's node.
func (l Login) through() (string, error) {
	c := l.Config
	at := c.Endpoint(c.Hosts()[0])
	jump := append(append([]string{"ssh"}, sshAlone()...), "-o", "StrictHostKeyChecking=yes")
	if l.Node.Address != "" && len(l.Node.HostKeys) > 0 {
		at = c.Endpoint(l.Node.Address)
		known, alias := filepath.Join(c.StateDir, "ssh", "node-"+l.Node.Name+".known_hosts"), "linus-node-"+l.Node.Name
		if err := writeKnownHosts(known, alias, l.Node.HostKeys...); err != nil {
			return "", err
		}
		jump = append(jump, "-o", "HostKeyAlias="+alias, "-o", sshFile("UserKnownHostsFile", known))
	} else {
		jump = append(jump, "-o", sshFile("UserKnownHostsFile", c.ProxmoxKnownHosts))
	}
	jump = append(jump, "-p", strconv.Itoa(at.Port))
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile", c.ProxmoxSSHKeyPath))
	}
	for _, path := range at.Identities { // ssh's own are in the home of the passwd entry, whatever HOME is
		if _, err := os.Stat(path); err == nil { // ssh complains of those it is told of and does not find
			jump = append(jump, "-o", sshFile("IdentityFile", path))
		}
	}
	return strings.ReplaceAll(remote.Quote(append(jump, "-W")...), "%", "%%") + " '[%h]:%p' " +
		strings.ReplaceAll(remote.Quote(at.User+"@"+at.Host), "%", "%%"), nil
}

// writeKnownHosts writes a file with the host keys of one name.
func writeKnownHosts(path, name string, keys ...string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(name+" "+strings.Join(keys, "\n"+name+" ")+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write host keys: %w", err)
	}
	return nil
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
