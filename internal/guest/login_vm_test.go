package guest_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

const somebodys = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8o2mCeVXhJEhiSCgFG9s6xSmbuY1nxwAKOVRdYFCTr"

// What is no public key alone gets nowhere near the VM.
func TestLogin_WithoutAKey(t *testing.T) {
	g := guest.New(guest.Options{Host: func(context.Context, vm.VM) (*remote.Pool, error) { return nil, errors.New("the VM was asked") }})
	defer g.Close()
	var field *job.FieldError
	if _, err := g.Login(t.Context(), vm.VM{ID: 100, IP: "192.0.2.1", User: "debian"}, `command="id" `+somebodys); !errors.As(err, &field) || field.Field != "key" {
		t.Errorf("%v", err)
	}
}

// The key is let in as long as the connection is open, and each connection has its own.
func TestLogin_LetsAKeyInForTheTime(t *testing.T) {
	home := t.TempDir()
	r := bareVM(t, sshtest.Options{Env: []string{"HOME=" + home}})
	keys := func() int {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(home, ".ssh", "authorized_keys"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), `" `+somebodys+" linus-login-")
	}
	var open []job.Tunnel
	for range 2 {
		conn, err := r.Login(t.Context(), r.vm, somebodys+" ada@laptop")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // it is closed by then
		banner := make([]byte, 4)
		if _, err := io.ReadFull(conn, banner); err != nil || string(banner) != "SSH-" {
			t.Errorf("at the other end is %q, %v", banner, err)
		}
		open = append(open, conn)
	}
	for i, conn := range open {
		if n := keys(); n != 2-i {
			t.Errorf("with %d connections %d are let in", 2-i, n)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := keys(); n != 0 {
		t.Errorf("%d are let in afterwards", n)
	}
	// One that comes to nothing lets nobody in either.
	r.inside.Set(sshtest.Faults{NoForwarding: true})
	if conn, err := r.Login(t.Context(), r.vm, somebodys); err == nil || !strings.Contains(err.Error(), "does not forward") || keys() != 0 {
		t.Errorf("where nothing is forwarded: %v, %v, %d are let in", conn, err, keys())
	}
}

// Where the key cannot be put, the VM's own words say why.
func TestLogin_WhereTheKeyCannotBePut(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".ssh"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := bareVM(t, sshtest.Options{Env: []string{"HOME=" + home}})
	if _, err := r.Login(t.Context(), r.vm, somebodys); !job.IsClass(err, job.HostVM) || !strings.Contains(err.Error(), "let a key in at VM 100") || !strings.Contains(err.Error(), "File exists") {
		t.Errorf("%v", err)
	}
}
