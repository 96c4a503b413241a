package remote_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

func guest(t *testing.T, host *remote.Pool, s *sshtest.Server, change func(*remote.GuestOptions)) *remote.Pool {
	t.Helper()
	o := remote.GuestOptions{Options: options(s), HostKey: s.HostKey}
	o.KnownHosts = ""
	if change != nil {
		change(&o)
	}
	p, err := host.Guest(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestGuest_IsReachedThroughTheHost(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{Env: []string{"WHERE=vm"}})
	g := guest(t, pool(t, options(host)), vm, nil)
	if got := output(t, g, "echo $WHERE"); got != "vm\n" {
		t.Errorf("output = %q", got)
	}
	if host.Stats().Forwards != 1 {
		t.Errorf("the host forwarded %d connections, want 1", host.Stats().Forwards)
	}
	host.Drop()
	if got := output(t, g, "echo $WHERE"); got != "vm\n" {
		t.Errorf("after the host's connection was cut: %q", got)
	}
}

func TestGuest_IsReachedDirectlyWhenTheHostDoesNotForward(t *testing.T) {
	host := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoForwarding: true}})
	vm := sshtest.Start(t, sshtest.Options{})
	g := guest(t, pool(t, options(host)), vm, nil)
	if got := output(t, g, "echo in"); got != "in\n" || host.Stats().Forwards != 0 {
		t.Errorf("output = %q, %+v", got, host.Stats())
	}
}

// A VM has keys of several types, of which the pinned one is asked for.
func TestGuest_PinnedKeyIsAskedForAmongMany(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{ManyKeys: true})
	for _, key := range vm.HostKeys {
		g := guest(t, pool(t, options(host)), vm, func(o *remote.GuestOptions) { o.HostKey = key })
		if err := g.Run(t.Context(), remote.Command{Name: "test", Line: "true"}); err != nil {
			t.Errorf("%.20s: %v", key, err)
		}
	}
}

func TestGuest_HostKeyIsPinned(t *testing.T) {
	host, vm, other := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{})
	g := guest(t, pool(t, options(host)), vm, func(o *remote.GuestOptions) { o.HostKey = other.HostKey })
	err := g.Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	if remote.ClassOf(err) != remote.HostKeyChanged {
		t.Errorf("err = %v", err)
	}
}

func TestGuest_FirstKeyIsPinnedWithAWarning(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{})
	var warned []string
	port := vm.Port
	g := guest(t, pool(t, options(host)), vm, func(o *remote.GuestOptions) {
		o.HostKey, o.OnFirstUse = "", func(fp string) { warned = append(warned, fp) }
	})
	output(t, g, "true")
	vm.Drop()
	output(t, g, "true")
	if len(warned) != 1 || !strings.HasPrefix(warned[0], "ssh-ed25519 SHA256:") {
		t.Errorf("warned = %q", warned)
	}
	vm.Stop()
	impostor := sshtest.Start(t, sshtest.Options{Port: port})
	err := g.Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	if remote.ClassOf(err) != remote.HostKeyChanged {
		t.Errorf("err = %v, at %s", err, impostor.Addr())
	}
}

func TestGuest_ThatDoesNotListen(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{})
	vm.Stop()
	g := guest(t, pool(t, options(host)), vm, nil)
	err := g.Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	if remote.ClassOf(err) != remote.Refused {
		t.Errorf("err = %v", err)
	}
}

func TestGuest_FaultsOfTheHostAreReportedAsTheHosts(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{})
	host.Stop()
	g := guest(t, pool(t, options(host)), vm, nil)
	err := g.Run(t.Context(), remote.Command{Name: "test", Line: "true"})
	var fault *remote.Error
	if !errors.As(err, &fault) || !strings.Contains(fault.Addr, host.Addr()) {
		t.Errorf("err = %v", err)
	}
}

// freezer passes bytes on until it is frozen; then it keeps the connection open
// and is silent, like a machine whose network is gone.
type freezer struct {
	host   string
	port   int
	frozen chan struct{}
}

func (f *freezer) freeze() { close(f.frozen) }

func proxy(t *testing.T, to string) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{host: "127.0.0.1", port: l.Addr().(*net.TCPAddr).Port, frozen: make(chan struct{})}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, near, far)
			mu.Unlock()
			pass := func(dst, src net.Conn) {
				buffer := make([]byte, 32<<10)
				for {
					n, err := src.Read(buffer)
					select {
					case <-f.frozen:
						return
					default:
					}
					if err != nil {
						_ = dst.Close()
						return
					}
					_, _ = dst.Write(buffer[:n])
				}
			}
			running.Go(func() { pass(near, far) })
			running.Go(func() { pass(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return f
}

func TestHostKeyLine_IsAKeyAlone(t *testing.T) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGd1ZXN0Z3Vlc3RndWVzdGd1ZXN0Z3Vlc3RndWVzdGd1"
	for _, text := range []string{key, key + " root@guest", "  " + key} {
		if line, err := remote.HostKeyLine(text); err != nil || line != key {
			t.Errorf("%q: %q, %v", text, line, err)
		}
	}
	for name, text := range map[string]string{
		"nothing": "", "words": "ssh-ed25519 none", "two keys": key + "\n" + key, "a line end": key + "\n", "a carriage return": key + "\r",
		"an option": "no-pty " + key, "a command": `command="true" ` + key, "too long": key + " " + strings.Repeat("x", 4096),
		"a key of a token": "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIGd1ZXN0Z3Vlc3RndWVzdGd1ZXN0Z3Vlc3RndWVzdGd1AAAABHNzaDo=",
	} {
		if line, err := remote.HostKeyLine(text); err == nil {
			t.Errorf("%s is taken for %q", name, line)
		}
	}
}
