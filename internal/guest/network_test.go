package guest_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/egress"
	"linus/internal/job"
	"linus/internal/sshtest"
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
	go sshtest.Forward(way, proxy.Dial)

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
