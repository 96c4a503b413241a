package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/bench"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/lab"
)

// The labs that are measured.
var (
	processLab = lab.Options{Driver: lab.DriverProcess}
	slowLab    = lab.Options{Driver: lab.DriverProcess, SlowMS: 800, CallMS: 40}
	qemuLab    = lab.Options{Driver: lab.DriverQemu}
)

// How the host's tools are called, where that is measured.
const (
	plainTools  = "PROXMOX_TOOLS=plain"
	loadedTools = "PROXMOX_TOOLS=auto"
)

// meter measures jobs of one installation: it submits over MCP as an agent does, and
// watches over the engine's socket, which costs the engine less.
type meter struct {
	h      *host
	c      *mcpClient
	engine *control.Client
}

func newMeter(t *testing.T, o lab.Options, settings ...string) *meter {
	t.Helper()
	h := newHostAs(t, o, append([]string{"LINUS_LOG_LEVEL=info"}, settings...)...)
	c := h.connect(t)
	engine, err := control.Dial(t.Context(), control.Socket(h.state))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	return &meter{h, c, engine}
}

// command runs a command and returns its times, from the call on.
func (m *meter) command(t *testing.T, args map[string]any) bench.Sample {
	t.Helper()
	_, sample := m.commandJob(t, args)
	return sample
}

// commandJob is command with the job's ID.
func (m *meter) commandJob(t *testing.T, args map[string]any) (string, bench.Sample) {
	t.Helper()
	args["command"] = "echo first"
	began := time.Now()
	since := func() float64 { return float64(time.Since(began).Microseconds()) / 1000 }
	id, _ := m.c.call("execute_command", args)["job_id"].(string)
	sample := bench.Sample{}
	var seen int64
	var phase time.Time
	for j := (job.Job{}); ; {
		if _, known := sample[bench.FirstOutput]; !known && (j.Status == job.Running || j.Status.Terminal()) {
			m.awaitOutput(t, id)
			sample[bench.FirstOutput] = since()
		}
		var events []job.Event
		var err error
		events, j, err = m.engine.Watch(t.Context(), id, seen)
		if err != nil {
			t.Fatal(err)
		}
		if _, known := sample["finished_ms"]; !known && j.Status.Terminal() {
			if sample["finished_ms"] = since(); j.Status != job.Success {
				t.Fatalf("job %s is %s: %+v", id, j.Status, j.Outcome)
			}
		}
		for _, e := range events {
			seen = e.Seq
			switch {
			case e.Kind == job.EventPhaseStarted:
				phase = e.At
			case e.Kind == job.EventPhaseEnded && (e.Phase == job.PhaseProvision || e.Phase == job.PhaseDestroy):
				sample[e.Phase+"_ms"] = float64(e.At.Sub(phase).Microseconds()) / 1000
			}
		}
		if j.Done() {
			if _, given := args["vm_id"]; given { // it stays
				delete(sample, "provision_ms")
				delete(sample, "destroy_ms")
			} else {
				sample["gone_ms"] = since()
			}
			return id, sample
		}
	}
}

// newVMJob is commandJob in a VM of its own, with how often Proxmox's tools were called meanwhile, and
// their modules loaded: by each tool that was started, and by a tool server.
func (m *meter) newVMJob(t *testing.T, o lab.Options) (string, bench.Sample) {
	t.Helper()
	tools := filepath.Join(m.h.dir, "log", "tools")
	before := len(readAll(tools))
	id, sample := m.commandJob(t, memory(o))
	sample["tool_calls"], sample["tool_loads"] = 0, 0
	for line := range strings.Lines(readAll(tools)[before:]) {
		how, _, isCall := strings.Cut(strings.TrimSpace(line), " ")
		if isCall {
			sample["tool_calls"]++
		}
		if how != "loaded" {
			sample["tool_loads"]++
		}
	}
	return id, sample
}

// awaitOutput polls, but only while output is due: each look costs the engine time.
func (m *meter) awaitOutput(t *testing.T, id string) {
	t.Helper()
	for {
		chunk, err := m.engine.Output(t.Context(), id, job.Stdout, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		if len(chunk.Data) > 0 {
			return
		}
		if chunk.Complete {
			t.Fatalf("the job has no output: %v", m.c.call("get_job_status", map[string]any{"job_id": id}))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// inNewVM measures jobs, one after the other, in clones of the template.
func inNewVM(o lab.Options, settings ...string) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		m := newMeter(t, o, settings...)
		for range n + unmeasured(o) {
			_, sample := m.newVMJob(t, o)
			samples = append(samples, sample)
		}
		return samples[unmeasured(o):]
	}
}

// unmeasured is how many jobs go before: the first one finds no script on the host and
// no connection. Where a boot takes most of a minute, that is not seen.
func unmeasured(o lab.Options) int {
	if o.Driver == lab.DriverQemu {
		return 0
	}
	return 1
}

// inPersistentVM measures commands in a VM that is there.
func inPersistentVM(o lab.Options) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		m := newMeter(t, o)
		made := m.c.call("provision_vm", map[string]any{"name": "dev", "memory": "1G"})
		m.c.wait(made["job_id"].(string))
		m.command(t, map[string]any{"vm_id": "dev"})
		for range n {
			samples = append(samples, m.command(t, map[string]any{"vm_id": "dev"}))
		}
		return samples
	}
}

