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

// Host is a VM as a host of ssh_config, for programs that read that: ssh itself, and editors.
type Host struct {
	login Login
	known string // file with its host key
}

// unquotable is what has no place in ssh_config, or means something else there.
var unquotable = lazyregexp.New(`["\\\r\n]|\$\{`)

// NewHost returns a VM's host. The login has a Proxy.
func NewHost(l Login) (h Host, err error) {
	if l.VM, err = checked(l.VM); err != nil {
		return h, err
	}
	l.Key = filepath.ToSlash(l.Key) // ssh takes them on Windows, too
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

// Name is what ssh calls the VM.
func (h Host) Name() string { return h.login.VM.Name + ".linus" }

// Pin writes the VM's host key into the file that the block names. ssh reads it when its proxy has
// connected.
func (h Host) Pin() error { return pin(h.known, h.Name(), h.login.VM) }

// Block is what ssh_config has of the VM. What it sets holds whatever the user's own, further down,
// says of all hosts.
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

// LoginKey returns the file of the key that VMs let in for its time, which is made if it is not
// there, and its public key.
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

// newLoginKey makes a key. The first of several that do at once has made it.
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
