package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
)

// holding returns the files below dir that have text in them.
func holding(t *testing.T, dir, text string, except ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // gone meanwhile
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) && !slices.ContainsFunc(except, func(e string) bool { return strings.HasSuffix(path, e) }) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// argv returns the command lines of all processes that have text in them.
func argv(text string) []string {
	var found []string
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found
}

// A secret reaches the task, and nothing else: not output, however it is
// printed, log, database, command lines, cloud-init data, or what is left on the
// host's disk when the VM is gone.
func TestSecrets_ReachTheTaskAndNothingElse(t *testing.T) {
	t.Parallel()
	const planted = "pl4nted/Secret+of=the.Test"
	for _, mode := range []string{"simple", "streaming"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, lab.DriverProcess, "LINUS_SECRET_PLANTED="+planted)
			l, c := newLedger(t), h.connect(t)
			stop, watched := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(watched)
				for {
					if found := argv(planted); len(found) > 0 {
						t.Errorf("the secret is in the arguments of %q", found)
						return
					}
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
			}()
			id := c.submit(map[string]any{
				"agentType": "script", "statusMode": mode, "secrets": []any{"PLANTED"},
				"task": `printf 'whole %s\n' "$PLANTED"
printf '%s' "${PLANTED:0:7}"; sleep 1.2; printf '%s\n' "${PLANTED:7}"
base64 -w0 <<<"see: $PLANTED"; echo
echo "err $PLANTED" >&2
curl -fsS -o /dev/null -X POST -d "${#PLANTED}" ` + l.url + `/word/length
sleep 1.5
"$PLANTED"`,
			})
			if got := l.word(t, "length"); got != fmt.Sprint(len(planted)) {
				t.Errorf("the task has a secret of %s bytes, want %d", got, len(planted))
			}
			if found := holding(t, h.dir, planted, "/linus/job/stdout", "/linus/job/stderr"); len(found) > 0 {
				t.Errorf("while the task runs the secret is in %q", found)
			}
			stars := strings.Repeat("*", len(planted))
			if live := c.call("get_job_output", map[string]any{"job_id": id}); live["stdout"] == "" || strings.Contains(fmt.Sprint(live), planted) {
				t.Errorf("live output %v", live)
			}
			c.endsAs(id, "failed", "exit_status")
			close(stop)
			<-watched
			got := c.call("get_job_result", map[string]any{"job_id": id})
			stdout, stderr := got["output"].(string), got["stderr"].(string)
			if !strings.HasPrefix(stdout, "whole "+stars+"\n"+stars+"\n") || strings.Contains(stdout, "pl4nted") || !strings.Contains(stdout, "**********") {
				t.Errorf("stdout %q", stdout)
			}
			if !strings.HasPrefix(stderr, "err "+stars+"\n") || !strings.Contains(stderr, stars+": ") {
				t.Errorf("stderr %q", stderr)
			}
			h.waitGone(t)
			for _, dir := range []string{h.dir, h.state} {
				if found := holding(t, dir, planted); len(found) > 0 {
					t.Errorf("afterwards the secret is in %q", found)
				}
			}
		})
	}
}

// listener is between the VMs and the engine's callbacks, and keeps what comes.
type listener struct {
	mu   sync.Mutex
	came []came
}

type came struct {
	at    time.Time
	route string // complete, status, heartbeat, output
}

// listen returns a listener, with the settings of an engine behind it.
func listen(t *testing.T) (*listener, []string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	behind := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	l := &listener{}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, route, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/callback/"), "/"); ok {
			l.mu.Lock()
			l.came = append(l.came, came{time.Now(), route})
			l.mu.Unlock()
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(behind)
	return l, []string{"CALLBACK_URL=" + server.URL, "CALLBACK_PORT=" + port}
}

// times are when callbacks of a route came.
func (l *listener) times(route string) []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var times []time.Time
	for _, c := range l.came {
		if c.route == route {
			times = append(times, c.at)
		}
	}
	return times
}

// What arrives at the callback server says how the status modes differ: simple
// tells of life and end only, detailed what is happening every few seconds,
// streaming the output as it is written.
func TestStatusModes_Differ(t *testing.T) {
	t.Parallel()
	tests := []struct {
		mode        string
		output      [2]int // callbacks, at least and at most
		progress    [2]int
		firstOutput time.Duration // before the task's end, at least
	}{
		{"simple", [2]int{0, 0}, [2]int{0, 0}, 0},
		{"detailed", [2]int{1, 4}, [2]int{2, 4}, 0},
		{"streaming", [2]int{5, 40}, [2]int{2, 4}, 7 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			l, settings := listen(t)
			h := newHost(t, lab.DriverProcess, settings...)
			c := h.connect(t)
			m := script("for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; sleep 0.9; done")
			m["statusMode"] = tt.mode
			id := c.submit(m)
			c.endsAs(id, "success", "exit_status")
			// None: a job may be over, and its VM gone, before the report of what the channel
			// has brought already.
			if n := len(l.times("complete")); n > 1 {
				t.Errorf("%d completions", n)
			}
			if n := len(l.times("heartbeat")); n < 1 || n > 3 {
				t.Errorf("%d heartbeats", n)
			}
			output, progress := l.times("output"), l.times("status")
			if n := len(output); n < tt.output[0] || n > tt.output[1] {
				t.Errorf("output came %d times, want %v", n, tt.output)
			}
			if n := len(progress); n < tt.progress[0] || n > tt.progress[1] {
				t.Errorf("progress came %d times, want %v", n, tt.progress)
			}
			if ends := l.times("complete"); tt.firstOutput > 0 && len(ends) > 0 && ends[0].Sub(output[0]) < tt.firstOutput {
				t.Errorf("output came first %s before the end", ends[0].Sub(output[0]))
			}
			got := c.call("get_job_result", map[string]any{"job_id": id})
			if n := strings.Count(got["output"].(string), "line "); n != 10 {
				t.Errorf("%d lines: %v", n, got["output"])
			}
		})
	}
}