// fromPool measures jobs that get a VM of a pool, which is full again before each.
func fromPool(o lab.Options, kind, source string) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		m := newMeter(t, o)
		create := []string{"pool", "create", "ready"}
		if o.Driver == lab.DriverQemu {
			create = append(create, "--memory", "1G")
		}
		m.linus(t, create...)
		for range n + unmeasured(o) {
			m.linus(t, "pool", "resize", "ready", kind, "1", "--wait")
			id, sample := m.commandJob(t, memory(o))
			m.madeFrom(t, id, source)
			delete(sample, "provision_ms") // of the member
			samples = append(samples, sample)
		}
		return samples[unmeasured(o):]
	}
}

// sandboxes measures sandboxes that get a VM of a pool, which is full again before each, by a script of
// clients.
func sandboxes(script string) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		c := npmClients(t)
		m := &meter{h: newHostAs(t, processLab, "LINUS_LOG_LEVEL=info")}
		env := m.h.serveSandboxes(t)
		m.linus(t, "pool", "create", "ready")
		for range n + 1 {
			m.linus(t, "pool", "resize", "ready", "--warm", "1", "--wait")
			sample := bench.Sample{}
			for name, value := range m.h.runClient(t, c, env, script) {
				if ms, ok := value.(float64); ok && strings.HasSuffix(name, "_ms") {
					sample[name] = ms
				}
			}
			samples = append(samples, sample)
		}
		return samples[1:]
	}
}

// fromCheckpoint measures jobs whose VM goes on from a checkpoint.
func fromCheckpoint(o lab.Options, settings ...string) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		m := newMeter(t, o, settings...)
		build := []string{"template", "checkpoint", "build", "--wait"}
		if o.Driver == lab.DriverQemu {
			build = append(build, "--memory", "1G")
		}
		m.linus(t, build...)
		for range n + unmeasured(o) {
			id, sample := m.newVMJob(t, o)
			m.madeFrom(t, id, "restored")
			samples = append(samples, sample)
		}
		return samples[unmeasured(o):]
	}
}

// madeFrom checks where a job's VM is from: a pool, a checkpoint, a template.
func (m *meter) madeFrom(t *testing.T, id, source string) {
	t.Helper()
	status := m.c.call("get_job_status", map[string]any{"job_id": id})
	if vm, _ := status["vm"].(map[string]any); vm["source"] != source {
		t.Fatalf("the VM of job %s is not %s: %v", id, source, status)
	}
}

// linus runs a verb and fails the test if it fails.
func (m *meter) linus(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "linus"), args...)
	cmd.Env = m.h.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("linus %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// memory are the arguments of a new VM: an emulated one is given less.
func memory(o lab.Options) map[string]any {
	if o.Driver == lab.DriverQemu {
		return map[string]any{"resources": map[string]any{"memory": "1G"}}
	}
	return map[string]any{}
}

// burst measures n times 20 jobs at once, whose VMs are clones of the template, or go on from a
// checkpoint.
func burst(checkpoint bool) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		const jobs = 20
		m := newMeter(t, processLab, "MAX_JOBS="+strconv.Itoa(jobs))
		source := "cold"
		if checkpoint {
			source = "restored"
			m.linus(t, "template", "checkpoint", "build", "--wait")
		}
		m.command(t, memory(processLab))
		for range n {
			var at sync.WaitGroup
			ids, round := make([]string, jobs), make([]bench.Sample, jobs)
			began, cpu := time.Now(), cpuTime(m.h.engine())
			for i := range jobs {
				at.Go(func() {
					m := &meter{m.h, &mcpClient{m.c.Client, t}, m.engine}
					ids[i], round[i] = m.commandJob(t, memory(processLab))
				})
			}
			at.Wait()
			took, used := time.Since(began), cpuTime(m.h.engine())-cpu
			all := 0.0
			for i, s := range round {
				all = max(all, s["finished_ms"])
				m.madeFrom(t, ids[i], source)
			}
			samples = append(samples, round...)
			samples = append(samples, bench.Sample{"all_ms": all, "engine_cpu_ms": ms(used) / jobs, "rss_mb": rss(m.h.engine())})
			t.Logf("a round took %s", took.Round(time.Millisecond))
		}
		return samples
	}
}

// sequentialJobs measures n jobs of true, each by one call that waits for its result.
func sequentialJobs(t *testing.T, n int) (samples []bench.Sample) {
	m := newMeter(t, processLab)
	m.command(t, memory(processLab))
	cpu := cpuTime(m.h.engine())
	for range n {
		began := time.Now()
		got := m.c.call("execute_command", map[string]any{"command": "true", "wait_seconds": 40})
		if got["exit_code"] != 0.0 {
			t.Fatalf("job %v", got)
		}
		samples = append(samples, bench.Sample{"finished_ms": ms(time.Since(began))})
		m.h.waitGone(t)
	}
	return append(samples, bench.Sample{"engine_cpu_ms": ms(cpuTime(m.h.engine())-cpu) / float64(n), "rss_mb": rss(m.h.engine())})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cpuTime is the CPU time a process has used.
func cpuTime(pid int) time.Duration {
	var used unix.Timespec
	if unix.ClockGettime(int32(^pid<<3|2), &used) != nil { //nolint:gosec // clock_getcpuclockid(3)'s ID of a process's clock
		return 0
	}
	return time.Duration(used.Nano())
}

// rss is a process's resident memory in MB.
func rss(pid int) float64 {
	for line := range strings.Lines(readAll(fmt.Sprintf("/proc/%d/status", pid))) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return float64(kb) / 1000
		}
	}
	return 0
}

// byHand measures what an operator does without linus, n times.
func byHand(o lab.Options, do func(context.Context, *testing.T, *host, int) bench.Sample) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		h := newHostAs(t, o)
		for i := range n {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			samples = append(samples, do(ctx, t, h, 700+i))
			cancel()
		}
		return samples
	}
}
