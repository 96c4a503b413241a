package guest_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/sshtest"
	"linus/internal/vm"
	"linus/internal/wiretest"
)

// wired puts a wire between the engine and the VM.
func (r *rig) wired(roundTrip time.Duration) *wiretest.Wire {
	r.t.Helper()
	w, port := wiretest.To(r.t, r.inside.Addr(), roundTrip)
	r.port = port
	r.connect()
	return w
}

// endTask ends what a test has started in a VM.
func (r *rig) endTask() {
	r.t.Helper()
	r.t.Cleanup(func() {
		stop := exec.Command("bash", filepath.Join(r.root, "opt/job-runner/job-runner.sh"), "stop", "KILL")
		if out, err := stop.CombinedOutput(); err != nil {
			r.t.Errorf("stop the task: %v\n%s", err, out)
		}
		endRunner(r.t, r.root)
	})
}

// exited returns when the task has ended.
func (r *rig) exited() job.RunState {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		state, err := r.Probe(r.t.Context(), r.job())
		if err != nil || time.Now().After(deadline) {
			r.t.Fatalf("the task has not ended: %+v, %v", state, err)
		}
		if state.Exited {
			return state
		}
	}
}

// quiet returns when nothing of ours runs in the VM any more.
func (r *rig) quiet() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		if !slices.ContainsFunc(all, func(path string) bool {
			line, _ := os.ReadFile(path)
			return strings.Contains(string(line), r.root)
		}) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("something still runs in the VM")
		}
	}
}

// With the VM warm, one round trip brings the job there and one starts it.
func TestLaunch_OfAWarmVMIsTwoRoundTrips(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.endTask()
	w := r.wired(0)
	if err := r.Warm(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the way there: %d round trips", w.RoundTrips())
	if err := r.Warm(t.Context(), r.job()); err != nil || w.RoundTrips() != 0 {
		t.Errorf("a warm VM is warmed: %v", err)
	}
	if err := r.Push(t.Context(), r.job(), payload(job.File{Path: filepath.Join(r.root, "x"), Content: encoded([]byte("x"))})); err != nil {
		t.Fatal(err)
	}
	if boot, err := r.Start(t.Context(), r.job()); err != nil || boot == "" {
		t.Errorf("boot %q, %v", boot, err)
	}
	if n := w.RoundTrips(); n > 2 {
		t.Errorf("%d round trips, want at most 2", n)
	}
	if n := r.inside.Stats().Execs; n != 1 {
		t.Errorf("%d commands in the VM, want 1", n)
	}
}

// What the creator of a VM has warmed goes to the job that is put there; what has a job
// already does not.
func TestWarm_IsForTheFirstJob(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.endTask()
	if err := r.Warm(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	guest := job.Job{ID: uuid.NewString()}
	claimed := r.vm
	claimed.Member = &vm.Member{Claimer: guest.ID}
	guest.VM = &claimed
	if err := r.Push(t.Context(), guest, payload()); err != nil {
		t.Fatal(err)
	}
	if s := r.inside.Stats(); s.Execs != 1 || s.Connections != 1 {
		t.Errorf("%d commands over %d connections, want one each", s.Execs, s.Connections)
	}
	if r.read("opt/job-runner/task") != "true" || r.read("run/linus/token") != "t0ken\n" {
		t.Error("the job is not in its place")
	}
	if _, err := r.Start(t.Context(), guest); err != nil {
		t.Error(err)
	}
	next := job.Job{ID: uuid.NewString(), VM: &r.vm}
	if err := r.Push(t.Context(), next, payload()); err != nil {
		t.Fatal(err)
	}
	other := job.Job{ID: uuid.NewString(), VM: &r.vm}
	if err := r.Push(t.Context(), other, payload()); err != nil {
		t.Fatal(err)
	}
	if s := r.inside.Stats(); s.Connections != 3 {
		t.Errorf("%d connections: a job took another's", s.Connections)
	}
}

// A waiting launcher that is gone is replaced, and what was warm is not needed.
func TestPush_AfterTheWarmConnectionIsLost(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	for range 2 {
		if err := r.Warm(t.Context(), r.job()); err != nil {
			t.Fatal(err)
		}
		r.inside.Drop()
	}
	if err := r.Push(t.Context(), r.job(), payload()); err != nil || r.read("opt/job-runner/task") != "true" {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(r.root, "*/*/.push-*")); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

// Two may prepare the same place at the same time, as a pool and the job that has just
// claimed its VM: the later one ends the other, however far that is.
func TestWarm_EndsALauncherThatHasNoRunnerYet(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	if err := r.Warm(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	line := r.inside.LastExec()
	r.inside.Drop()
	if err := os.Remove(filepath.Join(r.root, "opt/job-runner/runner")); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("bash", "-c", line)
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(stdout)
	for said.Scan() && !strings.HasPrefix(said.Text(), "LINUS_END:") {
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Warm(ctx, r.job()); err != nil {
		t.Error(err)
	}
	_ = stdin.Close()
	_ = other.Wait()
}

// The word to start is lost with its connection: the task is started all the same, once.
func TestStart_AfterThePlacingConnectionIsLost(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.endTask()
	p := payload()
	p.Manifest.Task = "echo x >>" + filepath.Join(r.root, "ran")
	for range 2 {
		if err := r.Push(t.Context(), r.job(), p); err != nil {
			t.Fatal(err)
		}
		r.inside.Drop()
		if _, err := r.Start(t.Context(), r.job()); err != nil {
			t.Fatal(err)
		}
		r.exited()
	}
	if text := r.read("ran"); text != "x\n" {
		t.Errorf("it ran %d times", strings.Count(text, "x"))
	}
}

// What was placed and not started never starts: not when its connection ends, nor when
// its job has been stopped, or cleaned up after, meanwhile.
func TestPush_AloneStartsNothing(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	p := payload()
	p.Manifest.Task = "touch " + filepath.Join(r.root, "ran")
	if err := r.Push(t.Context(), r.job(), p); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), r.job(), "TERM"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), r.job()); err == nil || !strings.Contains(err.Error(), "the task was stopped before it started") {
		t.Errorf("start after a stop: %v", err)
	}
	if err := r.Push(t.Context(), r.job(), p); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), r.job()); err == nil {
		t.Error("what was cleaned up was started")
	}
	if err := r.Push(t.Context(), r.job(), p); err != nil {
		t.Fatal(err)
	}
	r.Close()
	r.quiet()
	if _, err := os.Stat(filepath.Join(r.root, "ran")); err == nil {
		t.Error("it ran")
	}
}