// A prompt without a newline shows, what is typed is answered, and what is
// killed goes with all it started, its exit code known.
func TestInteract_WithARunningTask(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	m := script(`while read -r -p 'name? ' name; do printf 'hello %s\n' "$name"; done; echo "the end"; exit 4`)
	m["stdin"], m["tty"] = "open", true
	id := c.submit(m)
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	output := func() string {
		return c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string)
	}
	shows := func(text string) {
		t.Helper()
		for range 500 {
			if strings.HasSuffix(strings.ReplaceAll(output(), "\r", ""), text) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("no %q at the end of %q", text, output())
	}
	shows("name? ")
	c.call("interact_with_job", map[string]any{"job_id": id, "input": "Ada\n"})
	shows("hello Ada\nname? ")
	c.call("interact_with_job", map[string]any{"job_id": id, "close": true})
	c.endsAs(id, "failed", "exit_status")
	if got := c.call("get_job_result", map[string]any{"job_id": id}); got["exit_code"] != 4.0 || !strings.HasSuffix(got["output"].(string), "the end\r\n") {
		t.Errorf("result %v", got)
	}

	marker := fmt.Sprintf("31%d", time.Now().UnixNano()%1e9)
	id = c.submit(script("trap 'exit 9' TERM; setsid sleep " + marker + " & (sleep " + marker + " & wait) & echo up; wait"))
	for !strings.Contains(output(), "up\n") {
		time.Sleep(10 * time.Millisecond)
	}
	if got := c.call("kill_job", map[string]any{"job_id": id}); got["result"] != "killed" {
		t.Errorf("kill_job: %v", got)
	}
	c.endsAs(id, "failed", "killed")
	if got := c.call("get_job_result", map[string]any{"job_id": id}); got["exit_code"] != 9.0 || got["output"] != "up\n" {
		t.Errorf("result of the killed job %v", got)
	}
	if left := argv("sleep\x00" + marker); len(left) > 0 {
		t.Errorf("left running: %q", left)
	}
	if got := c.call("kill_job", map[string]any{"job_id": id}); got["result"] != "already_terminated" {
		t.Errorf("kill_job again: %v", got)
	}
}

// What the patterns match comes back whole when the task has failed, and what
// leads out of its directory does not.
func TestArtifacts_ComeBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	m := script(`mkdir -p dist/sub; head -c 3000000 /dev/zero | tr '\0' a >dist/big; echo text >"dist/sub/a b"; : >dist/empty
ln -s /etc/passwd dist/out; echo not me >other; exit 3`)
	m["artifacts"] = []any{"dist/**", "nothing/*"}
	id := c.submit(m)
	c.endsAs(id, "failed", "exit_status")
	got := c.call("get_job_result", map[string]any{"job_id": id})
	var paths []string
	for _, a := range got["artifacts"].([]any) {
		paths = append(paths, a.(map[string]any)["path"].(string))
	}
	slices.Sort(paths)
	if want := []string{"dist/big", "dist/empty", "dist/sub/a b"}; !slices.Equal(paths, want) {
		t.Errorf("artifacts %q, want %q", paths, want)
	}
	follow := exec.Command(filepath.Join(binDir, "linus"), "job", "status", "--wait", id)
	follow.Env = h.env
	told, _ := follow.CombinedOutput() // it exits with the job's code
	for _, skipped := range []string{"dist/out: a symlink leads outside", "nothing/*: nothing there matches"} {
		if !strings.Contains(string(told), "no artifact: "+skipped) {
			t.Errorf("not told: %q in\n%s", skipped, told)
		}
	}
	h.waitGone(t)
}

// Whoever sees a terminal status has the whole output before him.
func TestOutput_IsWholeAtTheEnd(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	var ids []string
	for i := range 3 {
		m := script(fmt.Sprintf("seq %d; echo err %[1]d >&2", 1000+i))
		m["statusMode"] = []string{"simple", "detailed", "streaming"}[i%3]
		ids = append(ids, c.submit(m))
	}
	for i, id := range ids {
		c.wait(id)
		got := c.call("get_job_output", map[string]any{"job_id": id, "limit": 1 << 20})
		if out := got["stdout"].(string); !strings.HasSuffix(out, fmt.Sprintf("\n%d\n", 1000+i)) || got["stderr"] != fmt.Sprintf("err %d\n", 1000+i) || got["complete"] != true {
			t.Errorf("job %d: %d bytes, stderr %q, complete %v", i, len(out), got["stderr"], got["complete"])
		}
	}
}

// BenchmarkInput measures from a line that is sent to the task's answer to it.
func BenchmarkInput(b *testing.B) {
	h := newHost(b, lab.DriverProcess)
	c := h.connect(b)
	m := script(`while read -r line; do echo "$line"; done`)
	m["stdin"] = "open"
	id := c.submit(m)
	c.until(id, func(j map[string]any) bool { return j["status"] == "running" })
	next := 0.0
	for i := range b.N {
		want := fmt.Sprintln("line", i)
		c.call("interact_with_job", map[string]any{"job_id": id, "input": want, "wait_ms": 0})
		for got := ""; got != want; {
			out := c.call("get_job_output", map[string]any{"job_id": id, "offset": next})
			got += out["stdout"].(string)
			next = out["stdout_next"].(float64)
		}
	}
	b.StopTimer()
	c.call("kill_job", map[string]any{"job_id": id})
}
