package e2e

import (
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
)

// An operator gives a kept VM other notes and takes its tag. Every face says that
// it is left alone and what to do, it runs on, and neither a new engine nor the
// end of its record makes it gone; once it is proven again, it goes.
func TestLeftAlone_IsToldUntilItIsGone(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	made := c.call("provision_vm", map[string]any{"name": "kept"})
	id := c.until(made["job_id"].(string), func(j map[string]any) bool { return j["status"] == "success" })["vm"].(map[string]any)["id"].(float64)
	number := strconv.Itoa(int(id))
	qm := func(args ...string) string {
		t.Helper()
		out, err := h.lab.QM(t.Context(), args...)
		if err != nil {
			t.Errorf("qm %v: %v", args, err)
		}
		return out
	}
	_, config, _ := strings.Cut(qm("config", number), "description: ")
	encoded, _, _ := strings.Cut(config, "\n")
	marker, err := url.PathUnescape(encoded)
	if err != nil || !strings.Contains(marker, "linus-owner=") {
		t.Fatalf("its description is %q, %v", marker, err)
	}
	qm("set", number, "--description", "do not touch: accounting", "--tags", "keep")

	destroy := exec.Command(filepath.Join(binDir, "linus"), "vm", "destroy", "kept", "--yes")
	destroy.Env = h.env
	out, err := destroy.CombinedOutput()
	if err == nil || strings.Contains(string(out), ") is destroyed") || !strings.Contains(string(out), "VM kept ("+number+") is left alone: ") {
		t.Errorf("vm destroy: %v\n%s", err, out)
	}
	told := func() {
		t.Helper()
		vm := c.call("get_vm", map[string]any{"vm_id": number})
		if vm["status"] != "left_alone" || !strings.Contains(vm["reason"].(string), "does not carry linus-job=") || !strings.Contains(vm["reason"].(string), "linus vm forget kept") {
			t.Errorf("get_vm: %v", vm)
		}
		if list := h.cli(t, "vm", "list"); !strings.Contains(list, "left_alone") {
			t.Errorf("vm list: %s", list)
		}
		if status := qm("status", number); !strings.Contains(status, "running") {
			t.Errorf("qm status: %s", status)
		}
	}
	told()
	h.cli(t, "serve", "--stop")
	c = h.connect(t)
	h.cli(t, "job", "cleanup", "--older-than", "0s")
	told()

	audit, err := os.ReadFile(filepath.Join(h.state, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var results []string
	for line := range strings.Lines(string(audit)) {
		var r struct{ Action, Result string }
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Action == "destroy_vm" && r.Result != "begun" {
			results = append(results, r.Result)
		}
	}
	if strings.Join(results, " ") != "refused" {
		t.Errorf("the audit log says of its destroy: %v", results)
	}

	qm("set", number, "--description", "accounting "+marker, "--tags", "keep;linus")
	h.cli(t, "vm", "destroy", "kept", "--yes")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := h.lab.QM(t.Context(), "status", number); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("its proof is back, and it is there")
		}
	}
	if list := h.cli(t, "vm", "list", "-o", "json"); strings.TrimSpace(list) != "[]" {
		t.Errorf("vm list: %s", list)
	}
}
