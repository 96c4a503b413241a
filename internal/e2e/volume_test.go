package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"linus/internal/lab"
)

// What a job writes to a volume outlives its VM: the next job reads it, in another VM.
func TestVolume_OutlivesTheVMsThatHaveIt(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	if out := h.cli(t, "volume", "create", "cache", "--size", "2G"); !strings.Contains(out, "volume cache of 2 GB is ready") {
		t.Fatalf("the volume:\n%s", out)
	}
	c := h.connect(t)
	run := func(task, mode string) map[string]any {
		t.Helper()
		m := script(task)
		m["volumes"] = []any{map[string]any{"name": "cache", "path": "/srv/cache", "mode": mode}}
		got := c.call("submit_job", map[string]any{"manifest": m, "wait_seconds": 45})
		if job := c.call("get_job_status", map[string]any{"job_id": got["job_id"]}); job["status"] != "success" {
			t.Fatalf("%v\n%v", got, job)
		}
		return got
	}
	run("echo kept >/srv/cache/file; stat -c %U /srv/cache", "rw")
	h.waitGone(t)
	if got := run("cat /srv/cache/file; touch /srv/cache/other 2>/dev/null || echo read only", "ro"); got["stdout"] != "kept\nread only\n" {
		t.Errorf("the next job: %v", got)
	}
	h.waitGone(t)

	// A VM that stays has it until it is destroyed, however that ends.
	h.cli(t, "vm", "create", "dev")
	h.cli(t, "volume", "attach", "cache", "dev", "/srv/cache")
	if out := h.cli(t, "vm", "ssh", "dev", "--", "cat", "/srv/cache/file"); !strings.Contains(out, "kept") {
		t.Errorf("in a VM that stays: %s", out)
	}
	var list []struct {
		Name, Status string
		Uses         []any
	}
	listed := func() {
		t.Helper()
		list = nil
		if err := json.Unmarshal([]byte(h.cli(t, "volume", "list", "-o", "json")), &list); err != nil || len(list) != 1 || list[0].Status != "ready" {
			t.Fatalf("listed: %+v, %v", list, err)
		}
	}
	if listed(); len(list[0].Uses) != 1 {
		t.Errorf("while dev has it: %+v", list)
	}
	h.cli(t, "vm", "suspend", "dev")
	h.cli(t, "vm", "resume", "dev")
	h.cli(t, "vm", "stop", "dev")
	h.cli(t, "vm", "start", "dev")
	if out := h.cli(t, "vm", "ssh", "dev", "--", "cat", "/srv/cache/file"); !strings.Contains(out, "kept") {
		t.Errorf("after its restart: %s", out)
	}
	h.cli(t, "vm", "destroy", "dev", "--yes")
	h.waitGone(t)
	if listed(); len(list[0].Uses) != 0 {
		t.Errorf("when dev is gone: %+v", list)
	}
	if got := run("cat /srv/cache/file", "rw"); got["stdout"] != "kept\n" {
		t.Errorf("after all of them: %v", got)
	}
	h.waitGone(t)
	h.cli(t, "volume", "rm", "cache", "--yes")
	if out := h.cli(t, "volume", "list", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("after its removal:\n%s", out)
	}
}
