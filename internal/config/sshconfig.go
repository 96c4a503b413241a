package config

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"

	"github.com/kevinburke/ssh_config"
)

// Endpoint says how a Proxmox host is reached by SSH.
type Endpoint struct {
	Host       string
	Port       int
	User       string
	Identities []string // private keys to try, in this order, not including PROXMOX_SSH_KEY_PATH
}

// Endpoint returns how an entry of PROXMOX_HOST is reached. A name with a HostName in ~/.ssh/config is an
// alias, as for OpenSSH: the file's HostName, Port, User and IdentityFile apply, unless they are set here.
// Its settings for other hosts, such as "*", do not apply: linus logs in as root unless told otherwise.
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

// readAlias returns the lookup of a host's keywords in ~/.ssh/config; nil: there is no such file,
// or only OpenSSH can read it.
func readAlias(path, host string) func(key string) string {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() { // opening a FIFO would wait for a writer
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
