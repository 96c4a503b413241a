// Package e2e proves the whole product: the built binary, spoken to by a real
// MCP client over stdio, runs jobs on the lab's stand-in Proxmox host behind a
// real sshd.
package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab"
	"linus/internal/loops"
)

// realHost is a host of real VMs.
func realHost(t *testing.T) *host {
	t.Helper()
	return newHost(t, lab.DriverQemu, clientsToken, "VM_NETWORK_TIMEOUT=1200", "VM_READY_TIMEOUT=1200")
}

// A job computes its result in a real VM, and the VM is gone afterwards.
func TestJob_HasARealVMOfItsOwn(t *testing.T) {
	loops.AtNightOnly(t, "TestJob_RunsInARealVM has the same job run in a VM that is kept, TestJob_FailsWithItsExitStatus one in a process of its own")
	h := realHost(t)
	c := h.connect(t)
	h.realJob(t, c, map[string]any{"resources": map[string]any{"memory": "1G"}})
	h.waitGone(t)
}

// realJob has a job say where it runs: with a real kernel, and all that it was given.
func (h *host) realJob(t *testing.T, c *mcpClient, more map[string]any) {
	t.Helper()
	manifest := map[string]any{
		"agentType": "script",
		"task":      "uname -r; cat /var/lib/cloud/data/instance-id; hostname; hostname -I; id -un; printf '%s' \"$GREETING\"; cat /srv/in/data.txt; echo oops >&2",
		"env":       map[string]any{"GREETING": "it's $HOME\n\"quoted\"\n"},
		"files":     []any{map[string]any{"path": "/srv/in/data.txt", "content": base64.StdEncoding.EncodeToString([]byte("from a file\n"))}},
	}
	maps.Copy(manifest, more)
	id := c.submit(manifest)
	job := c.wait(id)
	result := c.call("get_job_result", map[string]any{"job_id": id})
	if job["status"] != "success" || result["exit_code"] != 0.0 || result["stderr"] != "oops\n" {
		t.Fatalf("job %v\nresult %v", job, result)
	}
	vm := job["vm"].(map[string]any)
	lines := strings.SplitN(result["output"].(string), "\n", 6)
	if len(lines) != 6 {
		t.Fatalf("output: %q", result["output"])
	}
	ours, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if lines[0] == strings.TrimSpace(string(ours)) {
		t.Errorf("the job ran under this machine's kernel %s", lines[0])
	}
	if len(lines[1]) != 40 {
		t.Errorf("instance id %q is not Proxmox's hash", lines[1])
	}
	if lines[2] != vm["name"] && lines[2] != more["vm"] && !strings.HasPrefix(lines[2], "linus-job-") {
		t.Errorf("host name %q", lines[2])
	}
	if !strings.Contains(lines[3], vm["ip"].(string)) {
		t.Errorf("the job saw the addresses %q, its VM has %v", lines[3], vm["ip"])
	}
	if want := "it's $HOME\n\"quoted\"\nfrom a file\n"; lines[5] != want {
		t.Errorf("environment and file: %s", cmp.Diff(want, lines[5]))
	}
	t.Logf("phases:\n%s", h.cli(t, "job", "status", id))
}

