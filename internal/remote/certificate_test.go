package remote_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

func newAuthority(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// certify returns a certificate of a key that an authority has signed.
func certify(t *testing.T, by ssh.Signer, key ssh.PublicKey, kind uint32, name string, until time.Time) *ssh.Certificate {
	t.Helper()
	cert := &ssh.Certificate{Key: key, CertType: kind, KeyId: "test", ValidPrincipals: []string{name}, ValidBefore: uint64(until.Unix())}
	if err := cert.SignCert(rand.Reader, by); err != nil {
		t.Fatal(err)
	}
	return cert
}

func keyLine(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// A host may be vouched for by an authority in known_hosts, as for OpenSSH. Without a certificate
// its key is unknown, and can be trusted; one that does not hold is no changed key.
func TestDial_HostsThatAnAuthorityVouchesFor(t *testing.T) {
	authority, stranger := newAuthority(t), newAuthority(t)
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	by := func(signer ssh.Signer, name string, until time.Time) func(*testing.T) func(ssh.PublicKey) *ssh.Certificate {
		return func(t *testing.T) func(ssh.PublicKey) *ssh.Certificate {
			return func(key ssh.PublicKey) *ssh.Certificate { return certify(t, signer, key, ssh.HostCert, name, until) }
		}
	}
	for _, tt := range []struct {
		name    string
		certify func(*testing.T) func(ssh.PublicKey) *ssh.Certificate
		known   string // besides the authority; HOST: the host's key
		class   remote.Class
		says    string
	}{
		{"its certificate", by(authority, "127.0.0.1", soon), "", "", ""},
		{"its certificate, beside another key", by(authority, "127.0.0.1", soon), keyLine(stranger.PublicKey()), "", ""},
		{"another's certificate, but a known key", by(stranger, "127.0.0.1", soon), "HOST", "", ""},
		{"no certificate", nil, "", remote.HostKeyUnknown, "host key not known: "},
		{"no certificate, but a known key", nil, "HOST", "", ""},
		{"no certificate, and another key", nil, keyLine(stranger.PublicKey()), remote.HostKeyChanged, "known is ssh-ed25519 " + ssh.FingerprintSHA256(stranger.PublicKey())},
		{"one of another authority", by(stranger, "127.0.0.1", soon), "", remote.HostKeyRefused, "no authorities"},
		{"one that has expired", by(authority, "127.0.0.1", past), "", remote.HostKeyRefused, "expired"},
		{"one of another host", by(authority, "pve.example", soon), "", remote.HostKeyRefused, "127.0.0.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := sshtest.Options{}
			if tt.certify != nil {
				o.Certify = tt.certify(t)
			}
			s := sshtest.Start(t, o)
			at := "[" + s.Host + "]:" + strconv.Itoa(s.Port) + " "
			text := "@cert-authority " + at + keyLine(authority.PublicKey()) + "\n"
			if tt.known != "" {
				text += at + strings.Replace(tt.known, "HOST", s.HostKey, 1) + "\n"
			}
			if err := os.WriteFile(s.KnownHosts, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := pool(t, options(s)).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			if got := remote.ClassOf(err); got != tt.class || tt.class == "" && err != nil || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("class %q: %v; want %q, %s", got, err, tt.class, tt.says)
			}
			if tt.class != remote.HostKeyUnknown && tt.class != remote.HostKeyRefused {
				return
			}
			key, err := remote.ScanHostKey(t.Context(), options(s))
			if err == nil {
				err = remote.TrustHostKey(s.KnownHosts, key)
			}
			if err == nil {
				err = pool(t, options(s)).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			}
			if err != nil || key.Known || len(key.Other) > 0 {
				t.Errorf("trusted by hand: %+v, %v", key, err)
			}
		})
	}
}

// A key's certificate, which lies beside it, is offered, and the key without it.
func TestDial_OffersTheCertificateBesideAKey(t *testing.T) {
	authority := newAuthority(t)
	for _, tt := range []struct {
		name string
		cert func(key ssh.PublicKey) []byte
		says string // "": it logs in
	}{
		{"its own", func(key ssh.PublicKey) []byte {
			return []byte(keyLine(certify(t, authority, key, ssh.UserCert, "tester", time.Now().Add(time.Hour))))
		}, ""},
		{"another key's", func(ssh.PublicKey) []byte {
			return []byte(keyLine(certify(t, authority, authority.PublicKey(), ssh.UserCert, "tester", time.Now().Add(time.Hour))))
		}, "-cert.pub does not belong to the key beside it"},
		{"none that can be read", func(ssh.PublicKey) []byte { return []byte("nothing") }, "-cert.pub is not a certificate"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{ClientAuthority: authority.PublicKey()})
			raw, err := os.ReadFile(s.ClientKeyPath)
			if err != nil {
				t.Fatal(err)
			}
			key, err := ssh.ParsePrivateKey(raw)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.ClientKeyPath+"-cert.pub", tt.cert(key.PublicKey()), 0o600); err != nil {
				t.Fatal(err)
			}
			err = pool(t, options(s)).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
			if tt.says == "" && err != nil || tt.says != "" && (remote.ClassOf(err) != remote.Auth || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v, want %q", err, tt.says)
			}
			plain := sshtest.Start(t, sshtest.Options{})
			o := options(plain)
			o.KeyPath = plain.ClientKeyPath
			if err := errors.Join(
				os.WriteFile(plain.ClientKeyPath+"-cert.pub", []byte("nothing"), 0o600),
				pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"}),
			); err != nil {
				t.Errorf("a server that knows the key alone: %v", err)
			}
		})
	}
}

// Of an agent with more keys than a server looks at, those of the key files come first; with
// others alone it is said that it is their number.
func TestDial_AnAgentWithManyKeys(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	o := options(s)
	o.KeyPath = ""
	raw, err := os.ReadFile(s.ClientKeyPath)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ssh.ParseRawPrivateKey(raw)
	if err != nil {
		t.Fatal(err)
	}
	o.AgentSocket = agentWith(t, 7, agent.AddedKey{PrivateKey: private})
	o.Identities = []string{filepath.Join(t.TempDir(), "id_ed25519")}
	lock(t, o.Identities[0])
	err = pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	if remote.ClassOf(err) != remote.Auth || !strings.Contains(err.Error(), "of 8 keys it saw only the first") || !strings.Contains(err.Error(), "PROXMOX_SSH_KEY_PATH") {
		t.Errorf("keys of others alone: %v", err)
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err == nil {
		err = os.WriteFile(o.Identities[0]+".pub", ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600)
	}
	if err == nil {
		err = pool(t, o).Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	}
	if err != nil {
		t.Errorf("with a key file's: %v", err)
	}
}
