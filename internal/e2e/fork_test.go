package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/loops"
	"linus/internal/vm"
)

// forked is what has become of copies, as the command line tells it.
type forked struct {
	Live    bool
	Why     string
	PauseMS int64 `json:"pause_ms"`
	VMs     []struct {
		Name string
		ID   int    `json:"vm_id"`
		From string `json:"restored_from"`
	}
	Failed []struct{ Name, Error string }
}

// dev makes a VM dev that has counted up to 41 in its memory, and returns its ID.
func (h *host) dev(t *testing.T) int {
	t.Helper()
	var made struct {
		ID int `json:"vm_id"`
	}
	if err := json.Unmarshal([]byte(h.cli(t, "vm", "create", "dev", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	h.cli(t, "job", "exec", "--vm", "dev", "--", "sh", "-c", "for i in $(seq 41); do echo $i >/dev/shm/count; done; chmod 666 /dev/shm/count")
	return made.ID
}

// count has a VM count on, and returns its number and who it is.
func (h *host) count(t *testing.T, name string) (n, who string) {
	t.Helper()
	out := h.cli(t, "job", "exec", "--vm", name, "--", "sh", "-c",
		"n=$(($(cat /dev/shm/count)+1)); echo $n | tee /dev/shm/count; hostname; cat /etc/machine-id /sys/class/net/eth0/address; cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub")
	n, who, _ = strings.Cut(out, "\n")
	return n, who
}

// unforked checks that dev has no snapshot, when that is seen.
func (h *host) unforked(t *testing.T, dev int) {
	t.Helper()
	h.until(t, func() bool {
		return !strings.Contains(h.conf(dev), "linus-fork") && !strings.Contains(h.conf(dev), "lock:")
	})
	if list := h.cli(t, "vm", "snapshots", "dev"); strings.Contains(list, "linus-fork") {
		t.Errorf("dev has snapshots:\n%s", list)
	}
}

// Three copies of a VM that counts in its memory go on from one number, each as itself, and so
// does the VM.
func TestFork_ThreeGoOnFromOneNumber(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	dev := h.dev(t)
	var out forked
	if err := json.Unmarshal([]byte(h.cli(t, "vm", "fork", "dev", "--count", "3", "--name", "copy-%d", "-o", "json")), &out); err != nil {
		t.Fatal(err)
	}
	if !out.Live || !strings.Contains(out.Why, "local-lvm") || out.PauseMS == 0 || len(out.VMs) != 3 {
		t.Fatalf("%+v", out)
	}
	h.unforked(t, dev)
	seen := map[string]bool{}
	for i, v := range out.VMs {
		n, who := h.count(t, v.Name)
		if n != "42" || !strings.HasPrefix(who, fmt.Sprintf("copy-%d\n", i+1)) {
			t.Errorf("%s goes on with %s, as %s", v.Name, n, who)
		}
		for line := range strings.Lines(who) {
			if seen[line] {
				t.Errorf("%s has another's %s", v.Name, line)
			}
			seen[line] = true
		}
	}
	for _, want := range []string{"42", "43"} {
		if n, _ := h.count(t, "dev"); n != want {
			t.Errorf("dev goes on with %s, want %s", n, want)
		}
	}
	// It is a VM like any other, whatever becomes of dev.
	h.cli(t, "vm", "destroy", "dev", "--yes")
	if n, _ := h.count(t, "copy-3"); n != "43" {
		t.Errorf("copy-3 goes on with %s when dev is gone", n)
	}
	if got := h.connect(t).call("get_job_status", map[string]any{"job_id": out.VMs[0].From}); got["vm"].(map[string]any)["state"] != string(vm.Destroyed) {
		t.Errorf("it is from %v", got)
	}
	for _, v := range out.VMs {
		h.cli(t, "vm", "destroy", v.Name, "--yes")
	}
	h.waitGone(t)
}

// Where one cannot be made none stays, or with --partial the others.
func TestFork_OneThatDoesNotStart(t *testing.T) {
	loops.AtNightOnly(t, "TestFork_ThreeGoOnFromOneNumber makes copies, TestFork_AllOrNothingUnlessPartial has one that cannot be made")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	dev := h.dev(t)
	h.fault(t, string(state.FaultStartFails), "1")
	if code, text := h.exits(t, "vm", "fork", "dev", "--count", "3"); code == 0 || !strings.Contains(text, "no copy was kept") || !strings.Contains(text, "QEMU exited with code 1") {
		t.Errorf("exit %d: %s", code, text)
	}
	h.until(t, func() bool { return h.ourVMs(t) == 1 && !strings.Contains(h.cli(t, "vm", "list"), "dev-") }) // their names are free
	h.unforked(t, dev)
	h.fault(t, string(state.FaultStartFails), "1")
	var out forked
	if err := json.Unmarshal([]byte(h.cli(t, "vm", "fork", "dev", "--count", "3", "--partial", "-o", "json")), &out); err != nil || len(out.VMs) != 2 || len(out.Failed) != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	h.unforked(t, dev)
	for _, v := range out.VMs {
		if n, _ := h.count(t, v.Name); n != "42" {
			t.Errorf("%s goes on with %s", v.Name, n)
		}
	}
}

// An engine that is killed when the snapshot is there, and no copy: the next one makes them, and
// removes it.
func TestFork_EngineKilled(t *testing.T) {
	loops.AtNightOnly(t, "TestFork_EngineKilledAtEveryStep has the next engine go on at each")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	dev := h.dev(t)
	fork := exec.Command(h.linus(), "vm", "fork", "dev", "--count", "2")
	fork.Env = h.env
	if err := fork.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(h.conf(dev), "[linus-fork]") })
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	_ = fork.Wait()
	h.until(t, func() bool { return strings.Count(h.cli(t, "vm", "list", "--status", "running"), "dev-") == 2 }) // by another engine
	h.unforked(t, dev)
	for i := range 2 {
		if n, who := h.count(t, "dev-"+strconv.Itoa(i+1)); n != "42" {
			t.Errorf("it goes on with %s, as %s", n, who)
		}
	}
}
