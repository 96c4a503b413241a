package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/remote"
	"linus/internal/vm"
	"linus/internal/wholefile"
)

// GuestKnownHosts returns the path of the file with a VM's host key.
func GuestKnownHosts(c config.Config, v vm.VM) string {
	return filepath.Join(c.StateDir, "ssh", v.Job+".known_hosts")
}

// Login is what OpenSSH needs to log in to a VM.
type Login struct {
	Config config.Config
	VM     vm.VM
	Node   job.NodeInfo // the VM's node, to jump through; the first entry if its address or host keys are unknown

	// Proxy is a command that connects to the VM's SSH server through the engine, which then lets
	// in the private key in the file Key. Empty: ssh jumps through the node, with the VM's own key.
	Proxy []string
	Key   string
}

// Command returns the ssh command that logs in to the VM.
func (l Login) Command() ([]string, error) {
	options, err := l.Options()
	return append(append([]string{"ssh"}, options...), "-p", strconv.Itoa(l.Config.VMSSHPort), l.VM.User+"@"+l.VM.IP), err
}

// Options returns the options with which ssh and scp reach the VM: through its node, with its host
// key pinned and its own login key. It writes the files with host keys that the options name.
func (l Login) Options() ([]string, error) {
	vm, err := checked(l.VM)
	if err == nil {
		var at netip.Addr
		if at, err = netip.ParseAddr(vm.IP); at.Zone() != "" { // a zone may be any text, and ssh runs the address in a shell
			err = fmt.Errorf("nobody can log in to VM %d: its address is %q, in a zone", vm.ID, vm.IP)
		}
	}
	if err != nil {
		return nil, err
	}
	known, alias := GuestKnownHosts(l.Config, vm), "linus-"+vm.Job
	if err := pin(known, alias, vm); err != nil {
		return nil, err
	}
	through, key := proxyCommand(l.Proxy), l.Key
	if len(l.Proxy) == 0 {
		keys, err := loginKeys(l.Config)
		if err != nil {
			return nil, err
		}
		if through, err = l.through(); err != nil {
			return nil, err
		}
		key = keys.Path(vm)
	}
	return append(sshAlone(),
		"-o", "ProxyCommand="+through,
		"-o", "HostKeyAlias="+alias, "-o", "StrictHostKeyChecking="+checking(vm), "-o", sshFile("UserKnownHostsFile=", known),
		"-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile=", key),
		"-o", "PreferredAuthentications=publickey", // never a password prompt from a VM
	), nil
}

// What a server's engine says of a VM gets into ssh's arguments and files, and so has to match
// these.
var (
	plain    = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	plainKey = lazyregexp.New(`^[a-z0-9][a-z0-9@.-]* [A-Za-z0-9+/=]+$`)
)

// checked returns the VM, with its host key without a comment; an error if its names or its key are
// not plain.
func checked(v vm.VM) (vm.VM, error) {
	for _, of := range [][2]string{{"name", v.Name}, {"user", v.User}, {"job", v.Job}} {
		if !plain.MatchString(of[1]) {
			return v, fmt.Errorf("nobody can log in to VM %d: its %s is %q, which may only have letters, digits, dots and dashes", v.ID, of[0], of[1])
		}
	}
	if fields := strings.Fields(v.HostKey); len(fields) > 1 {
		v.HostKey = fields[0] + " " + fields[1]
	}
	if v.HostKey != "" && !plainKey.MatchString(v.HostKey) {
		return v, fmt.Errorf("nobody can log in to VM %d: its host key is %q", v.ID, v.HostKey)
	}
	return v, nil
}

// checking is ssh's StrictHostKeyChecking: if the VM's host key is unknown, ssh refuses only a
// changed one.
func checking(v vm.VM) string {
	if v.HostKey == "" {
		return "accept-new"
	}
	return "yes"
}

// pin writes the VM's host key, if it is known, into a known_hosts file.
func pin(known, name string, v vm.VM) error {
	if v.HostKey == "" {
		return nil
	}
	return writeKnownHosts(known, name, v.HostKey)
}

// proxyCommand returns a command as ssh has a shell run it; Windows has no such shell.
func proxyCommand(argv []string) string {
	if runtime.GOOS == "windows" {
		argv = slices.Clone(argv)
		for i, arg := range argv {
			if strings.Contains(arg, " ") {
				argv[i] = `"` + arg + `"`
			}
		}
		return strings.ReplaceAll(strings.Join(argv, " "), "%", "%%")
	}
	return strings.ReplaceAll(remote.Quote(argv...), "%", "%%")
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
		jump = append(jump, "-o", "HostKeyAlias="+alias, "-o", sshFile("UserKnownHostsFile=", known))
	} else {
		jump = append(jump, "-o", sshFile("UserKnownHostsFile=", c.ProxmoxKnownHosts))
	}
	jump = append(jump, "-p", strconv.Itoa(at.Port))
	if c.ProxmoxSSHKeyPath != "" {
		jump = append(jump, "-o", "IdentitiesOnly=yes", "-o", sshFile("IdentityFile=", c.ProxmoxSSHKeyPath))
	}
	for _, path := range at.Identities { // ssh looks for its own in the passwd home, whatever HOME is
		if _, err := os.Stat(path); err == nil { // ssh complains about named files that are missing
			jump = append(jump, "-o", sshFile("IdentityFile=", path))
		}
	}
	return proxyCommand(append(jump, "-W")) + " '[%h]:%p' " + proxyCommand([]string{at.User + "@" + at.Host}), nil
}

// writeKnownHosts writes a file with the host keys of one name. Concurrent readers find all of
// them.
func writeKnownHosts(path, name string, keys ...string) error {
	text := name + " " + strings.Join(keys, "\n"+name+" ") + "\n"
	if there, err := os.ReadFile(path); err == nil && string(there) == text {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = wholefile.Replace(path, []byte(text))
	}
	if err != nil {
		return fmt.Errorf("write host keys: %w", err)
	}
	return nil
}

// sshAlone are the options that make ssh ignore the user's and the machine's ssh_config. What it
// enables for trusted hosts (forwarding of agents, displays and ports, commands to run) is not for
// VMs, and linus itself connects to the host without it. ssh's own defaults disable all of that.
// The host keys are in the files that the other options name.
func sshAlone() []string {
	return []string{"-F", "none", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "UpdateHostKeys=no"}
}

// sshFile returns an ssh option that names a file; option ends with = or a blank. The name is
// quoted, because ssh splits values at blanks and expands %.
func sshFile(option, path string) string {
	return option + `"` + strings.ReplaceAll(path, "%", "%%") + `"`
}
