package daemon

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/config"
	"linus/internal/lazyregexp"
	"linus/internal/remote"
)

// Host is a VM as a host of ssh_config, for programs that read it: ssh itself, and editors.
type Host struct {
	login Login
	known string // file with its host key
}

// unquotable matches text that ssh_config cannot have, or that means something else there.
var unquotable = lazyregexp.New(`["\\\r\n]|\$\{`)

// NewHost returns a VM's host. The login must have a Proxy.
func NewHost(l Login) (h Host, err error) {
	if l.VM, err = checked(l.VM); err != nil {
		return h, err
	}
	l.Key = filepath.ToSlash(l.Key) // ssh accepts slashes on Windows, too
	h.login = l
	h.known = filepath.ToSlash(filepath.Join(l.Config.StateDir, "ssh", h.Name()+".known_hosts"))
	if unquotable.MatchString(h.known + l.Key) {
		return h, fmt.Errorf(`LINUS_STATE_DIR is %q: ssh's configuration has no way to name files there; choose a directory without ", \, ${ and line breaks`, l.Config.StateDir)
	}
	if arg := strings.Join(l.Proxy, " "); strings.ContainsAny(arg, "\r\n") {
		return h, fmt.Errorf("a setting has a line break, which ssh's configuration cannot have: %q", arg)
	}
	return h, nil
}

// Name is the VM's name for ssh.
func (h Host) Name() string { return h.login.VM.Name + ".linus" }

// Pin writes the VM's host key into the file that the block names. ssh reads it when its proxy has
// connected.
func (h Host) Pin() error { return pin(h.known, h.Name(), h.login.VM) }

// Block is the VM's block of ssh_config. Its settings hold whatever the user's own, further down,
// say of all hosts.
func (h Host) Block() string {
	lines := []string{
		"Host " + h.Name(),
		"HostName " + h.Name(), "HostKeyAlias " + h.Name(), "Port 22", "User " + h.login.VM.User,
		"ProxyCommand " + proxyCommand(h.login.Proxy),
		sshFile("IdentityFile ", h.login.Key), "IdentitiesOnly yes", "PreferredAuthentications publickey",
		sshFile("UserKnownHostsFile ", h.known), "GlobalKnownHostsFile /dev/null", "StrictHostKeyChecking " + checking(h.login.VM), "UpdateHostKeys no",
		"ForwardAgent no", "ForwardX11 no", "PermitLocalCommand no", "ServerAliveInterval 30",
	}
	return strings.Join(lines, "\n    ") + "\n"
}

// LoginKey returns the file of the key that VMs let in for a limited time, and its public key. It
// makes the key if it is missing.
func LoginKey(c config.Config) (path, public string, err error) {
	path = filepath.Join(c.StateDir, "ssh", "login")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := newLoginKey(path); err != nil {
			return "", "", err
		}
	}
	public, err = remote.EnsureKeyPair(path, "linus", nil)
	return path, public, err
}

// newLoginKey makes a key. If several processes do so at once, the first one's key stays.
func newLoginKey(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("create a key to log in to VMs: %w", err)
	}
	fresh := path + "." + rand.Text()
	_, err := remote.EnsureKeyPair(fresh, "linus", nil)
	if err != nil {
		return err
	}
	if err = os.Link(fresh, path); errors.Is(err, fs.ErrExist) {
		err = nil
	}
	return errors.Join(err, os.Remove(fresh))
}
