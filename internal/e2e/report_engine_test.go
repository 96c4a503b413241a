package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/bench"
	"linus/internal/control"
	"linus/internal/job"
)

// simulated is an engine whose VMs exist only in memory.
type simulated struct {
	program string
	state   string
	env     []string
	pid     int
	others  int
}

// newSimulated runs one until the end of the test.
func newSimulated(t testing.TB, settings ...string) *simulated {
	t.Helper()
	program := filepath.Join(t.TempDir(), "simulated")
	build := exec.Command("go", "build", "-o", program, "linus/internal/e2e/simulated")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	s := &simulated{program: program, state: filepath.Join(t.TempDir(), "linus")}
	version, err := exec.Command(filepath.Join(binDir, "linus"), "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(os.Environ(), "LINUS_STATE_DIR="+s.state, "PROXMOX_HOST=simulated.invalid", "CALLBACK_HOST=127.0.0.1", "CALLBACK_PORT=0",
		"LINUS_ENV_FILE=", "SIMULATED_VERSION="+strings.TrimPrefix(strings.Fields(string(version))[1], "v"))
	s.env = append(s.env, settings...)
	s.serve(t)
	return s
}

// another runs one more on the same database, with VMs of its own.
func (s *simulated) another(t testing.TB) *simulated {
	t.Helper()
	more := &simulated{program: s.program, state: filepath.Join(t.TempDir(), "linus")}
	s.others++
	more.env = append(s.env[:len(s.env):len(s.env)], "LINUS_STATE_DIR="+more.state, fmt.Sprintf("SIMULATED_FIRST=%d", 100+10_000*s.others))
	const keys = "keys/installation"
	key, err := os.ReadFile(filepath.Join(s.state, keys))
	if err == nil {
		err = os.MkdirAll(filepath.Join(more.state, "keys"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(more.state, keys), key, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	more.serve(t)
	return more
}

// serve starts the engine, which ends with the test.
func (s *simulated) serve(t testing.TB) {
	t.Helper()
	cmd := exec.Command(s.program)
	cmd.Env, cmd.Stderr = s.env, os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the engine said %q, %v", line, err)
	}
}

// dial returns a connection to the engine.
func (s *simulated) dial(t testing.TB) *control.Client {
	t.Helper()
	c, err := control.Dial(t.Context(), control.Socket(s.state))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// wire is a client of linus mcp that costs next to nothing: it writes lines made
// before, and counts the lines that come back.
type wire struct {
	pid   int
	stdin io.WriteCloser
	lines *bufio.Reader
	close func()
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// newWire starts linus mcp and returns a client after the answer to initialize.
func newWire(t testing.TB, env []string) *wire {
	t.Helper()
	return (&host{env: env}).wire(t)
}

// wire is newWire of an installation, by its own program.
func (h *host) wire(t testing.TB) *wire {
	t.Helper()
	cmd, env := exec.Command(h.linus(), "mcp"), h.env
	cmd.Env, cmd.Stderr = env, os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{pid: cmd.Process.Pid, stdin: stdin, lines: bufio.NewReaderSize(stdout, 1<<20)}
	w.close = sync.OnceFunc(func() {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, w.lines)
		_ = cmd.Wait()
	})
	t.Cleanup(w.close)
	if _, err := io.WriteString(stdin, hello); err != nil {
		t.Fatal(err)
	}
	w.answer(t)
	return w
}

func (w *wire) answer(t testing.TB) []byte {
	t.Helper()
	line, err := w.lines.ReadBytes('\n')
	if err != nil || bytes.Contains(line, []byte(`"isError":true`)) || bytes.Contains(line, []byte(`"error":`)) {
		t.Fatalf("linus mcp: %v %.300s", err, line)
	}
	return line
}

// call is a tool call as a line.
func toolLine(id int, tool string, args map[string]any) []byte {
	line, _ := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{"name": tool, "arguments": args}})
	return append(line, '\n')
}

// calls makes n calls with at most inFlight of them unanswered.
func (w *wire) calls(t testing.TB, n, inFlight int, tool string, args map[string]any) {
	t.Helper()
	room := make(chan struct{}, inFlight)
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range n {
			room <- struct{}{}
			if _, err := w.stdin.Write(toolLine(i+1, tool, args)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range n {
		w.answer(t)
		<-room
	}
	writing.Wait()
}

// one makes a call and returns how long it took.
func (w *wire) one(t *testing.T, tool string, args map[string]any) time.Duration {
	t.Helper()
	line := toolLine(1, tool, args)
	began := time.Now()
	if _, err := w.stdin.Write(line); err != nil {
		t.Fatal(err)
	}
	w.answer(t)
	return time.Since(began)
}

var aTask = map[string]any{"manifest": script("true")}

// busy is an engine with one slot, in which a job is being provisioned for good, and a
// number of jobs that wait for it.
func busy(t *testing.T, waiting int) (*simulated, *wire) {
	t.Helper()
	s := newSimulated(t, "MAX_JOBS=1", "SIMULATED_STEP=10h")
	w := newWire(t, s.env)
	w.calls(t, waiting+1, 32, "submit_job", aTask)
	return s, w
}

// submits measures n times 1,000 submissions at 32 in flight, with jobs waiting.
func submits(waiting int) func(*testing.T, int) []bench.Sample {
	const jobs = 1000
	return func(t *testing.T, n int) (samples []bench.Sample) {
		s, w := busy(t, waiting)
		w.calls(t, 100, 32, "submit_job", aTask)
		for range n {
			began, cpu := time.Now(), cpuTime(s.pid)+cpuTime(w.pid)
			w.calls(t, jobs, 32, "submit_job", aTask)
			samples = append(samples, bench.Sample{
				"submit_per_s":  jobs / time.Since(began).Seconds(),
				"submit_cpu_us": float64((cpuTime(s.pid) + cpuTime(w.pid) - cpu).Microseconds()) / jobs,
			})
		}
		return append(samples, bench.Sample{"rss_mb": rss(s.pid)})
	}
}

// calls measures n calls that read, with jobs waiting.
func calls(waiting int) func(*testing.T, int) []bench.Sample {
	return func(t *testing.T, n int) (samples []bench.Sample) {
		s, w := busy(t, waiting)
		page, err := s.dial(t).List(t.Context(), job.Filter{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return append(w.reads(t, s.pid, page.Jobs[0].ID, n), bench.Sample{"rss_mb": rss(s.pid)})
	}
}

// reads measures n calls of each tool that reads, of an engine that has the job.
func (w *wire) reads(t *testing.T, engine int, id string, n int) (samples []bench.Sample) {
	t.Helper()
	for _, c := range []struct {
		measure, tool string
		args          map[string]any
	}{
		{"status_ms", "get_job_status", map[string]any{"job_id": id}},
		{"list_ms", "list_jobs", map[string]any{}},
	} {
		cpu := cpuTime(engine) + cpuTime(w.pid)
		for range n {
			samples = append(samples, bench.Sample{c.measure: ms(w.one(t, c.tool, c.args))})
		}
		samples = append(samples, bench.Sample{"call_cpu_us": float64((cpuTime(engine) + cpuTime(w.pid) - cpu).Microseconds()) / float64(n)})
	}
	return samples
}

// manySandboxes measures n lists of 1,000 sandboxes, each in one answer.
func manySandboxes(t *testing.T, n int) (samples []bench.Sample) {
	const all = 1000
	addr := "127.0.0.1:" + freePort(t)
	s := newSimulated(t, "E2B_ADDR="+addr, fmt.Sprintf("MAX_JOBS=%d", all))
	key, err := s.dial(t).CreateToken(t.Context(), job.TokenSpec{Name: "tester", Role: job.RoleRun, E2B: true})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, body string) (text []byte, code int, err error) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/sandboxes", strings.NewReader(body))
		if err != nil {
			return nil, 0, err
		}
		r.Header.Set("X-API-KEY", key.Secret)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, 0, err
		}
		defer resp.Body.Close()
		text, err = io.ReadAll(resp.Body)
		return text, resp.StatusCode, err
	}
	var making sync.WaitGroup
	for range 20 {
		making.Go(func() {
			for range all / 20 {
				if text, code, err := ask(http.MethodPost, `{"templateID":"base","timeout":3600,"metadata":{"user":"me"}}`); code != http.StatusCreated {
					t.Errorf("create: %d %s %v", code, text, err)
				}
			}
		})
	}
	making.Wait()
	for range n {
		began := time.Now()
		text, _, err := ask(http.MethodGet, "")
		took := ms(time.Since(began))
		if listed := bytes.Count(text, []byte(`"sandboxID"`)); err != nil || listed != all {
			t.Fatalf("%d are listed: %v", listed, err)
		}
		samples = append(samples, bench.Sample{"sandboxes_ms": took})
	}
	return append(samples, bench.Sample{"rss_mb": rss(s.pid)})
}

// callbacks measures n heartbeats of a running job, one after the other.
func callbacks(t *testing.T, n int) []bench.Sample {
	told := filepath.Join(t.TempDir(), "callbacks")
	s := newSimulated(t, "SIMULATED_TASK=10h", "SIMULATED_CALLBACKS="+told)
	newWire(t, s.env).calls(t, 1, 1, "submit_job", aTask)
	var id, token string
	for deadline := time.Now().Add(time.Minute); token == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no task was started")
		}
		id, token, _ = strings.Cut(readAll(told), " ")
	}
	conn, err := control.Connect(t.Context(), control.Socket(s.state))
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + conn.Info().Callback + "/callback/" + id
	conn.Close()
	began, cpu := time.Now(), cpuTime(s.pid)
	for range n {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/heartbeat", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", resp.Status, body)
		}
	}
	return []bench.Sample{{
		"callback_per_s":  float64(n) / time.Since(began).Seconds(),
		"callback_cpu_us": float64((cpuTime(s.pid) - cpu).Microseconds()) / float64(n),
	}}
}

