package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// What a host keeps in its directory: of checkpoints, and leases.
const (
	checkpointFiles = "home/linus/checkpoints/*"
	leaseFiles      = "home/linus/leases/*-*"
)

// checkpoints returns what the host keeps of checkpoints.
func (h *host) checkpoints(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.dir, checkpointFiles))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Jobs go on from a checkpoint, each in a VM of its own, and a checkpoint that is removed leaves
// nothing.
func TestCheckpoint_JobsGoOnFromIt(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	if out := h.cli(t, "template", "checkpoint", "build", "--wait"); !strings.Contains(out, " is ready") {
		t.Fatalf("the checkpoint:\n%s", out)
	}
	if files := h.checkpoints(t); len(files) == 0 {
		t.Error("the host keeps nothing of it")
	}
	c := h.connect(t)
	hosts := map[any]bool{}
	for _, start := range []string{"any", "restore"} {
		m := script("ls /opt/linus; hostname; ssh-keyscan -t ed25519 127.0.0.1 >/dev/null 2>&1; echo on")
		m["start"] = start
		began := time.Now()
		got := c.call("submit_job", map[string]any{"manifest": m, "wait_seconds": 45})
		took := time.Since(began)
		job := c.call("get_job_status", map[string]any{"job_id": got["job_id"]})
		vm := job["vm"].(map[string]any)
		if job["status"] != "success" || vm["source"] != "restored" || !strings.HasPrefix(got["stdout"].(string), "job-runner.sh\n") || !strings.HasSuffix(got["stdout"].(string), "on\n") {
			t.Errorf("start %s: %v\n%v", start, got, job)
		}
		hosts[vm["name"]] = true
		t.Logf("start %s: %s", start, took)
	}
	if len(hosts) != 2 {
		t.Errorf("the VMs: %v", hosts)
	}
	var list []struct {
		Name   string
		Status string
		Uses   int
		Bytes  int64 `json:"memory_bytes"`
	}
	if err := json.Unmarshal([]byte(h.cli(t, "template", "checkpoint", "list", "-o", "json")), &list); err != nil || len(list) != 1 || list[0].Uses != 2 || list[0].Status != "ready" {
		t.Fatalf("listed: %+v, %v", list, err)
	}
	if out := h.cli(t, "vm", "list"); strings.Contains(out, list[0].Name) {
		t.Errorf("a checkpoint is no VM:\n%s", out)
	}
	h.cli(t, "template", "checkpoint", "rm", list[0].Name)
	h.waitGone(t)
	for deadline := time.Now().Add(time.Minute); len(h.checkpoints(t)) > 0; <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the host keeps %v", h.checkpoints(t))
		}
	}
}

// A checkpoint whose memory is lost on the host holds no job up: it boots, and another is made.
func TestCheckpoint_LostOnTheHost(t *testing.T) {
	loops.AtNightOnly(t, "TestCheckpoint_JobsGoOnFromIt has one by whole programs, TestCheckpoint_OneThatIsUnfitIsReplaced and TestCheckpoint_WhatFailsBoots what becomes of one that is lost")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.cli(t, "template", "checkpoint", "build", "--wait")
	c := h.connect(t)
	c.call("submit_job", map[string]any{"manifest": script("true"), "wait_seconds": 45})
	for _, file := range h.checkpoints(t) {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	got := c.call("submit_job", map[string]any{"manifest": script("echo on"), "wait_seconds": 45})
	job := c.call("get_job_status", map[string]any{"job_id": got["job_id"]})
	if vm := job["vm"].(map[string]any); got["stdout"] != "on\n" || vm["source"] != "cold" {
		t.Errorf("%v\n%v", got, job)
	}
	for deadline := time.Now().Add(2 * time.Minute); len(h.checkpoints(t)) == 0; <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no other is made:\n%s", h.cli(t, "template", "checkpoint", "list"))
		}
	}
}

// A checkpoint whose memory goes between the look at it and the start holds no job up, either:
// the job is told that it boots, and why, and the checkpoint is given up.
func TestCheckpoint_LostWhileItIsRestored(t *testing.T) {
	loops.AtNightOnly(t, "TestCheckpoint_WhatFailsBoots has restores that fail on their way")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.cli(t, "template", "checkpoint", "build", "--wait")
	files := h.checkpoints(t)
	c := h.connect(t)
	id := c.submit(script("echo on"))
	for deadline := time.Now().Add(time.Minute); h.vmOf("linus-job="+id) == 0; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its VM is not made")
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, ".state") {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	job := c.wait(id)
	if vm := job["vm"].(map[string]any); job["status"] != "success" || vm["source"] != "cold" {
		t.Errorf("%v", job)
	}
	if _, events := h.exits(t, "job", "status", "--wait", id); !strings.Contains(events, "warning: the VM boots: it could not be restored from checkpoint ") {
		t.Errorf("told:\n%s", events)
	}
	h.waitGone(t) // the checkpoint, too
	if files = h.checkpoints(t); len(files) != 0 {
		t.Errorf("the host keeps %v", files)
	}
	if list := h.cli(t, "template", "checkpoint", "list"); list != "" {
		t.Errorf("listed:\n%s", list)
	}
}
