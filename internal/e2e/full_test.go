package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/loops"
)

// volumes are the volumes on the host's storages, but for those of the template.
func (h *host) volumes(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"storage/local-lvm/*", "storage/local/images/*/*"} {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			if name := filepath.Base(path); !strings.Contains(name, "-900") && filepath.Ext(name) != ".d" {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// kept is all that is on the host of VMs: configs, volumes, leases, and what it keeps of checkpoints.
func (h *host) kept(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, pattern := range []string{"etc/pve/qemu-server/*.conf", "home/linus/leases/*-*", "home/linus/checkpoints/*"} {
		found, err := filepath.Glob(filepath.Join(h.dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			b.WriteString(path + "\n")
			if text, err := os.ReadFile(path); err == nil && strings.HasSuffix(path, ".conf") {
				b.Write(text)
			}
		}
	}
	return b.String() + strings.Join(h.volumes(t), "\n")
}

// as waits until what is kept on the host is as it was.
func (h *host) as(t *testing.T, before string) {
	t.Helper()
	if !within(time.Minute, func() bool { return h.kept(t) == before }) {
		t.Fatalf("the host kept\n%s\nand keeps\n%s", before, h.kept(t))
	}
}

// toldFull checks that an error names the storage that is full, and what to do.
func toldFull(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "free some space on local-lvm") {
		t.Errorf("%s on a full storage: %s", what, text)
	}
}

// On a storage that is full, before a volume is made or in the middle of one, it is said which
// storage, and nothing is left.
func TestFull_Storage(t *testing.T) {
	loops.AtNightOnly(t, "TestFault_FullWhileAVMRuns has what a host does then, TestHost_EachStepThatFailsSaysSo a storage that is full when memory is saved")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "CHECKPOINTS=off")
	c := h.connect(t)
	before := h.kept(t)
	for _, fault := range []lab.Fault{state.FaultPoolFull, state.FaultStorageFull} { // the clone is refused, and its memory is not saved
		h.fault(t, string(fault), "1")
		code, text := h.exits(t, "template", "checkpoint", "build", "--wait")
		if code == 0 {
			t.Errorf("%s: the checkpoint is built: %s", fault, text)
		}
		toldFull(t, "a checkpoint", text)
		h.as(t, before)
	}

	h.cli(t, "template", "checkpoint", "build", "--wait")
	before = h.kept(t)
	submit := func(start string) (got, status map[string]any) {
		t.Helper()
		m := script("echo on")
		m["start"] = start
		got = c.call("submit_job", map[string]any{"manifest": m, "wait_seconds": 45})
		status = c.call("get_job_status", map[string]any{"job_id": got["job_id"]})
		h.as(t, before)
		return got, status
	}
	for _, tt := range []struct{ start, times, status string }{
		{"any", "1", "success"}, {"any", "2", "failed"}, {"restore", "1", "failed"},
	} {
		h.fault(t, string(state.FaultPoolFull), tt.times)
		got, job := submit(tt.start)
		_, events := h.exits(t, "job", "status", "--wait", got["job_id"].(string))
		if job["status"] != tt.status || !strings.Contains(events, "could not be restored from checkpoint") {
			t.Errorf("start %s on a storage that is full %s times: %v\n%s", tt.start, tt.times, job, events)
		}
		if tt.status == "success" && job["vm"].(map[string]any)["source"] != "cold" {
			t.Errorf("it has booted: %v", job)
		}
		if said, _ := job["error"].(string); tt.status == "failed" {
			toldFull(t, "its job", said)
		}
	}
	if _, job := submit("restore"); job["status"] != "success" {
		t.Errorf("the checkpoint is of use no more: %v", job)
	}

	dev := h.dev(t)
	before = h.kept(t)
	for _, fault := range []lab.Fault{state.FaultPoolFull, state.FaultStorageFull} { // the memory has no volume, or does not fit into it
		h.fault(t, string(fault), "1")
		code, text := h.exits(t, "vm", "fork", "dev", "--count", "2")
		if code == 0 {
			t.Errorf("%s: it is forked: %s", fault, text)
		}
		toldFull(t, "a fork", text)
		h.unforked(t, dev)
		h.as(t, before)
		h.fault(t, string(fault), "1")
		if code, text = h.exits(t, "vm", "save", "dev", "--as", "saved"); code == 0 {
			t.Errorf("%s: it is saved: %s", fault, text)
		}
		toldFull(t, "a save", text)
		h.as(t, before)
	}
	h.fault(t, string(state.FaultPoolFull), "1")
	code, text := h.exits(t, "volume", "create", "cache", "--size", "1G")
	if code == 0 {
		t.Errorf("the volume is there: %s", text)
	}
	toldFull(t, "a volume", text)
	h.as(t, before)
	if list := h.cli(t, "volume", "list"); list != "" {
		t.Errorf("volumes:\n%s", list)
	}
	if n, _ := h.count(t, "dev"); n != "42" {
		t.Errorf("dev goes on with %s", n)
	}
	h.cli(t, "vm", "save", "dev", "--as", "saved") // nothing of the name is kept
	h.cli(t, "volume", "create", "cache", "--size", "1G")
}
