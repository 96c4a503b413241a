package e2e

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/loops"
)

// hostTest runs linus host test, with done called when a step has ended, and returns the exit code
// and how each step ended.
func (h *host) hostTest(t *testing.T, done func(step string, linus *os.Process), args ...string) (code int, results map[string]string, text string) {
	t.Helper()
	// The host's timer ends leases each second.
	if err := os.WriteFile(filepath.Join(h.dir, "home", ".bashrc"), []byte("export LINUS_SWEEP_SECONDS=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, stderr := exec.Command(h.linus(), append([]string{"host", "test"}, args...)...), &bytes.Buffer{}
	cmd.Env, cmd.Stderr = h.env, stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	results = map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text += lines.Text() + "\n"
		if name := lines.Text(); len(name) > 24 && name[0] != ' ' {
			step := strings.TrimSpace(name[:16])
			results[step] = strings.TrimSpace(name[17:24])
			done(step, cmd.Process)
		}
	}
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode(), results, text + stderr.String()
}

func nothing(string, *os.Process) {}

// A host says itself what works there, keeps that, and has nothing of the test afterwards.
func TestHostTest_GoesThroughTheWholeChain(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	before, report := h.kept(t), filepath.Join(t.TempDir(), "report")
	if out := h.cli(t, "host", "check"); !strings.Contains(out, "not tested yet") {
		t.Errorf("before it:\n%s", out)
	}
	code, results, text := h.hostTest(t, nothing, "--report", report)
	if code != 0 || len(results) != 22 {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	for step, result := range results {
		want := "passed"
		if strings.HasPrefix(step, "egress ") && step != "egress lan" {
			want = "skipped" // the lab's processes are on its loopback
		}
		if result != want {
			t.Errorf("%s: %s", step, result)
		}
	}
	h.as(t, before)
	if list := h.cli(t, "job", "list"); list != "" {
		t.Errorf("jobs are left:\n%s", list)
	}
	if out := h.cli(t, "host", "check"); !strings.Contains(out, "passed on ") || !strings.Contains(out, "restore") {
		t.Errorf("after it:\n%s", out)
	}
	if said, err := os.ReadFile(report); err != nil || !strings.Contains(string(said), "restore          passed") || strings.Contains(string(said), "127.") || strings.Contains(string(said), "pve ") {
		t.Errorf("the report: %v\n%s", err, said)
	}
	// What it was true of is another now.
	conf := filepath.Join(h.dir, "etc/pve/qemu-server/9000.conf")
	config, err := os.ReadFile(conf)
	if err == nil {
		err = os.WriteFile(conf, append([]byte("balloon: 0\n"), config...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := h.cli(t, "host", "check"); !strings.Contains(out, "no longer holds: the template is a different one") {
		t.Errorf("with another template:\n%s", out)
	}
	_, events := h.exits(t, "job", "submit", "--wait", "--egress", "internet", "--", "true")
	if !strings.Contains(events, "not proven on node pve: egress internet; linus host test") {
		t.Errorf("a job with what was not proven:\n%s", events)
	}
}

// Ctrl-C after any step, and an engine that is killed there, leave nothing on the host; a fault in
// the midst is told at its step.
func TestHostTest_EndedAnywhereLeavesNothing(t *testing.T) {
	loops.AtNightOnly(t, "TestHost_CancelledAnywhereLeavesNothing, TestTend_RemovesWhatAnEngineHasLeft and TestHost_EachStepThatFailsSaysSo have each step, without a host")
	t.Parallel()
	steps := []string{"boot", "check", "restore", "job", "cancel", "snapshot", "suspend", "resume", "checkpoint", "fork", "volume", "egress lan", "egress none"}
	for at := range steps {
		t.Run(steps[at], func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess)
			before := h.kept(t)
			ended := func(do func(linus *os.Process)) func(string, *os.Process) {
				return func(step string, linus *os.Process) {
					if step == steps[at] {
						do(linus)
					}
				}
			}
			code, results, text := h.hostTest(t, ended(func(linus *os.Process) { _ = linus.Signal(os.Interrupt) }))
			if code != 1 || results["nothing left"] != "passed" || results["destroy"] != "" || !strings.Contains(text, "cancelled") {
				t.Errorf("Ctrl-C: exit code %d\n%s", code, text)
			}
			h.as(t, before)

			// The command line starts another engine, and shows how that ends it.
			code, results, text = h.hostTest(t, ended(func(*os.Process) { h.killEngine() }))
			if code != 1 || results["nothing left"] != "passed" || !strings.Contains(text, "the engine ended in the middle of it") {
				t.Errorf("the engine was killed: exit code %d\n%s", code, text)
			}
			h.as(t, before)
			if out := h.cli(t, "host", "check"); !strings.Contains(out, "failed on ") {
				t.Errorf("after the engine was killed:\n%s", out)
			}

			if at > 0 {
				return
			}
			code, results, text = h.hostTest(t, func(step string, linus *os.Process) {
				switch step {
				case "snapshot":
					h.fault(t, "storage_full", "1")
				case "checkpoint":
					_ = linus.Signal(os.Interrupt) // enough is told
				}
			})
			if code != 1 || results["suspend"] != "failed" || results["resume"] != "skipped" || results["checkpoint"] != "passed" || results["nothing left"] != "passed" {
				t.Errorf("a storage that is full when memory is saved: exit code %d\n%s", code, text)
			}
			h.as(t, before)
		})
	}
}

// Real machines go through the whole chain, and what each egress mode stops is stopped.
func TestHostTest_OfRealMachines(t *testing.T) {
	loops.AtNightOnly(t, "TestHostTest_GoesThroughTheWholeChain takes VMs that are processes through the same steps")
	h := realHost(t)
	before := h.kept(t)
	code, results, text := h.hostTest(t, nothing)
	t.Log(text)
	if code != 0 || len(results) != 22 {
		t.Errorf("exit code %d", code)
	}
	for step, result := range results {
		if result != "passed" {
			t.Errorf("%s: %s", step, result)
		}
	}
	h.as(t, before)
}