// The runner is sent to a VM that has none, or another one, and never used unless it is
// the right one.
func TestPush_SendsTheRunnerWhereItIsMissing(t *testing.T) {
	right, err := embed.Script("job-runner")
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]string{"none": "", "another": "echo no\n", "the right one": string(right.Body)} {
		t.Run(name, func(t *testing.T) {
			r := bareVM(t, sshtest.Options{})
			baked := filepath.Join(r.root, "opt/linus/job-runner.sh")
			if err := os.MkdirAll(filepath.Dir(baked), 0o755); err != nil {
				t.Fatal(err)
			}
			if there != "" {
				if err := os.WriteFile(baked, []byte(there), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Push(t.Context(), r.job(), payload()); err != nil {
				t.Fatal(err)
			}
			kept := filepath.Join(r.root, "opt/job-runner/runner")
			if _, err := os.Stat(kept); (err == nil) != (there != string(right.Body)) {
				t.Errorf("sent: %v", err == nil)
			}
			// The next job has the kept one, as long as that is as it was.
			for _, change := range []string{"", "echo no\n"} {
				if there != string(right.Body) && change != "" {
					if err := os.WriteFile(kept, []byte(change), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				next := job.Job{ID: uuid.NewString(), VM: &r.vm}
				if err := r.Push(t.Context(), next, payload()); err != nil {
					t.Fatal(err)
				}
				for _, home := range []string{"opt/job-runner/jobs/" + next.ID} {
					if r.read(home+"/job-runner.sh") != string(right.Body) {
						t.Errorf("the runner of %s is another", home)
					}
				}
			}
		})
	}
}

func touch(path string) error { return os.WriteFile(path, nil, 0o600) }
