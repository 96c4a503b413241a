package config

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kevinburke/ssh_config"
)

// Endpoint is where and how a Proxmox host is reached by SSH.
type Endpoint struct {
	Host       string
	Port       int
	User       string
	Identities []string // private keys to try, the first one first, without PROXMOX_SSH_KEY_PATH
}

// Endpoint returns how an entry of PROXMOX_HOST is reached. A name to which ~/.ssh/config gives
// a HostName is an alias, as for OpenSSH: that file's HostName, Port, User and IdentityFile hold
// then, but for what is set here. What else it says of hosts, for "*" say, is not taken: linus
// logs in as root unless told otherwise.
func (c Config) Endpoint(host string) Endpoint {
	at := Endpoint{Host: host, Port: c.ProxmoxSSHPort, User: c.ProxmoxSSHUser, Identities: c.Identities}
	said := readAlias(c.sshConfig, host)
	if said == nil || said("HostName") == "" {
		return at
	}
	at.Host = said("HostName")
	if _, given := c.given["PROXMOX_SSH_PORT"]; !given {
		if port, err := strconv.Atoi(said("Port")); err == nil {
			at.Port = port
		}
	}
	if _, given := c.given["PROXMOX_SSH_USER"]; !given {
		at.User = cmp.Or(said("User"), at.User)
	}
	if key := said("IdentityFile"); key != "" && c.ProxmoxSSHKeyPath == "" {
		if path, err := absolute(key); err == nil {
			at.Identities = append([]string{path}, at.Identities...)
		}
	}
	return at
}

// readAlias returns what ~/.ssh/config says of a host, by keyword; nil: there is no such file, or
// it has what only OpenSSH reads.
func readAlias(path, host string) func(key string) string {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() { // a FIFO waits for who writes to it
		return nil
	}
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // it was read
	file, err := ssh_config.Decode(f)
	if err != nil {
		return nil
	}
	return func(key string) string {
		value, err := file.Get(host, key)
		if err != nil {
			return ""
		}
		return value
	}
}
