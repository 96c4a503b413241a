package remote_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

// echo listens on this machine and gives back what it gets, until the test ends.
func echo(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func tunnel(t *testing.T, p *remote.Pool, to string) *remote.Tunnel {
	t.Helper()
	tun, err := p.Tunnel(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	return tun
}

// through sends a line through a tunnel and returns what comes back.
func through(t *testing.T, addr string) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintln(conn, "hello")
	return bufio.NewReader(conn).ReadString('\n')
}

func ends(t *testing.T, tun *remote.Tunnel) {
	t.Helper()
	select {
	case <-tun.Ended():
	case <-time.After(time.Minute):
		t.Fatal("the tunnel did not end")
	}
}

func TestTunnel_CarriesFromLoopbackOnly(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(vm))
	tun := tunnel(t, p, echo(t))
	if !strings.HasPrefix(tun.Addr(), "127.0.0.1:") {
		t.Errorf("listens on %s", tun.Addr())
	}
	if got, err := through(t, tun.Addr()); err != nil || got != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if got := output(t, p, "echo beside"); got != "beside\n" || vm.Stats().Connections != 1 {
		t.Errorf("got %q over %d connections", got, vm.Stats().Connections)
	}
	tun.Close()
	ends(t, tun)
	if got, err := through(t, tun.Addr()); err == nil {
		t.Errorf("after Close: %q", got)
	}
}

func TestTunnel_NotAllowed(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoForwarding: true}})
	p := pool(t, options(vm))
	if _, err := p.Tunnel(t.Context(), echo(t)); !errors.Is(err, remote.ErrNoForwarding) {
		t.Errorf("err = %v", err)
	}
	output(t, p, "true")
	if n := vm.Stats().Connections; n != 1 {
		t.Errorf("%d connections: the one that works was given up", n)
	}
}

func TestTunnel_EndsWithItsConnection(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(vm))
	to := echo(t)
	tun := tunnel(t, p, to)
	vm.Drop()
	ends(t, tun)
	tun = tunnel(t, p, to)
	if got, err := through(t, tun.Addr()); err != nil || got != "hello\n" {
		t.Errorf("a new one: %q, %v", got, err)
	}
}

func TestTunnel_ToNowhereEndsTheConnectionMade(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	tun := tunnel(t, pool(t, options(vm)), "127.0.0.1:1")
	if got, err := through(t, tun.Addr()); err == nil {
		t.Errorf("got %q", got)
	}
}

func TestTunnel_CarriesABoundedNumberAtOnce(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(vm))
	tun := tunnel(t, p, echo(t))
	carried := 0
	for range 40 {
		if got, err := through(t, tun.Addr()); err == nil && got == "hello\n" {
			carried++
		}
	}
	if carried != 16 {
		t.Errorf("%d are carried at once, want 16", carried)
	}
	if got := output(t, p, "echo well"); got != "well\n" {
		t.Errorf("the connection is held up: %q", got)
	}
}

func TestDialLoopback_ReachesOnlyTheOtherMachine(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(vm))
	_, port, err := net.SplitHostPort(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.DialLoopback(t.Context(), "localhost", n)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it has ended
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
		t.Errorf("got %q after the end, %v", rest, err)
	}
	if _, err := p.DialLoopback(t.Context(), "localhost", 1); !errors.Is(err, remote.ErrNotListening) {
		t.Errorf("a port at which nothing listens: %v", err)
	}
}

func TestDialUnix_ReachesASocketThere(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(vm))
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	conn, err := p.DialUnix(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it has ended
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := p.DialUnix(t.Context(), socket+".none"); !errors.Is(err, remote.ErrNotListening) {
		t.Errorf("a socket that is not there: %v", err)
	}
	vm.Set(sshtest.Faults{NoForwarding: true})
	if _, err := p.DialUnix(t.Context(), socket); !errors.Is(err, remote.ErrNotListening) {
		t.Errorf("where that is not allowed: %v", err)
	}
}

// Where the other machine does not forward, nothing of this one is reached instead.
func TestDialLoopback_NotAllowed(t *testing.T) {
	vm := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoForwarding: true}})
	_, port, err := net.SplitHostPort(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool(t, options(vm)).DialLoopback(t.Context(), "localhost", n); !errors.Is(err, remote.ErrNoForwarding) {
		t.Errorf("got %v", err)
	}
}
