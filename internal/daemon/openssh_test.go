package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/loops"
	"linus/internal/remote"
)

// What OpenSSH does with an alias, an authority of hosts, a certificate of a key and an agent, is
// done with the real server, keys, certificates and agent.
func TestHostOptions_OfAnOpenSSHServer(t *testing.T) {
	loops.NotInCheck(t)
	sshd, err := exec.LookPath("sshd")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("there is no sshd that could be started here")
	}
	home, err := os.MkdirTemp("", "ssh") // short: the agent's socket is to fit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	t.Setenv("HOME", home)
	t.Setenv("SSH_AUTH_SOCK", "")
	at := func(name string) string { return filepath.Join(home, name) }
	does := func(program string, args ...string) {
		t.Helper()
		if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", program, args, err, out)
		}
	}
	files := func(texts map[string]string) {
		t.Helper()
		for name, text := range texts {
			if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, key := range []string{"authority", "stranger", "host", "mine", "held"} {
		does("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key))
	}
	does("ssh-keygen", "-q", "-s", at("authority"), "-h", "-I", "host", "-n", "127.0.0.1", at("host.pub"))
	does("ssh-keygen", "-q", "-s", at("authority"), "-I", "me", "-n", "root", at("mine.pub"))
	public := func(key string) string {
		text, err := os.ReadFile(at(key + ".pub"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	port := l.Addr().(*net.TCPAddr).Port
	files(map[string]string{
		"sshd": fmt.Sprintf("HostKey %[1]s/host\nHostCertificate %[1]s/host-cert.pub\nTrustedUserCAKeys %[1]s/authority.pub\nAuthorizedKeysFile %[1]s/keys\n"+
			"StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n", home),
		"keys":        public("held"),
		".ssh/config": fmt.Sprintf("Host pve\n  HostName 127.0.0.1\n  Port %d\n  User root\n  IdentityFile ~/mine\n\nHost held\n  HostName 127.0.0.1\n  Port %[1]d\n  IdentityFile ~/held\n", port),
	})
	_ = os.MkdirAll("/run/sshd", 0o755) //nolint:gosec // where sshd wants to be
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			file, err := conn.(*net.TCPConn).File()
			_ = conn.Close()
			if err != nil {
				return
			}
			server := exec.Command(sshd, "-i", "-f", at("sshd"))
			server.Stdin, server.Stdout = file, file
			if err = server.Start(); err == nil {
				go func() { _ = server.Wait() }() // it ends with its connection
			}
			_ = file.Close()
		}
	}()

	// An agent that has more keys than the server looks at, the one that it knows last.
	agent := exec.Command("ssh-agent", "-D", "-a", at("agent"))
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(at("agent")); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	t.Setenv("SSH_AUTH_SOCK", at("agent"))
	for i := range 7 {
		key := fmt.Sprintf("other%d", i)
		does("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at(key))
		does("ssh-add", "-q", at(key))
	}
	does("ssh-add", "-q", at("held"))
	if err := os.Remove(at("held")); err != nil {
		t.Fatal(err)
	}

	for _, tt := range []struct {
		name, host, agent, authority string
		without                      string // a file that is not there
		class                        remote.Class
		says                         string
	}{
		{"an authority, and a certificate", "pve", "", "authority", "", "", ""},
		{"another authority", "pve", "", "stranger", "", remote.HostKeyRefused, "no authorities"},
		{"no certificate", "pve", "", "authority", "mine-cert.pub", remote.Auth, "it accepts none of"},
		{"an agent with many keys", "held", "agent", "authority", "", "", ""},
		{"an agent with others' first", "held", "agent", "authority", "held.pub", remote.Auth, "of 8 keys it saw only the first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files(map[string]string{".ssh/known_hosts": fmt.Sprintf("@cert-authority [127.0.0.1]:%d %s", port, public(tt.authority))})
			if t.Setenv("SSH_AUTH_SOCK", ""); tt.agent != "" {
				t.Setenv("SSH_AUTH_SOCK", at(tt.agent))
			}
			if tt.without != "" {
				if err := os.Rename(at(tt.without), at("away")); err != nil {
					t.Fatal(err)
				}
				defer os.Rename(at("away"), at(tt.without)) //nolint:errcheck // the next one fails without it
			}
			c, err := config.Load(config.Sources{})
			if err != nil {
				t.Fatal(err)
			}
			p := remote.NewPool(hostOptions(c, tt.host))
			defer p.Close()
			err = p.Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			if remote.ClassOf(err) != tt.class || (err == nil) != (tt.class == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("class %q: %v; want %q, %s", remote.ClassOf(err), err, tt.class, tt.says)
			}
		})
	}
}
