package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// machine is one more machine with linus, on the database and the lab of h: it has a state
// directory of its own, and the installation's key.
func (h *host) machine(t *testing.T, name string) *host {
	t.Helper()
	other := &host{dir: h.dir, state: filepath.Join(filepath.Dir(h.dir), name), lab: h.lab, next: h.next}
	other.env = append(h.env[:len(h.env):len(h.env)], "LINUS_STATE_DIR="+other.state)
	key, err := os.ReadFile(filepath.Join(h.state, "keys", "installation"))
	if err == nil {
		err = os.MkdirAll(filepath.Join(other.state, "keys"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(other.state, "keys", "installation"), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// another starts one more engine on the database and the lab of h, on another machine.
func (h *host) another(t *testing.T) *host {
	t.Helper()
	other := h.machine(t, "another")
	other.joins(t)
	return other
}

// joins starts an engine, which may be killed, until the test ends.
func (h *host) joins(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(h.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	serve := exec.Command(h.linus(), "serve")
	serve.Env, serve.Stderr = h.env, log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(h.logPath())
			t.Logf("the engine's log:\n%s", text[max(0, len(text)-20000):])
		}
	})
	h.until(t, func() bool { return h.engine() != 0 && h.logs("joined the engines") })
}

// logs reports whether an engine has logged a text.
func (h *host) logs(text string) bool {
	log, _ := os.ReadFile(h.logPath())
	return strings.Contains(string(log), text)
}

// An engine is killed in the middle of a job: another, with the same database, takes
// the job over, and it ends whole, having run once. The host refuses what the dead one
// might still ask.
func TestEngines_OneIsKilledInTheMiddleOfAJob(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	l, c := newLedger(t), h.connect(t)
	w := work{n: 1, lines: 5000, sleep: "15"}
	id := c.submit(script(l.task(w)))
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	other := h.another(t)
	seen := other.connect(t)
	if list := other.cli(t, "engine", "list"); strings.Count(list, "\n") != 3 || !strings.Contains(list, "leads") {
		t.Errorf("the engines:\n%s", list)
	}
	c.Close() // it would start an engine where one was killed
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	killed := time.Now()
	other.until(t, func() bool { return other.logs("job adopted") })
	t.Logf("taken over after %s", time.Since(killed).Round(time.Second))
	seen.endsWhole(l, id, w)
	other.waitGone(t)
	fences, err := filepath.Glob(filepath.Join(h.dir, "etc/pve/priv/linus/fence-*"))
	if err != nil || len(fences) != 1 {
		t.Errorf("fences on the host: %v, %v", fences, err)
	}
}

// An engine drains: its job ends there, those that are submitted meanwhile run at the
// other, and then it is gone.
func TestEngines_OneDrains(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	l, c := newLedger(t), h.connect(t)
	first, second := work{n: 1, lines: 10, sleep: "15"}, work{n: 2, lines: 10, sleep: "0"}
	running := c.submit(script(l.task(first)))
	c.until(running, func(j map[string]any) bool { return j["status"] == "running" })
	other := h.another(t)
	seen := other.connect(t)
	drain := exec.Command(filepath.Join(binDir, "linus"), "serve", "--drain")
	drain.Env = h.env
	drained := make(chan error, 1)
	go func() { drained <- drain.Run() }()
	other.until(t, func() bool { return strings.Contains(other.cli(t, "engine", "list"), "draining") })
	waiting := c.submit(script(l.task(second)))
	c.Close()
	seen.endsWhole(l, waiting, second)
	seen.endsWhole(l, running, first)
	select {
	case err := <-drained:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it does not come to an end")
	}
	if list := other.cli(t, "engine", "list"); strings.Count(list, "\n") != 2 {
		t.Errorf("the engines:\n%s", list)
	}
	other.waitGone(t)
}

// An engine that drains is killed while its last job runs: the other takes that over,
// and it ends whole, having run once.
func TestEngines_OneThatDrainsIsKilled(t *testing.T) {
	loops.AtNightOnly(t, "TestEngines_OneDrains and TestEngines_OneIsKilledInTheMiddleOfAJob do one each, TestEngines_Drain goes through what a draining engine has")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	l, c := newLedger(t), h.connect(t)
	w := work{n: 1, lines: 1000, sleep: "15"}
	id := c.submit(script(l.task(w)))
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	other := h.another(t)
	seen := other.connect(t)
	drain := exec.Command(filepath.Join(binDir, "linus"), "serve", "--drain")
	drain.Env = h.env
	drained := make(chan error, 1)
	go func() { drained <- drain.Run() }()
	other.until(t, func() bool { return strings.Contains(other.cli(t, "engine", "list"), "draining") })
	c.Close()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	other.until(t, func() bool { return other.logs("job adopted") })
	seen.endsWhole(l, id, w)
	select {
	case <-drained: // whatever it says of an engine that was killed
	case <-time.After(time.Minute):
		t.Error("serve --drain does not see that the engine is gone")
	}
	if list := other.cli(t, "engine", "list"); strings.Count(list, "\n") != 2 {
		t.Errorf("the engines:\n%s", list)
	}
	other.waitGone(t)
}
