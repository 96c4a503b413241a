package lab

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestNetwork_UpRepairsWhatAKilledUpLeft(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	// A killed up may leave a namespace with nothing in it.
	if err := createNetns(t.Context(), networkOf(s).namespace); err != nil {
		t.Fatal(err)
	}
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if !networkOf(s).complete() {
		t.Error("the network is not complete")
	}
}

func TestNetwork_UpStartsDHCPAgainAndKeepsTheRest(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	pidFile := s.path("run", "dhcp", "pid")
	first, _ := readPidFile(pidFile)
	if err := killProven(first, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	if err := waitPidFile(t.Context(), pidFile); err != nil {
		t.Fatal(err)
	}
	before := networkOf(s)
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if second, running := readPidFile(pidFile); !running || second == first {
		t.Errorf("DHCP was process %d and is %d, running %t", first, second, running)
	}
	if after := networkOf(s); after != before {
		t.Errorf("network %+v became %+v", before, after)
	}
}

func TestNetwork_DownEndsEveryProcessInside(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside := exec.Command("sleep", "1000")
	if err := inNetns(networkOf(s).path(), inside.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- inside.Wait() }()
	if err := downNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Errorf("process %d lives on", inside.Process.Pid)
		_ = inside.Process.Kill()
	}
	if err := downNetwork(t.Context(), s); err != nil {
		t.Errorf("a second down: %v", err)
	}
}

func TestNetwork_DownLeavesOthersNamespaces(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	other := "pvelabtest" + s.Name()
	if _, err := runTool(t.Context(), "ip", "netns", "add", other); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := removeNetns(context.Background(), other); err != nil {
			t.Error(err)
		}
	}()
	if err := downNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	out, err := runTool(t.Context(), "ip", "netns", "list")
	if err != nil || !bytes.Contains(out, []byte(other)) || bytes.Contains(out, []byte(networkOf(s).namespace)) {
		t.Errorf("names after down: %q, %v; want %s alone", out, err, other)
	}
}

func TestNetwork_AddressesStepAsideForOthers(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	first := networkOf(s)
	link := "pvt" + s.Name()
	for _, args := range [][]string{
		{"link", "add", link, "type", "dummy"},
		{"addr", "add", first.host.String() + "/24", "dev", link},
	} {
		if _, err := runTool(t.Context(), "ip", args...); err != nil {
			t.Skipf("no dummy interface to be had: %v", err)
		}
	}
	t.Cleanup(func() { _, _ = runTool(context.Background(), "ip", "link", "del", link) })
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if s.Config.SSHHost == first.host.String() {
		t.Errorf("sshd is given %s, which is another interface's", s.Config.SSHHost)
	}
	_, taken, _ := net.ParseCIDR(first.host.String() + "/24")
	if taken.Contains(net.ParseIP(s.Config.SSHHost)) {
		t.Errorf("%s lies in %s", s.Config.SSHHost, taken)
	}
}

func TestInNetns_TheCallersThreadsComeBack(t *testing.T) {
	needQemu(t)
	s := newQemuState(t)
	if err := upNetwork(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	outside, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var inside string
		err := inNetns(networkOf(s).path(), func() (err error) {
			inside, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		})
		if err != nil || inside == outside {
			t.Fatalf("inside %s, outside %s, %v", inside, outside, err)
		}
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if now, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net"); err == nil && strings.TrimSpace(now) != outside {
			t.Errorf("thread %s is in %s, not %s", thread.Name(), now, outside)
		}
	}
}