// A job computes its result in a real VM with a real kernel, cloud-init and guest agent.
// The VM is one that stays and reaches names only: the test talks to a shell in it, also by
// the API, while another job leaves a file there, tries what an egress mode lets pass, turns
// it off and on, and destroys it.
func TestJob_RunsInARealVM(t *testing.T) {
	h := realHost(t)
	h.knowsNames(t)
	url := strings.TrimSuffix(h.serveAt(t, "127.0.0.1:0"), "/mcp")
	c := h.connect(t)
	host := c.call("check_host", nil)
	if host["ok"] != true {
		t.Fatalf("check_host: %v", host)
	}
	made := c.call("provision_vm", map[string]any{"name": "dev", "memory": "1G", "ttl": 3600, "network": map[string]any{"allow": []any{"allowed.invalid", publicName, privateName}}})
	c.wait(made["job_id"].(string))
	vm := c.call("get_vm", map[string]any{"vm_id": "dev"})
	if vm["status"] != "running" || vm["ip"] == nil {
		t.Fatalf("VM %v", vm)
	}
	h.realJob(t, c, map[string]any{"vm": "dev"})

	shell := c.call("execute_command", map[string]any{"vm_id": "dev", "command": "exec bash --norc -i", "tty": true})["job_id"].(string)
	c.until(shell, func(j map[string]any) bool { return j["status"] == "running" })
	answer := c.call("interact_with_job", map[string]any{"job_id": shell, "input": "echo $((6*7)) $(tty) $(stty size)\n", "wait_ms": 10000})
	for deadline := time.Now().Add(time.Minute); !strings.Contains(fmt.Sprint(answer["stdout"]), "42 /dev/pts/"); <-time.After(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the shell did not answer: %v", answer)
		}
		answer = c.call("tail_job_output", map[string]any{"job_id": shell})
	}
	if text := answer["stdout"].(string); !strings.Contains(text, " 24 80") {
		t.Errorf("the terminal has another size: %q", text)
	}

	tty := openConsole(t, url, shell)
	t.Run("Terminal", tty.isOne)
	t.Run("Egress", func(t *testing.T) { egressFromInside(t, h, c, tty, "dev", vm["vm_id"].(string), vm["ip"].(string)) })

	id := c.submit(map[string]any{
		"agentType": "script", "vm": "dev", "sudo": true, "cwd": "/srv", "artifacts": []any{"out/**"},
		"task": "mkdir out; uname -n >'out/host name'; chmod 600 out/*; id -un",
	})
	c.wait(id)
	result := c.call("get_job_result", map[string]any{"job_id": id})
	if result["exit_code"] != 0.0 || result["output"] != "root\n" {
		t.Errorf("job in the VM: %v", result)
	}
	if got := h.cli(t, "job", "artifacts", "get", id, "out/host name", "--dir", t.TempDir()); !strings.Contains(got, "out/host name") {
		t.Errorf("artifact: %s", got)
	}

	if got := c.call("kill_job", map[string]any{"job_id": shell}); got["result"] != "killed" {
		t.Errorf("kill: %v", got)
	}
	if j := c.wait(shell); j["reason"] != "killed" {
		t.Errorf("the shell's job: %v", j)
	}
	t.Run("SuspendAndSnapshot", func(t *testing.T) { offAndOn(t, c, "dev") })
	c.call("destroy_vm", map[string]any{"vm_id": "dev", "confirm": true})
	h.waitGone(t)
}

// offAndOn suspends and resumes a VM, and reverts it to a snapshot that has its memory.
func offAndOn(t *testing.T, c *mcpClient, ref string) {
	loops.AtNightOnly(t, "TestProcessLab takes processes through both, TestSuspend_KeepsTheBootUntilTheNextStart what Proxmox does of it")
	vm := map[string]any{"vm_id": ref}
	with := func(more map[string]any) map[string]any {
		maps.Copy(more, vm)
		return more
	}
	run := func(command string) string {
		id := c.submit(map[string]any{"agentType": "script", "vm": ref, "task": command})
		c.wait(id)
		return c.call("get_job_result", map[string]any{"job_id": id})["output"].(string)
	}
	boot := run("cat /proc/sys/kernel/random/boot_id; echo first >/dev/shm/state; echo first >/var/tmp/state; sync")
	if got := c.call("suspend_vm", vm); got["status"] != "suspended" {
		t.Fatalf("suspend_vm: %v", got)
	}
	if got := c.call("resume_vm", vm); got["status"] != "running" {
		t.Fatalf("resume_vm: %v", got)
	}
	c.call("snapshot_vm", with(map[string]any{"snapshot": "first", "memory": true}))
	run("echo second >/dev/shm/state; echo second >/var/tmp/state; sync")
	if got := c.call("revert_vm", with(map[string]any{"snapshot": "first", "confirm": true})); got["status"] != "running" {
		t.Fatalf("revert_vm: %v", got)
	}
	if got := run("cat /proc/sys/kernel/random/boot_id /dev/shm/state /var/tmp/state"); got != boot+"first\nfirst\n" {
		t.Errorf("afterwards: %q, before: %q", got, boot)
	}
}

