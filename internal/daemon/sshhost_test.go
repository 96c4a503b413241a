package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"linus/internal/config"
	"linus/internal/loops"
	"linus/internal/vm"
)

// hostLogin is a login to a VM through a program that is not there.
func hostLogin(dir string) Login {
	return Login{
		Config: config.Config{StateDir: dir, VMSSHPort: 22}, Proxy: []string{"/opt/a b/linus", "vm", "proxy", "dev"}, Key: filepath.Join(dir, "ssh", "login"),
		VM: vm.VM{ID: 100, Name: "dev", User: "debian", Job: "01-a", IP: "10.0.0.5", HostKey: "ssh-ed25519 AAAAC3Nza"},
	}
}

// What a server says of its VMs is written into ssh's configuration and becomes arguments of ssh. It
// cannot become other options there, or another file.
func TestNewHost_RefusesWhatIsNotPlain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Login){
		"a name of two words":      func(l *Login) { l.VM.Name = "a b" },
		"a name of two lines":      func(l *Login) { l.VM.Name = "a\n    ProxyCommand touch /tmp/x\nHost b" },
		"a name that expands":      func(l *Login) { l.VM.Name = "%h" },
		"a name that matches":      func(l *Login) { l.VM.Name = "*" },
		"a name that is an option": func(l *Login) { l.VM.Name = "-oProxyCommand=x" },
		"no name":                  func(l *Login) { l.VM.Name = "" },
		"a user of two lines":      func(l *Login) { l.VM.User = "a\nForwardAgent yes" },
		"a user that is an option": func(l *Login) { l.VM.User = "-oProxyCommand=touch" },
		"a job elsewhere":          func(l *Login) { l.VM.Job = "../../.ssh/x" },
		"two host keys":            func(l *Login) { l.VM.HostKey = "ssh-ed25519\n* AAAA" },
		"a host key of all hosts":  func(l *Login) { l.VM.HostKey = "* ssh-ed25519" },
		"a state directory":        func(l *Login) { l.Config.StateDir = "/a\"b" },
		"one that expands":         func(l *Login) { l.Key = "/a/${HOME}/x" },
		"a setting of two lines":   func(l *Login) { l.Proxy = append(l.Proxy, "a\nForwardAgent yes") },
	} {
		t.Run(name, func(t *testing.T) {
			l := hostLogin(t.TempDir())
			change(&l)
			h, err := NewHost(l)
			if err == nil {
				t.Errorf("it is written as\n%s", h.Block())
			}
			if l.VM.Name != "" && l.Key != "/a/${HOME}/x" && l.Config.StateDir != "/a\"b" && len(l.Proxy) == 4 {
				if argv, err := l.Command(); err == nil {
					t.Errorf("it is run as %q", argv)
				}
			}
		})
	}
	l := hostLogin(t.TempDir())
	for _, at := range []string{"-oProxyCommand=x", "fd00::5%$(touch x)"} {
		l.VM.IP = at
		if argv, err := l.Command(); err == nil {
			t.Errorf("an address that is none is run as %q", argv)
		}
	}
}

// With OpenSSH's own client and server: the block is read as it is meant, wherever the files are,
// whatever the user's own configuration says of all hosts; the host key is the pinned one.
func TestHost_AsOpenSSHReadsIt(t *testing.T) {
	loops.NotInCheck(t)
	sshd, err := exec.LookPath("sshd")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("there is no sshd that could be started here")
	}
	dir := filepath.Join(t.TempDir(), "a b%h 'c'")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	l := hostLogin(dir)
	_, public, err := LoginKey(l.Config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"host", "other"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	_ = os.MkdirAll("/run/sshd", 0o755) //nolint:gosec // where sshd wants to be
	write("keys", public+"\n")
	write("sshd", fmt.Sprintf("HostKey \"%[1]s/host\"\nAuthorizedKeysFile \"%[2]s/keys\"\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n", dir, strings.ReplaceAll(dir, "%", "%%")))
	l.Proxy, l.VM.User = []string{sshd, "-i", "-f", at("sshd")}, "root"
	ssh := func(key string, args ...string) (string, error) {
		t.Helper()
		text, err := os.ReadFile(at(key + ".pub"))
		if err != nil {
			t.Fatal(err)
		}
		l.VM.HostKey = strings.TrimSpace(string(text)) // with its comment
		h, err := NewHost(l)
		if err == nil {
			err = h.Pin()
		}
		if err != nil {
			t.Fatal(err)
		}
		write("config", h.Block()+"\nHost *\n    ForwardAgent yes\n    User nobody\n    Port 2222\n    StrictHostKeyChecking no\n    ProxyJump elsewhere\n    PasswordAuthentication yes\n")
		out, err := exec.CommandContext(t.Context(), "ssh", append([]string{"-F", at("config")}, args...)...).CombinedOutput()
		return string(out), err
	}
	said, err := ssh("host", "-G", "dev.linus")
	for _, line := range []string{"user root", "port 22", "hostname dev.linus", "forwardagent no", "stricthostkeychecking true", "identitiesonly yes", "permitlocalcommand no"} {
		if !strings.Contains(said, line+"\n") {
			t.Errorf("%s is not what ssh has of it: %v\n%s", line, err, said)
		}
	}
	if said, err := ssh("host", "dev.linus", "echo", "in"); err != nil || said != "in\n" {
		t.Errorf("%v, %s", err, said)
	}
	if said, err := ssh("other", "dev.linus", "echo", "in"); err == nil || !strings.Contains(said, "HOST IDENTIFICATION HAS CHANGED") {
		t.Errorf("another key than the pinned one: %v, %s", err, said)
	}
}

// The first to need the key makes it, and all others have the same.
func TestLoginKey_IsOne(t *testing.T) {
	t.Parallel()
	c := config.Config{StateDir: t.TempDir()}
	var all sync.WaitGroup
	keys := make([]string, 8)
	for i := range keys {
		all.Go(func() {
			var err error
			if _, keys[i], err = LoginKey(c); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, key := range keys {
		if key != keys[0] || key == "" {
			t.Errorf("%q", keys)
			break
		}
	}
	left, err := os.ReadDir(filepath.Join(c.StateDir, "ssh"))
	if err != nil || len(left) != 1 {
		t.Fatalf("%v, %v", left, err)
	}
	if about, err := left[0].Info(); err != nil || about.Mode() != 0o600 {
		t.Errorf("%v, %v", about.Mode(), err)
	}
}
