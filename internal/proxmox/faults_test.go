package proxmox_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/providertest"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
)

// faulty is an SSH server with faults in front of a lab's commands.
func (h *labHost) faulty(t *testing.T, faults sshtest.Faults) (*sshtest.Server, *remote.Pool) {
	t.Helper()
	s := sshtest.Start(t, sshtest.Options{
		Faults: faults,
		Env:    []string{"PATH=" + h.BinDir() + ":" + os.Getenv("PATH"), "PVELAB_DIR=" + h.Dir, "LINUS_PVE_DIR=" + filepath.Join(h.Dir, "etc", "pve")},
	})
	pool := remote.NewPool(remote.Options{
		Host: s.Host, Port: s.Port, User: "root", KeyPath: s.ClientKeyPath, KnownHosts: s.KnownHosts,
		ConnectTimeout: 5 * time.Second, Patience: 200 * time.Millisecond,
	})
	t.Cleanup(pool.Close)
	return s, pool
}

func TestFaults(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)

	t.Run("a host without SFTP and without forwarding will do", func(t *testing.T) {
		s, pool := h.faulty(t, sshtest.Faults{NoSFTP: true, NoForwarding: true})
		p := h.provider(t, func(o *proxmox.Options) { o.Host, o.ScriptDir = pool, filepath.Join(t.TempDir(), "scripts") })
		vm, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		g := guest.New(guest.Options{Host: guest.Through(pool), Keys: oneKey(h.key), Port: h.Config.GuestPort})
		defer g.Close()
		if state, err := g.Probe(t.Context(), job.Job{ID: vm.Job, VM: &vm}); err != nil || state.Started {
			t.Errorf("probe = %+v, %v", state, err)
		}
		if s.Stats().Forwards != 0 {
			t.Error("the host was to forward nothing")
		}
		if err := p.Destroy(t.Context(), vm); err != nil {
			t.Error(err)
		}
	})

	t.Run("an altered script on the host is not run", func(t *testing.T) {
		_, pool := h.faulty(t, sshtest.Faults{})
		dir := filepath.Join(t.TempDir(), "scripts")
		first := h.provider(t, func(o *proxmox.Options) { o.Host, o.ScriptDir = pool, dir })
		if _, err := first.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "list-vms-*.sh"))
		if err != nil || len(files) != 1 {
			t.Fatalf("scripts: %v, %v", files, err)
		}
		if err := os.WriteFile(files[0], []byte("exit 0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := h.provider(t, func(o *proxmox.Options) { o.Host, o.ScriptDir = pool, dir }).List(t.Context()); err != nil {
			t.Error(err)
		}
	})

	t.Run("parts of uploads that killed engines left are removed, and nothing else", func(t *testing.T) {
		_, pool := h.faulty(t, sshtest.Faults{})
		dir := filepath.Join(t.TempDir(), "scripts")
		const part = "create-vm-0123456789ab.sh.linus-abcdefghi2"
		files := map[string]bool{ // whether it is old, and goes
			part: true, "show-vm-ba9876543210.sh.linus-zzzzzzzzz7": true,
			"create-vm-0123456789ab.sh.linus-2bcdefghij": false, // of an upload that is under way
		}
		kept := []string{"create-vm-0123456789ab.sh", "notes.linus-abcdefghij", part + ".old", "x" + part[1:] + "k", "operations/" + part, "dir-0123456789ab.sh.linus-abcdefghij/x"}
		long := time.Now().Add(-61 * time.Minute)
		write := func(name string, at time.Time) {
			path := filepath.Join(dir, name)
			err := os.MkdirAll(filepath.Dir(path), 0o700)
			if err == nil {
				err = errors.Join(os.WriteFile(path, []byte("x"), 0o600), os.Chtimes(path, at, at), os.Chtimes(filepath.Dir(path), at, at))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for name, old := range files {
			write(name, map[bool]time.Time{true: long, false: time.Now()}[old])
		}
		for _, name := range kept {
			write(name, long)
		}
		if _, err := h.provider(t, func(o *proxmox.Options) { o.Host, o.ScriptDir = pool, dir }).List(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, goes := range files {
			if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) != goes {
				t.Errorf("%s: %v; it goes: %v", name, err, goes)
			}
		}
		for _, name := range kept {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("a VM that goes away is told, and its connections are not kept", func(t *testing.T) {
		p := h.provider(t, nil)
		vm, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		g := guest.New(guest.Options{Host: guest.Through(h.pool), Keys: oneKey(h.key), Port: h.Config.GuestPort})
		defer g.Close()
		j := job.Job{ID: vm.Job, VM: &vm}
		if _, err := g.Probe(t.Context(), j); err != nil {
			t.Fatal(err)
		}
		if err := p.Destroy(t.Context(), vm); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
		defer cancel()
		_, err = g.Probe(ctx, j)
		var host *job.HostError
		if !errors.As(err, &host) || host.Class != job.HostUnreachable {
			t.Errorf("err = %v", err)
		}
		g.Forget(j)
	})
}

func TestConnectionFaults_TellClassAndRemedy(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, s *sshtest.Server, o *remote.Options)
		class  job.HostClass
		remedy string
	}{
		{"nothing listens", func(_ *testing.T, s *sshtest.Server, _ *remote.Options) { s.Stop() }, job.HostUnreachable, "PROXMOX_SSH_PORT"},
		{"silent", func(_ *testing.T, s *sshtest.Server, o *remote.Options) {
			s.Set(sshtest.Faults{Silent: true})
			o.ConnectTimeout = 100 * time.Millisecond
		}, job.HostUnreachable, "firewall"},
		{"another key than the host's", func(t *testing.T, _ *sshtest.Server, o *remote.Options) {
			o.KnownHosts = filepath.Join(t.TempDir(), "known_hosts")
		}, job.HostKeyChanged, string(job.TrustHost)},
		{"a key that is not accepted", func(t *testing.T, _ *sshtest.Server, o *remote.Options) {
			o.KeyPath = filepath.Join(t.TempDir(), "key")
			sshtest.NewKey(t, o.KeyPath)
		}, job.HostAuth, "authorized_keys"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{})
			o := remote.Options{
				Host: s.Host, Port: s.Port, User: "root", KeyPath: s.ClientKeyPath, KnownHosts: s.KnownHosts,
				ConnectTimeout: 5 * time.Second, Patience: 50 * time.Millisecond,
			}
			tt.change(t, s, &o)
			pool := remote.NewPool(o)
			defer pool.Close()
			p := proxmox.New(proxmox.Options{Host: pool, ScriptDir: t.TempDir(), Patience: time.Second})
			_, checkErr := p.Check(t.Context())
			_, addressErr := p.CallbackHost(t.Context())
			_, createErr := p.Create(t.Context(), providertest.NewSpec("o", "t"), func(job.Progress) {})
			for _, err := range []error{checkErr, addressErr, createErr} {
				var host *job.HostError
				if !errors.As(err, &host) || host.Class != tt.class || !strings.Contains(host.Remedy, tt.remedy) || host.Host != pool.Login() {
					t.Errorf("err = %v, want class %s and a remedy with %q", err, tt.class, tt.remedy)
				}
			}
		})
	}
}