// simulatedVMs measures n jobs in as many simulated VMs at once.
func simulatedVMs(t *testing.T, n int) (samples []bench.Sample) {
	s := newSimulated(t, fmt.Sprintf("MAX_JOBS=%d", n), "SIMULATED_STEP=800ms", "SIMULATED_TASK=20s")
	engine := s.dial(t)
	w := newWire(t, s.env)
	began, cpu := time.Now(), cpuTime(s.pid)
	w.calls(t, n, 32, "submit_job", aTask)
	most := 0.0
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		<-tick.C
		most = max(most, rss(s.pid))
		if !unfinished(t, engine) {
			break
		}
		if time.Since(began) > 10*time.Minute {
			t.Fatal("the jobs do not end")
		}
	}
	all := ms(time.Since(began))
	page, err := engine.List(t.Context(), job.Filter{Status: job.Success, Limit: 200})
	if err != nil || len(page.Jobs) != min(n, 200) {
		t.Fatalf("%d jobs have succeeded: %v", len(page.Jobs), err)
	}
	return []bench.Sample{{"all_ms": all, "engine_cpu_ms": ms(cpuTime(s.pid)-cpu) / float64(n), "rss_mb": most}}
}

// unfinished reports whether any job has no outcome.
func unfinished(t testing.TB, engine *control.Client) bool {
	t.Helper()
	for _, status := range []job.Status{job.Pending, job.Provisioning, job.Running} {
		page, err := engine.List(t.Context(), job.Filter{Status: status, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Jobs) > 0 {
			return true
		}
	}
	return false
}

// startToInitialize measures linus mcp from its start to its first answer, n times with
// an engine that runs and n times without.
func startToInitialize(t *testing.T, n int) (samples []bench.Sample) {
	h := newHostAs(t, processLab, "LINUS_LOG_LEVEL=info")
	stop := func() {
		cmd := exec.Command(filepath.Join(binDir, "linus"), "serve", "--stop")
		cmd.Env = h.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for range n {
		samples = append(samples, bench.Sample{"new_ms": ms(h.toInitialize(t).took)})
		stop()
	}
	h.cli(t, "host", "check") // the engine has started and done what it does then
	for range n {
		samples = append(samples, bench.Sample{"attach_ms": ms(h.toInitialize(t).took)})
	}
	stop()
	return samples
}

// attached is what a linus mcp takes from its start to its first answer, and its CPU time to
// its end.
type attached struct{ took, cpu time.Duration }

func (h *host) toInitialize(t testing.TB) (a attached) {
	t.Helper()
	cmd := exec.Command(h.linus(), "mcp")
	cmd.Env, cmd.Stderr, cmd.Stdin = h.env, os.Stderr, strings.NewReader(hello)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	a.took = time.Since(began)
	if err != nil || !strings.Contains(line, `"serverInfo"`) {
		t.Fatalf("linus mcp: %v %.300s", err, line)
	}
	_, _ = io.Copy(io.Discard, stdout)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	a.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return a
}

// BenchmarkStart is how long a client waits for linus mcp: with an engine that runs,
// and with one that is started for it.
func BenchmarkStart(b *testing.B) {
	h := newHostAs(b, processLab, "LINUS_LOG_LEVEL=info")
	h.cliB(b, nil, "job", "list") // an engine
	b.Run("attach", func(b *testing.B) {
		for b.Loop() {
			h.toInitialize(b)
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			h.cliB(b, nil, "serve", "--stop")
			b.StartTimer()
			h.toInitialize(b)
		}
	})
}
