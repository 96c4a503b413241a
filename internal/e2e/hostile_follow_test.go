package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
	"linus/internal/store"
)

// A VM that is stopped before its task runs ends the job as one that is stopped
// later: by what the host says, not by how long SSH is waited for.
func TestVM_StoppedBeforeItsTaskRuns(t *testing.T) {
	loops.AtNightOnly(t, "TestJob_VMThatGoesDownBeforeItsTaskRunsIsLostAtOnce has each way there, TestVM_GoneBehindOurBack whole programs")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS=3600")
	c := h.connect(t)
	for _, moment := range []string{"push", "start"} {
		t.Run(moment, func(t *testing.T) {
			c := &mcpClient{c.Client, t}
			id := c.submit(script("sleep 1000"))
			h.reach(t, id, moment)
			h.qm(t, "stop", strconv.Itoa(h.vmOf(id)))
			j := c.endsAs(id, "failed", "lost")
			if text, _ := j["error"].(string); !strings.Contains(text, "its VM is stopped on the host, and linus did not do it; check the host's log for who stopped it") {
				t.Errorf("error: %v", j["error"])
			}
			h.waitGone(t)
		})
	}
}

// Engines that are killed every 3 s find a lost task lost all the same: one whose
// VM restarted and came back at another address by its boot, one whose VM says
// nothing by the silence that all of them have heard.
func TestVM_LostWhileEnginesDie(t *testing.T) {
	loops.AtNightOnly(t, "TestFollow_SilenceAddsUpOverEngines and TestFollow_EnginesThatDoNotOutliveALook end engines meanwhile, TestVM_GoneBehindOurBack has whole programs")
	t.Parallel()
	tests := []struct {
		name      string
		threshold string
		inject    func(t *testing.T, h *host, c *mcpClient, id string)
		text      string
	}{
		{"restarted at another address", "3600", restartElsewhere, "while the task ran"},
		{"silent", "30", func(t *testing.T, h *host, _ *mcpClient, id string) { h.freezeGuest(t, h.vmOf(id)) }, "no heartbeat and no answer over SSH for 30s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS="+tt.threshold)
			c := h.connect(t)
			id := c.submit(script("echo begun; sleep 1000"))
			c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
			tt.inject(t, h, c, id)
			over := make(chan struct{})
			killed := make(chan int)
			go func() {
				n := 0
				for {
					select {
					case <-over:
						killed <- n
						return
					case <-time.After(3 * time.Second):
					}
					if h.killEngine() {
						n++
					}
				}
			}()
			var end map[string]any
			for deadline := time.Now().Add(5 * time.Minute); end == nil && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				res, err := c.try("get_job_status", map[string]any{"job_id": id}) // starts an engine where there is none
				if err != nil || res.IsError {
					continue
				}
				if j, ok := res.StructuredContent.(map[string]any); ok && j["status"] == "failed" {
					end = j
				}
			}
			close(over)
			t.Logf("%d engines killed", <-killed)
			if text, _ := end["error"].(string); end["reason"] != "lost" || !strings.Contains(text, tt.text) {
				t.Errorf("job is %v", end)
			}
			h.cli(t, "job", "status", id) // the last engine may have been killed after its end was seen
			h.waitGone(t)
		})
	}
}

// restartElsewhere stops and starts a job's VM, whose address somebody else takes
// meanwhile, so that it takes another; at the old one nobody answers then.
func restartElsewhere(t *testing.T, h *host, c *mcpClient, id string) {
	t.Helper()
	vm := strconv.Itoa(h.vmOf(id))
	old := c.call("get_job_status", map[string]any{"job_id": id})["vm"].(map[string]any)["ip"].(string)
	h.qm(t, "stop", vm)
	h.qm(t, "set", vm, "--ipconfig0", "ip=127.79.1.1/8")
	h.qm(t, "start", vm)
	if now := c.call("get_job_status", map[string]any{"job_id": id})["vm"].(map[string]any)["ip"]; now != old {
		t.Logf("the engine has followed it to %v before one was killed", now)
	}
}

// A VM that has another address, and has not restarted, is found there by what
// its agent says, and its task goes on.
func TestVM_AtAnotherAddressIsFollowed(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS=3600")
	l, c := newLedger(t), h.connect(t)
	w := work{n: 1, lines: 1000, sleep: "15"}
	id := c.submit(script(l.task(w)))
	running := c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	now := running["vm"].(map[string]any)["ip"]
	c.Close()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	// As an engine sees it whose VM has moved: the address on record is nobody's.
	s, err := store.Open(t.Context(), store.Options{Dir: h.state, URL: pgtest.URL(t, h.state)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), id, func(j *job.Job) (job.Record, error) {
		j.VM.IP = "127.78.1.1"
		return job.Record{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c = h.connect(t)
	c.until(id, func(j map[string]any) bool { return j["vm"].(map[string]any)["ip"] == now })
	c.endsWhole(l, id, w)
	h.waitGone(t)
}
