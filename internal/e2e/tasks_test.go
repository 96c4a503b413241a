package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// taskClient is the client of ext-tasks, at a host's linus.
type taskClient struct {
	clients
	script string
	host   *host
	more   []string // of its environment
}

func (h *host) taskClient(t *testing.T, c clients, more ...string) taskClient {
	t.Helper()
	return taskClient{c, filepath.Join(c.scripts(t, "tasks.mjs"), "tasks.mjs"), h, more}
}

// does returns what the client sees in one step.
func (c taskClient) does(t *testing.T, args ...string) (seen map[string]any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.node, append([]string{c.script}, args...)...)
	cmd.Env = append(append(c.host.env[:len(c.host.env):len(c.host.env)], "LINUS_PROGRAM="+filepath.Join(binDir, "linus")), c.more...)
	var stderr strings.Builder
	cmd.Stderr, cmd.WaitDelay = &stderr, 10*time.Second // what it has started may hold its stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &seen)
	}
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, out, stderr.String())
	}
	return seen
}

// The client of ext-tasks has a job done as a task, is told of its end, and cancels another, by
// both transports. Of another principal's task it is told that there is none.
func TestTasks_WholeByTheirClient(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, clientsToken)
	url := "LINUS_URL=" + h.serveHTTP(t)
	owner := h.taskClient(t, c, url)
	for _, way := range []string{"stdio", "http"} {
		want := map[string]any{
			"task": "completed", "status": "failed", "exit_code": 3.0, "stdout": "as a task by " + way + "\n", "same": true,
			"told": "completed 3", "cancelled": "cancelled",
		}
		if diff := cmp.Diff(want, owner.does(t, way, "whole")); diff != "" {
			t.Errorf("the client saw by %s (-want +got):\n%s", way, diff)
		}
	}

	another := func(name string) taskClient {
		token := strings.TrimSpace(h.cli(t, "token", "create", name, "--role", "run"))
		return h.taskClient(t, c, url, "HTTP_TOKEN="+token, "TASK=echo mine")
	}
	one, two := another("one"), another("two")
	id := one.does(t, "http", "begin")["id"].(string)
	if got := one.does(t, "http", "end", id); got["task"] != "completed" || got["stdout"] != "mine\n" {
		t.Errorf("its own principal sees %v", got)
	}
	if got := two.does(t, "http", "see", id); got["code"] != -32602.0 || got["error"] != "Task not found" {
		t.Errorf("another principal sees %v", got)
	}
	h.waitGone(t)
}

// A task's ID is answered by each engine of a database, and by what comes after one that was
// killed while the task works.
func TestTasks_OutliveTheirEngine(t *testing.T) {
	loops.AtNightOnly(t, "TestTasks_WholeByTheirClient has the same client, TestEngines_OneIsKilledInTheMiddleOfAJob a job that another engine takes over")
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	var asked, open atomic.Bool
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // the task sees no file of this machine
		asked.Store(true)
		if !open.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(gate.Close)
	first := h.taskClient(t, c, "TASK=until curl -fs "+gate.URL+"; do sleep 0.1; done; echo whole; exit 3")
	id := first.does(t, "stdio", "begin")["id"].(string)
	other := h.another(t)
	h.until(t, asked.Load)
	works := func(what string, at *host) {
		t.Helper()
		if got := at.taskClient(t, c).does(t, "stdio", "see", id); got["task"] != "working" {
			t.Errorf("%s the client sees %v", what, got)
		}
	}
	works("at the other engine", other)
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	works("after the kill, at a new engine", h)
	works("after the kill, at the other engine", other)
	open.Store(true)
	want := map[string]any{"task": "completed", "status": "failed", "exit_code": 3.0, "stdout": "whole\n", "same": true}
	for _, at := range []*host{h, other} {
		if diff := cmp.Diff(want, at.taskClient(t, c).does(t, "stdio", "end", id)); diff != "" {
			t.Errorf("the client saw (-want +got):\n%s", diff)
		}
	}
	other.waitGone(t)
}