// The job's own exit status, both streams and every byte come back.
func TestJob_FailsWithItsExitStatus(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	id := c.submit(script(`printf 'out\n'; printf 'err\n' >&2; exit 3`))
	c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id})
	want := map[string]any{"status": "failed", "reason": "exit_status", "exit_code": 3.0, "output": "out\n", "stderr": "err\n"}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	h.waitGone(t)
}

// A job past its timeout is ended with its whole process tree; what it printed
// is kept.
func TestJob_TimesOut(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	m := script(`echo before; setsid sleep 1000 & sleep 1000; echo after`)
	m["timeout"] = 2
	id := c.submit(m)
	job := c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id})
	if job["status"] != "timeout" || got["reason"] != "timeout" || got["output"] != "before\n" {
		t.Errorf("job %v\nresult %v", job, got)
	}
	h.waitGone(t)
}

// Cancelling while the VM is being made rolls it back: no VM, and never
// running again.
func TestCancel_WhileProvisioning(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.fault(t, "agent_silent", "1")
	c := h.connect(t)
	id := c.submit(script("echo never"))
	c.until(id, func(j map[string]any) bool { return j["status"] == "provisioning" && h.ourVMs(t) > 0 })
	if got := c.call("cancel_job", map[string]any{"job_id": id}); got["cancelled"] != true {
		t.Fatalf("cancel_job: %v", got)
	}
	job := c.wait(id)
	if job["status"] != "failed" || job["reason"] != "cancelled" || job["error"] != "Cancelled by user" {
		t.Errorf("job %v", job)
	}
	h.waitGone(t)
	if text := c.fail("cancel_job", map[string]any{"job_id": id}); !strings.Contains(text, "Job already completed") {
		t.Errorf("second cancel: %q", text)
	}
}

// Cancelling a running job ends it, keeps what it printed and destroys its VM.
func TestCancel_WhileRunning(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	id := c.submit(script("echo started; sleep 1000"))
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	c.call("cancel_job", map[string]any{"job_id": id})
	job := c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id})
	if job["reason"] != "cancelled" || got["status"] != "failed" || !strings.HasPrefix("started\n", got["output"].(string)) {
		t.Errorf("job %v\nresult %v", job, got)
	}
	h.waitGone(t)
}

// Every way a task may be run, and every byte of a file, arrives as given.
func TestJob_ArrivesByteForByte(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	blob := make([]byte, 10<<20)
	for i := range blob {
		blob[i] = byte(i*7 + i>>8)
	}
	sum := sha256.Sum256(blob)
	task := "line '1' \"$HOME\" `id` $(id)\n\ttab ; & | > \\ é 漢\n"
	tests := []struct {
		name     string
		manifest map[string]any
		want     string
	}{
		{"custom command reads the task", map[string]any{"agentType": "custom", "agent": map[string]any{"command": "cat"}, "task": task}, task},
		{"script with a command", map[string]any{"agentType": "script", "agent": map[string]any{"command": `tr a-z A-Z <"$LINUS_TASK_FILE"`}, "task": "shout\n"}, "SHOUT\n"},
		{"10 MB file", map[string]any{
			"agentType": "script", "task": "sha256sum </data/blob.bin; stat -c %a /data/blob.bin",
			"files": []any{map[string]any{"path": "/data/blob.bin", "mode": "0640", "content": base64.StdEncoding.EncodeToString(blob)}},
		}, hex.EncodeToString(sum[:]) + "  -\n640\n"},
		{"environment", map[string]any{
			"agentType": "script", "task": `printf '%s|%s' "$A" "$B_1"`,
			"env": map[string]any{"A": "x\ny'\"$(id)", "B_1": ""},
		}, "x\ny'\"$(id)|"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := c.submit(tt.manifest)
			c.wait(id)
			got := c.call("get_job_result", map[string]any{"job_id": id})
			if got["output"] != tt.want || got["status"] != "success" {
				t.Errorf("result %v\nwant %q", got, tt.want)
			}
		})
	}
	h.waitGone(t)
}

