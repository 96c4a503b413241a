package config_test

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"linus/internal/config"
)

func TestLoad_WithoutHOMEUsesThePasswdEntrys(t *testing.T) {
	clean(t)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("LINUS_SECRETS_FILE", "~/secrets")
	own, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"LINUS_STATE_DIR": c.StateDir, "PROXMOX_KNOWN_HOSTS": c.ProxmoxKnownHosts, "LINUS_SECRETS_FILE": c.SecretsFile,
		"the env file": config.DefaultEnvFile(), "id_ed25519": c.Identities[0],
	} {
		if !strings.HasPrefix(path, own.HomeDir+"/") {
			t.Errorf("%s is %s, not below %s", name, path, own.HomeDir)
		}
	}
}

// A user without a passwd entry and without HOME, as in a container, is told what to set;
// nothing gets the name ~ below the working directory.
func TestLoad_WithoutAnyHomeNamesTheSettings(t *testing.T) {
	if os.Getenv("TEST_OF_NO_HOME") == "1" {
		var wrong *config.Error
		if _, err := config.Load(config.Sources{}); !errors.As(err, &wrong) {
			t.Fatalf("err = %v", err)
		}
		var names []string
		for _, p := range wrong.Problems {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"LINUS_STATE_DIR", "PROXMOX_KNOWN_HOSTS"}) || !strings.Contains(wrong.Error(), "set HOME") {
			t.Errorf("problems: %v", wrong)
		}
		t.Setenv("LINUS_STATE_DIR", "/srv/state")
		t.Setenv("PROXMOX_KNOWN_HOSTS", "/srv/known_hosts")
		if _, err := config.Load(config.Sources{}); err != nil {
			t.Errorf("with both set: %v", err)
		}
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root, to become a user without a passwd entry")
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	cmd.Env, cmd.Dir = []string{"TEST_OF_NO_HOME=1"}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLoad_IdentitiesAreThoseOfOpenSSHUnlessAKeyIsNamed(t *testing.T) {
	clean(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		want = append(want, filepath.Join(home, ".ssh", name))
	}
	if !slices.Equal(c.Identities, want) {
		t.Errorf("identities = %q", c.Identities)
	}
	t.Setenv("PROXMOX_SSH_KEY_PATH", filepath.Join(home, "key"))
	if c, err = config.Load(config.Sources{}); err != nil || c.Identities != nil {
		t.Errorf("with a key: %q, %v", c.Identities, err)
	}
}
