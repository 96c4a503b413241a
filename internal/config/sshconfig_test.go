package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
)

// An alias of ~/.ssh/config is reached as ssh reaches it, unless a setting says otherwise; what
// the file has for all hosts is not taken.
func TestEndpoint_IsThatOfAnAlias(t *testing.T) {
	const file = `
Host pve
  HostName 10.0.0.5
  Port 2222
  User admin
  IdentityFile ~/keys/pve
Host *
  User ada
  Port 2200
`
	own := func(home string) []string {
		return []string{home + "/.ssh/id_ed25519", home + "/.ssh/id_ecdsa", home + "/.ssh/id_rsa"}
	}
	for _, tt := range []struct {
		name string
		file string
		env  map[string]string
		host string
		want func(home string) config.Endpoint
	}{
		{"an alias", file, nil, "pve", func(home string) config.Endpoint {
			return config.Endpoint{Host: "10.0.0.5", Port: 2222, User: "admin", Identities: append([]string{home + "/keys/pve"}, own(home)...)}
		}},
		{"settings come first", file, map[string]string{"PROXMOX_SSH_PORT": "22", "PROXMOX_SSH_USER": "root", "PROXMOX_SSH_KEY_PATH": "/k"}, "pve", func(string) config.Endpoint {
			return config.Endpoint{Host: "10.0.0.5", Port: 22, User: "root"}
		}},
		{"no alias", file, nil, "pve2", func(home string) config.Endpoint {
			return config.Endpoint{Host: "pve2", Port: 22, User: "root", Identities: own(home)}
		}},
		{"no file", "", nil, "pve", func(home string) config.Endpoint {
			return config.Endpoint{Host: "pve", Port: 22, User: "root", Identities: own(home)}
		}},
		{"one that only ssh can read", "Match exec true\n  User x\n" + file, nil, "pve", func(home string) config.Endpoint {
			return config.Endpoint{Host: "pve", Port: 22, User: "root", Identities: own(home)}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			if tt.file != "" {
				if err := os.MkdirAll(filepath.Join(home, ".ssh"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(home, ".ssh", "config"), []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c, err := config.Load(config.Sources{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want(home), c.Endpoint(tt.host)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Opening a FIFO waits for who writes to it, as nothing ends.
func TestEndpoint_DoesNotWaitForAPipe(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	if err := errors.Join(os.Mkdir(filepath.Join(home, ".ssh"), 0o700), syscall.Mkfifo(filepath.Join(home, ".ssh", "config"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{})
	if at := c.Endpoint("pve"); err != nil || at.Host != "pve" {
		t.Errorf("%+v, error %v", at, err)
	}
}