// Output beyond the limit keeps head and tail, and says how much is missing;
// binary output is exact in files and marked in JSON.
func TestJob_OutputBeyondTheLimit(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "MAX_OUTPUT_SIZE=1MB")
	c := h.connect(t)
	id := c.submit(script(`echo HEAD; head -c 3000000 /dev/zero | tr '\0' x; printf '\377\nTAIL'`))
	c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id})
	if got["output_bytes"] != 3000011.0 || got["truncated"] != true {
		t.Errorf("output_bytes %v, truncated %v", got["output_bytes"], got["truncated"])
	}
	out := h.cli(t, "job", "result", id)
	if !strings.HasPrefix(out, "HEAD\n") || !strings.Contains(out, "\xff\nTAIL") || !strings.Contains(out, "bytes dropped]") {
		t.Errorf("result begins %q and ends %q", out[:min(20, len(out))], out[max(0, len(out)-20):])
	}
}

// More jobs than slots: the rest waits, all end, no VM is left and a
// VM of somebody else is as it was.
func TestJobs_MoreThanSlots(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "MAX_JOBS=2")
	foreign := h.plantForeign(t)
	c := h.connect(t)
	var ids []string
	for i := range 3 {
		ids = append(ids, c.submit(script(fmt.Sprintf("echo %d", i))))
	}
	for i, id := range ids {
		c.wait(id)
		got := c.call("get_job_result", map[string]any{"job_id": id})
		if want := fmt.Sprintf("%d\n", i); got["output"] != want {
			t.Errorf("job %d: %v", i, got)
		}
	}
	h.waitGone(t)
	if now := h.readForeign(t); now != foreign {
		t.Errorf("the foreign VM's config changed:\n%s", cmp.Diff(foreign, now))
	}
}

// A chat window that closes does not end a job: the engine goes on, and the
// next client finds the result.
func TestJob_SurvivesTheClient(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	first := h.connect(t)
	id := first.submit(script("sleep 1; echo late"))
	began := time.Now()
	if err := first.Close(); err != nil {
		t.Logf("close: %v", err)
	}
	t.Logf("linus mcp ended %s after stdin", time.Since(began).Round(time.Millisecond))
	second := h.connect(t)
	if job := second.wait(id); job["status"] != "success" {
		t.Errorf("job %v", job)
	}
	h.waitGone(t)
}

func script(task string) map[string]any { return map[string]any{"agentType": "script", "task": task} }

// A job completes when its VM cannot call back.
func TestJob_CompletesWithoutCallbacks(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "CALLBACK_URL=http://127.0.0.1:9") // the discard port: nobody answers
	c := h.connect(t)
	id := c.submit(script("echo polled"))
	if job := c.wait(id); job["status"] != "success" {
		t.Fatalf("job %v", job)
	}
	if got := c.call("get_job_result", map[string]any{"job_id": id}); got["output"] != "polled\n" {
		t.Errorf("result %v", got)
	}
}

// waitGone waits until no VM of ours is left on the host.
func (h *host) waitGone(t *testing.T) {
	t.Helper()
	deadline := time.After(5 * time.Minute)
	for h.ourVMs(t) > 0 {
		select {
		case <-deadline:
			t.Fatalf("%d VMs of ours are left", h.ourVMs(t))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ourVMs counts VMs on the host that carry a job's marker.
func (h *host) ourVMs(t *testing.T) int {
	t.Helper()
	confs, err := filepath.Glob(filepath.Join(h.dir, "etc/pve/qemu-server/*.conf"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, path := range confs {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "linus-job") && !strings.Contains(string(data), "linus-volume") {
			n++
		}
	}
	return n
}

const foreignConf = "#somebody's database\ncores: 1\nmemory: 512\nname: production\nscsi0: local-lvm:vm-150-disk-0,size=8G\ntags: linus;production\n"

func (h *host) plantForeign(t *testing.T) string {
	t.Helper()
	if err := os.WriteFile(h.foreignPath(), []byte(foreignConf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(h.foreignPath()) })
	return foreignConf
}

func (h *host) readForeign(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(h.foreignPath())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func (h *host) foreignPath() string { return filepath.Join(h.dir, "etc/pve/qemu-server/150.conf") }
