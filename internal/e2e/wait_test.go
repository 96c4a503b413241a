package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/lab"
	"linus/internal/loops"
)

// One call runs a command in a VM of its own and returns what it wrote.
func TestWait_OneCallReturnsTheOutput(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	uname, err := exec.Command("uname", "-srm").Output()
	if err != nil {
		t.Fatal(err)
	}
	got := c.call("execute_command", map[string]any{"command": "uname -srm; echo oh >&2; exit 3", "wait_seconds": 45})
	if got["complete"] == false { // the machine is slow: one more call, for the same job
		t.Log("it took longer than one call waits")
		id := got["job_id"].(string)
		c.endsAs(id, "failed", "exit_status")
		got = c.call("get_job_output", map[string]any{"job_id": id})
		done := c.call("get_job_status", map[string]any{"job_id": id})
		for _, k := range []string{"status", "reason", "exit_code"} {
			got[k] = done[k]
		}
	}
	want := map[string]any{
		"status": "failed", "reason": "exit_status", "exit_code": 3.0, "complete": true,
		"stdout": string(uname), "stdout_next": float64(len(uname)), "stderr": "oh\n", "stderr_next": 3.0,
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}

	// With a key, a second call waits for the first one's job.
	args := map[string]any{"manifest": script("sleep 1; echo once"), "idempotency_key": "a key", "wait_seconds": 45}
	var both [2]map[string]any
	var calls sync.WaitGroup
	for i := range both {
		calls.Go(func() { both[i] = c.call("submit_job", args) })
	}
	calls.Wait()
	for i, got := range both {
		if got["complete"] == false && got["job_id"] == both[0]["job_id"] { // the machine is slow
			c.endsAs(got["job_id"].(string), "success", "exit_status")
			both[i] = c.call("submit_job", args)
		}
	}
	for _, got := range both {
		if got["job_id"] != both[0]["job_id"] || got["stdout"] != "once\n" || got["exit_code"] != 0.0 {
			t.Errorf("with the key of %v: %v", both[0]["job_id"], got)
		}
	}

	// What takes longer is returned with the output so far, and read on from there.
	got = c.call("execute_command", map[string]any{"command": "echo first; read line; echo \"$line\"", "wait_seconds": 2})
	id, _ := got["job_id"].(string)
	if got["status"] == "success" || got["exit_code"] != nil || got["complete"] != false {
		t.Errorf("a command that waits for input: %v", got)
	}
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	c.call("interact_with_job", map[string]any{"job_id": id, "input": "second\n"})
	c.endsAs(id, "success", "exit_status")
	rest := c.call("get_job_output", map[string]any{"job_id": id, "offset": got["stdout_next"]})
	if all := got["stdout"].(string) + rest["stdout"].(string); all != "first\nsecond\n" {
		t.Errorf("output %q, then %q", got["stdout"], rest["stdout"])
	}
	h.waitGone(t)
}

// listed is how many jobs have a status.
func (c *mcpClient) listed(status string) int {
	c.t.Helper()
	jobs, _ := c.call("list_jobs", map[string]any{"status": status})["jobs"].([]any)
	return len(jobs)
}

// The engine is killed during the wait: the same call returns the job's result, from
// the engine that takes the job up.
func TestWait_OutlivesTheEngine(t *testing.T) {
	loops.AtNightOnly(t, "TestEngineKilled_TwoClients has calls that outlive an engine, TestStarted_AWaitThatFailsDoesNotLoseTheJob one that waits")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	answer := make(chan map[string]any, 1)
	go func() {
		answer <- c.call("submit_job", map[string]any{"manifest": script("sleep 3; echo late"), "idempotency_key": "k", "wait_seconds": 40})
	}()
	h.until(t, func() bool { return c.listed("running") == 1 })
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	if got := <-answer; got["status"] != "success" || got["stdout"] != "late\n" {
		t.Errorf("result %v", got)
	}

	// An engine that is stopped on purpose is not started again for a call that waits;
	// the call says which job it was, and that goes on.
	go func() {
		answer <- c.call("execute_command", map[string]any{"command": "sleep 3; echo later", "wait_seconds": 40})
	}()
	h.until(t, func() bool { return c.listed("running") == 1 })
	stop := exec.Command(filepath.Join(binDir, "linus"), "serve", "--stop")
	stop.Env = h.env
	if out, err := stop.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := <-answer
	note, _ := got["note"].(string)
	if !strings.Contains(note, "get_job_result with wait_seconds") {
		t.Errorf("after a stop: %v", got)
	}
	id, _ := got["job_id"].(string)
	if c.endsAs(id, "success", "exit_status"); c.call("get_job_result", map[string]any{"job_id": id})["output"] != "later\n" {
		t.Error("the job's output is not whole")
	}
	h.waitGone(t)
}

// A client that cancels its call, or goes away, leaves the job alone.
func TestWait_TheJobOutlivesTheCall(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	other := h.connect(t)
	for name, leave := range map[string]func(*mcpClient, context.CancelFunc){
		"cancelled": func(_ *mcpClient, cancel context.CancelFunc) { cancel() },
		"closed":    func(c *mcpClient, _ context.CancelFunc) { _ = c.Close() }, // its process is ended
	} {
		t.Run(name, func(t *testing.T) {
			c, other := h.connect(t), &mcpClient{other.Client, t}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			args := map[string]any{"manifest": script("sleep 2; echo " + name), "idempotency_key": name}
			var req mcp.CallToolRequest
			req.Params.Name = "submit_job"
			req.Params.Arguments = map[string]any{"manifest": args["manifest"], "idempotency_key": name, "wait_seconds": 40}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = c.CallTool(ctx, req)
			}()
			h.until(t, func() bool { return other.listed("running") == 1 })
			leave(c, cancel)
			<-ended
			args["wait_seconds"] = 40
			if got := other.call("submit_job", args); got["status"] != "success" || got["stdout"] != name+"\n" {
				t.Errorf("the job: %v", got)
			}
		})
	}
	h.waitGone(t)
}
