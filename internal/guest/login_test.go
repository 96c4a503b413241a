package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/loops"
)

// letKeyIn runs the script in a home.
func letKeyIn(t *testing.T, home, mark, key string, seconds int) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-c", letIn, "linus", mark, key, fmt.Sprint(seconds))
	cmd.Env = append(os.Environ(), "HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

const loginTestKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8o2mCeVXhJEhiSCgFG9s6xSmbuY1nxwAKOVRdYFCTr"

// The engine's own key is in the same file: nothing that others have put there is lost, in whatever
// form it is.
func TestLetIn_KeepsWhatOthersHavePutThere(t *testing.T) {
	t.Parallel()
	const engines = "ssh-ed25519 AAAAengine linus-1"
	expired := `expiry-time="20200101000000" ` + loginTestKey + " linus-login-OLD-1577836800\n"
	for _, tt := range []struct {
		name, before, kept string
	}{
		{"no file", "", ""},
		{"a file", engines + "\n", engines + "\n"},
		{"without an end of line", "# a\n\n" + engines, "# a\n\n" + engines + "\n"},
		{"one that has expired", expired + engines + "\n" + expired, engines + "\n"},
		{"what only looks like ours", engines + " linus-login-A-1 \n" + "linus-login-A-1\n", engines + " linus-login-A-1 \n" + "linus-login-A-1\n"},
		{"another's that is good", engines + " linus-login-B-99999999999\n", engines + " linus-login-B-99999999999\n"},
		{"a backslash and blanks", `command="a\tb  c" ` + engines + "\n", `command="a\tb  c" ` + engines + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := t.TempDir()
			path := filepath.Join(home, ".ssh", "authorized_keys")
			if tt.before != "" {
				// It is a link, and others may read what it leads to: both stay so.
				if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(home, "keys"), []byte(tt.before), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(filepath.Join(home, "keys"), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("../keys", path); err != nil {
					t.Fatal(err)
				}
			}
			if err := letKeyIn(t, home, "A", loginTestKey, 120); err != nil {
				t.Fatal(err)
			}
			text, _ := os.ReadFile(path)
			rest, ok := strings.CutPrefix(string(text), tt.kept+`expiry-time="`)
			if !ok || !strings.Contains(rest, `" `+loginTestKey+" linus-login-A-") {
				t.Fatalf("with the key:\n%s", text)
			}
			until, err := time.ParseInLocation("20060102150405", rest[:14], time.Local)
			if left := time.Until(until); err != nil || left <= 0 || left > 2*time.Minute {
				t.Errorf("it is good for %v, %v", left, err)
			}
			if err := letKeyIn(t, home, "A", "", 120); err != nil {
				t.Fatal(err)
			}
			if text, _ := os.ReadFile(path); string(text) != tt.kept {
				t.Errorf("without it:\n%s\nwant\n%s", text, tt.kept)
			}
			if about, err := os.Stat(path); err != nil || tt.before != "" && about.Mode() != 0o644 || tt.before == "" && about.Mode() != 0o600 {
				t.Errorf("%v, %v", about, err)
			}
			if to, _ := os.Readlink(path); tt.before != "" && to != "../keys" {
				t.Errorf("the link leads to %q", to)
			}
			if left, _ := filepath.Glob(filepath.Join(home, "*.linus")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// An editor connects several times at once.
func TestLetIn_ManyAtOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	var all sync.WaitGroup
	each := func(key string) {
		t.Helper()
		for i := range 8 {
			all.Go(func() {
				if err := letKeyIn(t, home, fmt.Sprintf("M%d", i), key, 120); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	each(loginTestKey)
	path := filepath.Join(home, ".ssh", "authorized_keys")
	if text, _ := os.ReadFile(path); strings.Count(string(text), loginTestKey+" linus-login-M") != 8 {
		t.Errorf("of 8 there are\n%s", text)
	}
	each("")
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("left: %s, %v", text, err)
	}
}

// OpenSSH takes the line as it is meant: the key is let in, and no longer when its time is over.
func TestLetIn_IsWhatOpenSSHReads(t *testing.T) {
	loops.NotInCheck(t)
	sshd, err := exec.LookPath("sshd")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("there is no sshd that could be started here")
	}
	home := t.TempDir()
	at := func(name string) string { return filepath.Join(home, name) }
	for _, key := range []string{"host", "login"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	config := fmt.Sprintf("HostKey %[1]s/host\nAuthorizedKeysFile %[1]s/.ssh/authorized_keys\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n", home)
	if err := os.WriteFile(at("sshd"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.MkdirAll("/run/sshd", 0o755) //nolint:gosec // where sshd wants to be
	public, err := os.ReadFile(at("login.pub"))
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Join(strings.Fields(string(public))[:2], " ")
	login := func() (string, error) {
		out, err := exec.CommandContext(t.Context(), "ssh", "-F", "none", "-o", "ProxyCommand="+sshd+" -i -f "+at("sshd"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
			"-o", "IdentitiesOnly=yes", "-o", "PreferredAuthentications=publickey", "-i", at("login"), "root@vm", "echo", "in").CombinedOutput()
		return string(out), err
	}
	for seconds, in := range map[int]bool{120: true, -5: false} {
		if err := letKeyIn(t, home, "A", key, seconds); err != nil {
			t.Fatal(err)
		}
		if out, err := login(); (err == nil) != in || strings.Contains(out, "in\n") != in {
			t.Errorf("let in for %d s: %v, %s", seconds, err, out)
		}
		if err := letKeyIn(t, home, "A", "", 0); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := login(); err == nil {
		t.Errorf("after it was taken out: %s", out)
	}
}
