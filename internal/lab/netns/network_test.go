package netns

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// newNetwork is the state directory of a lab whose network may go up, and of
// which nothing is left at the end. It skips where no namespace can be made.
func newNetwork(t *testing.T) *state.State {
	t.Helper()
	loops.NotInCheck(t)
	if os.Geteuid() != 0 {
		t.Skip("a network namespace is root's to make")
	}
	for _, tool := range []string{"ip", "nft", "dnsmasq"} {
		if _, err := sys.Find(tool); err != nil {
			t.Skip(err)
		}
	}
	s := &state.State{Dir: filepath.Join(t.TempDir(), "lab"), Config: state.Config{Driver: state.DriverQemu, Bridge: "vmbr0"}}
	if err := os.MkdirAll(s.Path("run"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n := Of(s)
		if err := Down(context.Background(), s); err != nil {
			t.Error(err)
		}
		for _, path := range []string{n.Path(), filepath.Join("/sys/class/net", n.Veth)} {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s left", path)
			}
		}
	})
	return s
}

func TestNetwork_UpRepairsWhatAKilledUpLeft(t *testing.T) {
	s := newNetwork(t)
	// A killed up may leave a namespace with nothing in it.
	if err := createNetns(t.Context(), Of(s).Namespace); err != nil {
		t.Fatal(err)
	}
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if !Of(s).complete() {
		t.Error("the network is not complete")
	}
}

func TestNetwork_UpStartsDHCPAgainAndKeepsTheRest(t *testing.T) {
	s := newNetwork(t)
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	pidFile := s.Path("run", "dhcp", "pid")
	first, _ := sys.ReadPidFile(pidFile)
	if err := sys.KillProven(first, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	if err := sys.WaitPidFile(t.Context(), pidFile); err != nil {
		t.Fatal(err)
	}
	before := Of(s)
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if second, running := sys.ReadPidFile(pidFile); !running || second == first {
		t.Errorf("DHCP was process %d and is %d, running %t", first, second, running)
	}
	if after := Of(s); after != before {
		t.Errorf("network %+v became %+v", before, after)
	}
}

func TestNetwork_DownEndsEveryProcessInside(t *testing.T) {
	s := newNetwork(t)
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	inside := exec.Command("sleep", "1000")
	if err := Do(Of(s).Path(), inside.Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- inside.Wait() }()
	if err := Down(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Errorf("process %d lives on", inside.Process.Pid)
		_ = inside.Process.Kill()
	}
	if err := Down(t.Context(), s); err != nil {
		t.Errorf("a second down: %v", err)
	}
}

func TestNetwork_DownLeavesOthersNamespaces(t *testing.T) {
	s := newNetwork(t)
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	other := "pvelabtest" + s.Name()
	if _, err := sys.Run(t.Context(), "ip", "netns", "add", other); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := removeNetns(context.Background(), other); err != nil {
			t.Error(err)
		}
	}()
	if err := Down(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	out, err := sys.Run(t.Context(), "ip", "netns", "list")
	if err != nil || !bytes.Contains(out, []byte(other)) || bytes.Contains(out, []byte(Of(s).Namespace)) {
		t.Errorf("names after down: %q, %v; want %s alone", out, err, other)
	}
}

func TestNetwork_AddressesStepAsideForOthers(t *testing.T) {
	s := newNetwork(t)
	first := Of(s)
	link := "pvt" + s.Name()
	for _, args := range [][]string{
		{"link", "add", link, "type", "dummy"},
		{"addr", "add", first.Host.String() + "/24", "dev", link},
	} {
		if _, err := sys.Run(t.Context(), "ip", args...); err != nil {
			t.Skipf("no dummy interface to be had: %v", err)
		}
	}
	t.Cleanup(func() { _, _ = sys.Run(context.Background(), "ip", "link", "del", link) })
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if s.Config.SSHHost == first.Host.String() {
		t.Errorf("sshd is given %s, which is another interface's", s.Config.SSHHost)
	}
	_, taken, _ := net.ParseCIDR(first.Host.String() + "/24")
	if taken.Contains(net.ParseIP(s.Config.SSHHost)) {
		t.Errorf("%s lies in %s", s.Config.SSHHost, taken)
	}
}

func TestInNetns_TheCallersThreadsComeBack(t *testing.T) {
	s := newNetwork(t)
	if err := Up(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	outside, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var inside string
		err := Do(Of(s).Path(), func() (err error) {
			inside, err = os.Readlink("/proc/thread-self/ns/net")
			return err
		})
		if err != nil || inside == outside {
			t.Fatalf("inside %s, outside %s, %v", inside, outside, err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) { // a thread that was inside takes a moment to end
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		elsewhere := ""
		for _, thread := range threads {
			if now, err := os.Readlink("/proc/self/task/" + thread.Name() + "/ns/net"); err == nil && strings.TrimSpace(now) != outside {
				elsewhere = thread.Name() + " is in " + now
			}
		}
		if elsewhere == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("thread %s, not %s", elsewhere, outside)
		}
	}
}

func TestNetworkAt_LabsDoNotOverlap(t *testing.T) {
	seen := map[string]uint32{}
	for slot := range uint32(Slots) {
		n := At("00000000", "vmbr0", slot)
		if other, taken := seen[n.Outside.String()]; taken {
			t.Fatalf("slots %d and %d share %s", other, slot, n.Outside)
		}
		seen[n.Outside.String()] = slot
	}
}

func TestNetwork_IsFoundAgainFromTheSSHAddress(t *testing.T) {
	s := &state.State{Dir: "/somewhere", Config: state.Config{Bridge: "vmbr0"}}
	for _, slot := range []uint32{0, 1, 77, 300, Slots - 1} {
		want := At(s.Name(), "vmbr0", slot)
		s.Config.SSHHost = want.Host.String()
		if got := Of(s); got != want {
			t.Errorf("slot %d: %+v, want %+v", slot, got, want)
		}
	}
}
