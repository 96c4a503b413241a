package remote_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

// identities returns paths for the keys that OpenSSH has by default, in a directory
// without any.
func identities(t *testing.T) []string {
	dir := t.TempDir()
	return []string{filepath.Join(dir, "id_ed25519"), filepath.Join(dir, "id_ecdsa"), filepath.Join(dir, "id_rsa")}
}

// agentWith starts an SSH agent with new keys and returns its socket.
func agentWith(t *testing.T, keys int, more ...agent.AddedKey) string {
	t.Helper()
	held := agent.NewKeyring()
	for range keys {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err == nil {
			err = held.Add(agent.AddedKey{PrivateKey: private})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range more {
		if err := held.Add(key); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(held, conn); _ = conn.Close() }()
		}
	}()
	return socket
}

// lock writes a private key with a passphrase.
func lock(t *testing.T, path string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKeyWithPassphrase(private, "", []byte("sesame"))
	if err == nil {
		err = os.WriteFile(path, pem.EncodeToMemory(block), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// authorised puts the server's client key there.
func authorised(t *testing.T, s *sshtest.Server, path string) {
	t.Helper()
	if err := os.Link(s.ClientKeyPath, path); err != nil {
		t.Fatal(err)
	}
}

func TestDial_TriesTheKeysThatOpenSSHWould(t *testing.T) {
	tests := []struct {
		name string
		keys func(t *testing.T, s *sshtest.Server, paths []string, o *remote.Options)
		says []string // nil: it logs in
	}{
		{name: "the only key there is", keys: func(t *testing.T, s *sshtest.Server, paths []string, _ *remote.Options) {
			authorised(t, s, paths[0])
		}},
		{name: "the last one", keys: func(t *testing.T, s *sshtest.Server, paths []string, _ *remote.Options) {
			sshtest.NewKey(t, paths[0])
			authorised(t, s, paths[2])
		}},
		{name: "after the agent's", keys: func(t *testing.T, s *sshtest.Server, paths []string, o *remote.Options) {
			o.AgentSocket = agentWith(t, 2)
			authorised(t, s, paths[0])
		}},
		{name: "beside one with a passphrase", keys: func(t *testing.T, s *sshtest.Server, paths []string, _ *remote.Options) {
			lock(t, paths[0])
			authorised(t, s, paths[1])
		}},
		{name: "before the password", keys: func(t *testing.T, s *sshtest.Server, paths []string, o *remote.Options) {
			o.Password = func() string { t.Error("the password was used"); return "" }
			authorised(t, s, paths[1])
		}},
		{name: "none", keys: func(*testing.T, *sshtest.Server, []string, *remote.Options) {}, says: []string{"there is no key", "id_ed25519", "id_ecdsa", "id_rsa"}},
		{name: "only one with a passphrase", keys: func(t *testing.T, _ *sshtest.Server, paths []string, _ *remote.Options) {
			lock(t, paths[0])
		}, says: []string{"id_ed25519 has a passphrase", "SSH agent"}},
		{name: "a pipe", keys: func(t *testing.T, _ *sshtest.Server, paths []string, _ *remote.Options) {
			if err := syscall.Mkfifo(paths[0], 0o600); err != nil {
				t.Fatal(err)
			}
		}, says: []string{"id_ed25519 is not a regular file"}},
		{name: "a pipe for a certificate", keys: func(t *testing.T, _ *sshtest.Server, paths []string, _ *remote.Options) {
			sshtest.NewKey(t, paths[0])
			if err := syscall.Mkfifo(paths[0]+"-cert.pub", 0o600); err != nil {
				t.Fatal(err)
			}
		}, says: []string{"id_ed25519-cert.pub is not a regular file"}},
		{name: "a pipe for a public key, and an agent", keys: func(t *testing.T, s *sshtest.Server, paths []string, o *remote.Options) {
			o.AgentSocket = agentWith(t, 1)
			authorised(t, s, paths[0])
			_ = os.Remove(paths[0] + ".pub")
			if err := syscall.Mkfifo(paths[0]+".pub", 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "others only", keys: func(t *testing.T, _ *sshtest.Server, paths []string, o *remote.Options) {
			o.AgentSocket = agentWith(t, 1)
			lock(t, paths[0])
			sshtest.NewKey(t, paths[1])
		}, says: []string{"accepts none of: the SSH agent's keys, ", "/id_ecdsa; not tried: ", "id_ed25519 has a passphrase"}},
		{name: "an agent with more keys than a server allows", keys: func(t *testing.T, s *sshtest.Server, paths []string, o *remote.Options) {
			o.AgentSocket = agentWith(t, 7)
			authorised(t, s, paths[0])
		}, says: []string{"accepts none of: the SSH agent's keys, ", "of 8 keys it saw only the first"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Password: "sesame"})
			o := options(s)
			o.KeyPath, o.Identities = "", identities(t)
			tt.keys(t, s, o.Identities, &o)
			err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			if err == nil && tt.says == nil {
				return
			}
			if got := remote.ClassOf(err); got != remote.Auth || tt.says == nil {
				t.Fatalf("class %q: %v", got, err)
			}
			for _, text := range tt.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not say %q", err, text)
				}
			}
		})
	}
}

// A server counts the keys it refuses, so one that the agent and a file both have is
// offered once.
func TestDial_OffersEachKeyOnce(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	o := options(s)
	o.KeyPath, o.Identities = "", nil
	wrong := filepath.Join(t.TempDir(), "wrong")
	sshtest.NewKey(t, wrong)
	for range 7 {
		o.Identities = append(o.Identities, wrong)
	}
	o.Identities = append(o.Identities, s.ClientKeyPath)
	if err := pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"}); err != nil {
		t.Error(err)
	}
}
