package guest_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/egress"
	"linus/internal/job"
	"linus/internal/sshtest"
	"linus/internal/wiretest"
)

// What a VM sees of each target is what is reported: by its own network, and through the
// proxy of its job.
func TestTryTargets_SaysWhatTheVMSees(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	listen := func() (net.Listener, int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l, l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is one
	}
	open, there := listen()
	closed, gone := listen()
	_ = closed.Close()
	defer open.Close() //nolint:errcheck // it is to end
	proxy := egress.New(egress.Options{
		Names: []string{"good.example", "private.example", "gone.example"}, Record: func(job.Connection) {},
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "private.example" {
				return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
			}
			return []netip.Addr{netip.MustParseAddr("9.9.9.9")}, nil
		},
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", there))
		},
	})
	defer proxy.Close()
	way, port := listen()
	defer way.Close() //nolint:errcheck // it is to end
	wiretest.Start(t, way, proxy.Dial, 0)

	targets := []string{
		fmt.Sprintf("127.0.0.1:%d", there), fmt.Sprintf("127.0.0.1:%d", gone), "no-such-name.invalid", "good.example", "other.example", "private.example", "good.example:22", "127.0.0.1:443",
	}
	all, err := r.TryTargets(t.Context(), r.vm, targets, port)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range all {
		if a.Way == job.WayProxy || strings.HasPrefix(a.Target, "127.") && a.Port != 443 || strings.HasPrefix(a.Target, "no-") {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", a.Way, strings.SplitN(a.Target, ":", 2)[0], a.Result, a.Detail)))
		}
	}
	want := []string{
		"direct 127.0.0.1 connected", "proxy 127.0.0.1 refused only names can be reached, such as example.com",
		"direct 127.0.0.1 refused", "proxy 127.0.0.1 refused only names can be reached, such as example.com",
		"direct no-such-name.invalid unresolved", "proxy no-such-name.invalid refused it is not in the job's network.allow",
		"proxy good.example connected", "proxy other.example refused it is not in the job's network.allow",
		"proxy private.example refused its address is not public",
		"proxy good.example refused only port 443 by CONNECT and port 80 of plain HTTP can be reached",
		"proxy 127.0.0.1 refused only names can be reached, such as example.com",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An address is not looked up: that takes long in a slow VM without a name server, and is
// then said to have no address.
func TestTryTargets_LooksNoAddressUp(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "getent"), []byte("#!/bin/sh\nexit 2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := bareVM(t, sshtest.Options{Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
	all, err := r.TryTargets(t.Context(), r.vm, []string{"127.0.0.1:1", "[::1]:1", "localhost:1"}, 0)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, address := range []string{"127.0.0.1", "::1", ""} {
		if all[i].Address != address || (all[i].Result == job.ResultUnresolved) != (address == "") {
			t.Errorf("%+v", all[i])
		}
	}
}

// What does not answer, nor lets go of a connection, is ended with all that the try has
// started, and is not waited for any longer.
func TestTryTargets_EndsTriesThatGetNoAnswer(t *testing.T) {
	dir := t.TempDir()
	held := filepath.Join(dir, "held") // open while the look-up runs
	if err := syscall.Mkfifo(held, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(held)
		ended <- err
	}()
	for name, body := range map[string]string{
		"getent": "exec sleep 300 3>" + held,
		"sleep":  `exec /bin/sleep "$([ "$1" = 300 ] && echo 300 || echo 0.5)"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepted by the kernel, never read
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // it is to end
	r := bareVM(t, sshtest.Options{Env: []string{"PATH=" + dir + ":" + os.Getenv("PATH")}})
	full := unanswering(t)
	all, err := r.TryTargets(t.Context(), r.vm, []string{full, "slow.example"}, silent.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
	if err != nil || len(all) != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []job.NetworkResult{job.ResultNoAnswer, job.ResultNoAnswer, job.ResultUnresolved, job.ResultNoAnswer} {
		if all[i].Result != want {
			t.Errorf("%+v, not %s", all[i], want)
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the look-up still runs")
	}
}

// unanswering returns an address of this machine where connections are neither made nor
// refused: its line of those who wait to be accepted is full.
func unanswering(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port) //nolint:forcetypeassert // it is one
	for range 10 {
		c, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("connections are still accepted")
	return ""
}
