package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// serveSandboxes runs linus serve with sandboxes for E2B's clients, and returns the environment with
// which these find it.
func (h *host) serveSandboxes(t *testing.T) []string {
	t.Helper()
	h.env = append(h.env, "E2B_ADDR=127.0.0.1:0")
	url := h.serveTelling(t, `Sandboxes for E2B's clients at (\S+);`)
	h.env = append(h.env, "E2B_URL="+url)
	env := exec.Command("sh", "-c", `eval "$("$0" e2b env tester)" && env | grep ^E2B_`, h.linus())
	env.Env = h.env
	out, err := env.Output()
	if err != nil {
		t.Fatalf("linus e2b env: %v", err)
	}
	return append(h.env, strings.Fields(string(out))...)
}

// sandboxSession is the title of the documents' session with E2B's client.
const sandboxSession = "Programs that use sandboxes"

func TestDocs_TheSessionOfSandboxesIsTrue(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	h.serveSandboxes(t)
	bin, scripts := t.TempDir(), t.TempDir()
	session := sessions(t)[sandboxSession]
	if session == "" {
		t.Fatalf("the documents have no session %q", sandboxSession)
	}
	if err := errors.Join(os.Symlink(c.node, filepath.Join(bin, "node")), os.WriteFile(filepath.Join(scripts, "e2b.txtar"), []byte("session\n-- session --\n"+session), 0o600)); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: scripts,
		Setup: func(e *testscript.Env) error {
			return errors.Join(os.CopyFS(e.WorkDir, os.DirFS(readmeFiles)), os.Symlink(filepath.Join(c.dir, "node_modules"), filepath.Join(e.WorkDir, "node_modules")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"session": func(ts *testscript.TestScript, _ bool, _ []string) { h.session(ts, bin) },
		},
	})
}

// A program made for E2B does in a VM of linus what it does in a sandbox of E2B, with the SDK as it
// comes from npm.
func TestSandboxes_E2BsOwnClient(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	h.env = append(h.env, "E2B_DOMAIN=boxes.example")
	env := slices.DeleteFunc(h.serveSandboxes(t), func(pair string) bool { return strings.HasPrefix(pair, "E2B_DOMAIN=") })
	got := h.runClient(t, c, env, "e2b.mjs")
	refused, _ := got["refused"].(string)
	delete(got, "refused")
	want := map[string]any{
		"environment": "it's\nme", "restarted": "again\n", "failed": []any{3.0, "out\n", "err\n"},
		"file": true, "listed": []any{[]any{"large.bin", 1048576.0}}, "signed": 1048576.0,
		"stale": []any{401.0, map[string]any{"code": 401.0, "message": "signature is already expired"}},
		"host":  "1-ID.boxes.example", "closed": []any{403.0, 502.0},
		"watched": "new.txt", "stopped": true, "background": "got hello\n", "processes": true, "terminal": true,
		"found": []any{[]any{true, map[string]any{"userId": "Ü 1/2", "purpose": "a test"}}}, "time": true, "paused": true, "pausedAgain": false, "pausedListed": 1.0, "running": []any{false, true, false},
		"names": "< HTTP/1.1 502 Bad Gateway\r\n< HTTP/1.1 403 Forbidden\r\n", // one of the list, which is nowhere, and another
		"woken": []any{false, "of the volume", true}, "forgotten": "still\n1\n", "volumes": []any{"data"}, "volumeGone": true,
		"metrics": []any{true}, "copies": []any{[]any{true, 1048576.0, true}, []any{true, 1048576.0, true}}, "original": "x",
		"survives": true, "killed": true, "killedAgain": false, "gone": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the client has seen (-want +got):\n%s", diff)
	}
	if !strings.Contains(refused, "400: network.allowOut") {
		t.Errorf("what cannot be meant is refused with %q", refused)
	}
}

// A sandbox's port has a host below E2B_DOMAIN, for whoever has its token. The VM's loopback is this
// machine's in the process lab.
func TestSandboxes_PortsHaveHosts(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.env = append(h.env, "E2B_DOMAIN=boxes.example")
	env := map[string]string{}
	for _, pair := range h.serveSandboxes(t) {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "from the VM, as "+r.Host) }))
	defer site.Close()
	ask := func(method, host, path, body, header, value string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, env["E2B_API_URL"]+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set(header, value)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	code, text := ask(http.MethodPost, "", "/sandboxes", `{"templateID":"base","timeout":300}`, "X-API-KEY", env["E2B_API_KEY"])
	var made struct {
		ID     string `json:"sandboxID"`
		Token  string `json:"trafficAccessToken"`
		Domain string `json:"domain"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusCreated {
		t.Fatal(code, text, err)
	}
	inside := strconv.Itoa(site.Listener.Addr().(*net.TCPAddr).Port)
	host := "-" + made.ID + "." + made.Domain
	for _, c := range []struct {
		port, header, value string
		code                int
		says                string
	}{
		{inside, "E2b-Traffic-Access-Token", made.Token, 200, "from the VM, as localhost:" + inside},
		{inside, "X-API-KEY", env["E2B_API_KEY"], 403, "trafficAccessToken"},
		{freePort(t), "E2b-Traffic-Access-Token", made.Token, 502, "no web server answers"},
	} {
		if code, text := ask(http.MethodGet, c.port+host, "/", "", c.header, c.value); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("port %s: %d %s, want %d with %q", c.port, code, text, c.code, c.says)
		}
	}
	ask(http.MethodDelete, "", "/sandboxes/"+made.ID, "", "X-API-KEY", env["E2B_API_KEY"])
	if code, text := ask(http.MethodGet, inside+host, "/", "", "E2b-Traffic-Access-Token", made.Token); code != http.StatusBadGateway || !strings.Contains(text, "The sandbox was not found") {
		t.Errorf("after its end: %d %s", code, text)
	}
}

// runClient runs a script of E2B's clients, and returns what it has seen.
func (h *host) runClient(t *testing.T, c clients, env []string, script string, args ...string) map[string]any {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.node, append([]string{filepath.Join(c.scripts(t, script), script)}, args...)...)
	cmd.Env, cmd.Stderr = env, t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

// asAdmin is the environment of E2B's clients with the key of an admin.
func (h *host) asAdmin(t *testing.T, env []string) []string {
	t.Helper()
	return append(env, "E2B_API_KEY="+strings.TrimSpace(h.cli(t, "token", "create", "admin", "--role", "admin", "--e2b")))
}

// Each request comes to another one of two engines: what was uploaded to one is copied by the other.
func TestTemplates_BuiltByE2BsOwnClient(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	settings := h.env
	engines := make([]string, 2)
	var other *host
	for i := range engines {
		engines[i] = "127.0.0.1:" + freePort(t)
		h.env = append(settings[:len(settings):len(settings)], "E2B_ADDR="+engines[i])
		if i > 0 {
			other = h.another(t)
			continue
		}
		if err := os.MkdirAll(h.state, 0o700); err != nil {
			t.Fatal(err)
		}
		h.joins(t)
	}
	var asked atomic.Int64
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", engines[asked.Add(1)%2], r.In.Host
	}})
	defer front.Close()
	env := h.asAdmin(t, append(settings[:len(settings):len(settings)], "E2B_API_URL="+front.URL, "E2B_SANDBOX_URL="+front.URL))
	got := h.runClient(t, c, env, "template.mjs", lab.TemplateName)
	text := func(name string) string { said, _ := got[name].(string); delete(got, name); return said }
	if said := text("image"); !strings.Contains(said, "not made from registry images such as \"python:3\"") || !strings.Contains(said, "fromTemplate") {
		t.Errorf("an image is refused with %q", said)
	}
	if said := text("taken"); !strings.Contains(said, "choose another") {
		t.Errorf("a template that was not built so is refused with %q", said)
	}
	want := map[string]any{
		"before": false, "made": []any{"built:v1", "built"}, "logs": []any{true, true, true}, "exists": true, "size": []any{3.0, 3072.0},
		"ran": "/home/user/work/app\nI am another of data\nit's me, it's me\ndeep\nmain.sh\nstarted\n", "root": "0 600\none", "processes": []any{"start_cmd"},
		"again": "another, it's me, it's me\nI am another of data\n", "cached": true,
		"failed": []any{true, "RUN echo why; exit 4: exit status 4"}, "why": true, "unbuilt": false, "left": 0.0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the client has seen (-want +got):\n%s", diff)
	}
	changes := 0
	for line := range strings.Lines(readAll(filepath.Join(h.state, "audit.log")) + readAll(filepath.Join(other.state, "audit.log"))) {
		if strings.Contains(line, `"rename_template"`) || strings.Contains(line, `"remove_template"`) {
			changes++
			if !strings.Contains(line, `"who":"e2b"`) {
				t.Errorf("its change of a template is recorded as another client's: %s", line)
			}
		}
	}
	if changes == 0 {
		t.Error("none of its changes of templates is recorded")
	}
	h.until(t, func() bool { return !strings.Contains(h.cli(t, "vm", "list"), "build-") })
}

// The server that a template has by --bootstrap code-interpreter, in front of a real kernel of Jupyter.
func TestSandboxes_RunCode(t *testing.T) {
	loops.AtNightOnly(t, "TestPort_IsNamedByHeaders and bootstrap.bats")
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	server, err := exec.CommandContext(t.Context(), "bash", "-c", `source "$1" && interpreter_server`, "bash", "../../scripts/lib/interpreter.sh").Output()
	file := filepath.Join(t.TempDir(), "server.py")
	if err := errors.Join(err, os.WriteFile(file, server, 0o600)); err != nil {
		t.Fatal(err)
	}
	got := h.runClient(t, c, h.asAdmin(t, h.serveSandboxes(t)), "interpreter.mjs", file)
	want := map[string]any{
		"remembers": []any{"42", 2.0},
		"output":    []any{[]any{"it's me\n"}, []any{"b\n"}, "ZeroDivisionError", "division by zero", true, []any{"it's me\n", "ZeroDivisionError"}},
		"picture":   []any{"iVBORw==", false, true},
		"env":       []any{"not 'me'", `("it's me", False)`},
		"context":   []any{"python", "/tmp", "NameError"}, "restarted": "NameError", "contexts": 2.0, "removed": []any{1.0, "NotFoundError"},
		"language": "400 Bad Request", "late": "TimeoutError", "after": "41", "ended": "ContextRestarting", "anew": []any{"NameError", "42"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the client has seen (-want +got):\n%s", diff)
	}
}

func TestSandboxes_ByComputeSDK(t *testing.T) {
	loops.AtNightOnly(t, "TestSandboxes_E2BsOwnClient has the client that it is made of do the same")
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	got := h.runClient(t, c, h.serveSandboxes(t), "computesdk.mjs")
	delete(got, "interactive_ms")
	want := map[string]any{
		"first": "hello\n", "failed": []any{"out\n", "err\n", 3.0}, "file": []any{"text", false, []any{"file"}}, "listed": true, "found": "text", "left": 0.0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what the client has seen (-want +got):\n%s", diff)
	}
}

// E2B's command does here what is about sandboxes and templates; what is about accounts and teams is
// its cloud's.
func TestSandboxes_ByE2BsCommand(t *testing.T) {
	loops.AtNightOnly(t, "TestSandboxes_E2BsOwnClient and TestTemplates_BuiltByE2BsOwnClient have the client that it is made of, TestLook_MetricsLogsAndTemplates what only the command asks for")
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	env := append(h.asAdmin(t, h.serveSandboxes(t)), "HOME="+t.TempDir(), "NO_COLOR=1")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), c.node, append([]string{filepath.Join(c.dir, "node_modules/@e2b/cli/dist/index.js")}, args...)...)
		cmd.Env = env
		return cmd
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("e2b %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	says := func(want string, args ...string) {
		t.Helper()
		if out := run(args...); !strings.Contains(out, want) {
			t.Errorf("e2b %s says, without %q:\n%s", strings.Join(args, " "), want, out)
		}
	}
	id := regexp.MustCompile(`[0-9a-f]{32}`).FindString(run("sandbox", "create", "base", "--detach", "--timeout", "600"))
	says(id, "sandbox", "list", "--format", "json")
	says(id, "sandbox", "info", id)
	says("out\n", "sandbox", "exec", id, "--", "echo", "out")
	failing := command("sandbox", "exec", id, "--", "sh", "-c", "exit 7")
	if err := failing.Run(); failing.ProcessState == nil || failing.ProcessState.ExitCode() != 7 {
		t.Errorf("a command that fails: %v", err)
	}
	piped := command("sandbox", "exec", id, "--", "tr", "a-z", "A-Z")
	piped.Stdin = strings.NewReader("piped")
	if out, err := piped.Output(); err != nil || string(out) != "PIPED" {
		t.Errorf("with input: %q, %v", out, err)
	}
	says("cpuUsedPct", "sandbox", "metrics", id, "--format", "json")
	says("VM ", "sandbox", "logs", id, "--format", "json")
	terminal, err := pty.Start(command("sandbox", "connect", id))
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	typed, screen := false, ""
	for buf := make([]byte, 4096); !strings.Contains(screen, "sum 42"); {
		n, err := terminal.Read(buf)
		if screen += string(buf[:n]); err != nil {
			t.Errorf("e2b sandbox connect ends with %v:\n%s", err, screen)
			break
		}
		if !typed && strings.ContainsAny(screen, "$#") {
			typed = true
			if _, err := terminal.WriteString("echo sum $((40+2)); exit\r"); err != nil {
				t.Fatal(err)
			}
		}
	}
	run("sandbox", "pause", id)
	says(id, "sandbox", "list", "--state", "paused", "--format", "json")
	run("sandbox", "resume", id)
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/e2b.Dockerfile", []byte("FROM e2bdev/base\nENV A=b\nCOPY file /srv/\nRUN test \"$A\" = b\n"), 0o600), os.WriteFile(dir+"/file", []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	run("template", "create", "from-a-file", "--path", dir)
	says("from-a-file", "template", "list", "--format", "json")
	run("template", "delete", "from-a-file", "--yes")
	says("killed", "sandbox", "kill", id)
	if out := run("sandbox", "list", "--format", "json"); strings.Contains(out, id) {
		t.Errorf("it is listed after its end:\n%s", out)
	}
}

func TestSandboxes_ManyAtOnce(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	count := 4
	if loops.AtNight() {
		count = 100
	}
	h := newHostAs(t, lab.Options{Driver: lab.DriverProcess, NodeMemory: []string{"128G"}}, "DEFAULT_MEMORY=512M", "MAX_JOBS=25") // a token has 4 times as many VMs
	got := h.runClient(t, c, h.serveSandboxes(t), "many.mjs", strconv.Itoa(count))
	n := float64(count)
	if diff := cmp.Diff(map[string]any{"failed": []any{}, "wrong": []any{}, "listed": n, "distinct": n, "killed": n}, got); diff != "" {
		t.Errorf("what the client has seen (-want +got):\n%s", diff)
	}
	h.waitGone(t)
}

// An engine is killed: another one's clients find a sandbox's processes, and hear of them.
func TestSandboxes_ProcessesOutlastTheirEngine(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	settings := h.env
	first, second := freePort(t), freePort(t)
	h.env = append(settings[:len(settings):len(settings)], "E2B_ADDR=127.0.0.1:"+first)
	if err := os.MkdirAll(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	h.joins(t)
	key := "E2B_API_KEY=" + strings.TrimSpace(h.cli(t, "token", "create", "tester", "--e2b"))
	at := func(port string) []string {
		return append(settings[:len(settings):len(settings)], key, "E2B_API_URL=http://127.0.0.1:"+port, "E2B_SANDBOX_URL=http://127.0.0.1:"+port)
	}
	begun := h.runClient(t, c, at(first), "takeover.mjs", "begin")
	h.env = append(settings[:len(settings):len(settings)], "E2B_ADDR=127.0.0.1:"+second)
	other := h.another(t)
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	other.until(t, func() bool { return strings.Count(other.cli(t, "engine", "list"), "\n") == 2 })
	got := other.runClient(t, c, at(second), "takeover.mjs", "go-on", begun["id"].(string), begun["pid"].(string))
	if diff := cmp.Diff(map[string]any{"listed": true, "heard": true, "killed": true, "gone": true}, got); diff != "" {
		t.Errorf("what the client of the other has seen (-want +got):\n%s", diff)
	}
	other.waitGone(t)
}

// The program that the documents begin with, in a VM that is one: its own kernel, systemd and sshd.
func TestSandboxes_InARealVM(t *testing.T) {
	loops.AtNightOnly(t, "TestDocs_TheSessionOfSandboxesIsTrue, in the process lab")
	c := npmClients(t)
	h := newHost(t, lab.DriverQemu, "DEFAULT_MEMORY=1G")
	env := h.serveSandboxes(t)
	h.cli(t, "pool", "create", "ready", "--warm", "1", "--wait") // clients wait for a minute, and an emulated boot takes longer
	_, program, _ := strings.Cut(readAll("../../embed/docs/e2b.md"), "```js\n")
	program, _, _ = strings.Cut(program, "```")
	script := filepath.Join(c.scripts(t), "hello.mjs")
	if err := os.WriteFile(script, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), c.node, script)
	cmd.Env, cmd.Stderr = env, t.Output()
	if out, err := cmd.Output(); err != nil || string(out) != "hello from a VM\n\n" {
		t.Errorf("%q, %v; %s", out, err, readAll(filepath.Join(h.state, "audit.log")))
	}
	h.until(t, func() bool { return !strings.Contains(h.cli(t, "vm", "list"), "sandbox-") })
}

// supervised runs linus serve, again whenever it is killed, until end. An engine that another client
// has started in between serves no sandboxes, and is stopped.
func (h *host) supervised(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	log, err := os.Create(h.state + ".log") // which is shown where the test fails
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(done)
		defer log.Close() //nolint:errcheck // it is read when the test has failed already
		for ctx.Err() == nil {
			serve := exec.CommandContext(ctx, h.linus(), "serve")
			serve.Cancel = func() error { return serve.Process.Signal(os.Interrupt) }
			serve.Env, serve.Stderr = h.env, log
			if _ = serve.Run(); serve.ProcessState.ExitCode() > 0 && ctx.Err() == nil { // else it was killed
				h.exits(t, "serve", "--stop")
			}
		}
	}()
	end = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(end)
	return end
}

// An engine dies while a template is built: its VM goes once nobody has it stay, and no template is
// there.
func TestTemplates_AnEngineThatDiesLeavesNothing(t *testing.T) {
	t.Parallel() // it waits for the build's time
	loops.AtNightOnly(t, "TestBuild_ThatFailsLeavesNoVM and TestSet_EndsAVMWhenItsTimeIsOver")
	c := npmClients(t)
	port := freePort(t)
	h := newHost(t, lab.DriverProcess, "E2B_ADDR=127.0.0.1:"+port)
	end := h.supervised(t)
	untilDials(t, "tcp", "127.0.0.1:"+port)
	url := "http://127.0.0.1:" + port
	got := h.runClient(t, c, h.asAdmin(t, append(h.env, "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url)), "dying.mjs")
	if diff := cmp.Diff(map[string]any{"status": "building", "begun": true}, got); diff != "" {
		t.Fatalf("what the client has seen (-want +got):\n%s", diff)
	}
	if h.ourVMs(t) == 0 || !h.killEngine() {
		t.Fatal("no VM, or no engine to kill")
	}
	if !within(8*time.Minute, func() bool { return h.ourVMs(t) == 0 }) {
		t.Errorf("the VM is left:\n%s", h.cli(t, "vm", "list"))
	}
	if list := h.cli(t, "template", "list"); strings.Contains(list, "dying") {
		t.Errorf("there is a template:\n%s", list)
	}
	end()
}

// What serves a sandbox is in a pool's VMs before anybody asks for one.
func TestSandboxes_APoolsVMsHaveTheirProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.serveSandboxes(t)
	h.cli(t, "pool", "create", "ready", "--warm", "1", "--wait")
	h.until(t, func() bool {
		found := false
		_ = filepath.WalkDir(h.dir, func(path string, entry fs.DirEntry, err error) error {
			found = found || err == nil && entry.Type().IsRegular() && regexp.MustCompile(`/var/lib/linus/sandbox/[0-9a-f]{64}$`).MatchString(path)
			return nil // what goes meanwhile is passed by
		})
		return found
	})
}

// Lists of addresses are the rules of the sandbox's VM; what they cannot be is refused.
func TestSandboxes_E2BsClientListsAddresses(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess)
	got := h.runClient(t, c, h.serveSandboxes(t), "e2b-network.mjs")
	want := map[string]string{
		"private":  "400: network.allowOut: \"192.168.1.1\" is not public",
		"range":    "400: network.allowOut: \"0.0.0.0/1\" is not public, or only partly public",
		"mapped":   "400: network.allowOut: \"::ffff:9.9.9.9\" is IPv4 in IPv6",
		"bits":     "400: network.denyOut: \"9.9.9.9/24\" has bits set beyond its prefix length",
		"many":     "400: network.denyOut: has 4000 entries",
		"nothing":  "400: network.allowOut: is set, but not everything is denied",
		"replaced": "400: network.allowOut: is set, but not everything is denied",
	}
	for name, text := range want {
		if said, _ := got[name].(string); !strings.Contains(said, text) {
			t.Errorf("%s: %v, want %q", name, got[name], text)
		}
	}
	if got["ran"] != "localhost,127.0.0.1,::1,9.9.9.0/24" {
		t.Errorf("a sandbox with a name and a range finds no proxy for %v", got["ran"])
	}
	if got["direct"] != "none" || got["changed"] != "localhost,127.0.0.1,::1,1.1.1.1|HTTP/1.1 403,HTTP/1.1 502,\n" {
		t.Errorf("a sandbox whose network is changed finds %q, then %q", got["direct"], got["changed"])
	}
	rules := ""
	for _, name := range regexp.MustCompile(`sandbox-\S+`).FindAllString(h.cli(t, "vm", "list"), -1) {
		rules += h.cli(t, "network", "show", name)
	}
	for _, rule := range []string{
		`chain from_\d+: ip daddr @closed4 drop\n(.*\n)*.*chain from_\d+: ip daddr @ranges_\d+ accept\n.*chain from_\d+: drop\n(.*\n)*.*set ranges_\d+: 1\.1\.1\.1`,
		`chain from_\d+: ip daddr @ranges_\d+ drop\n(.*\n)*.*set ranges_\d+: 8\.8\.8\.0/25`,
	} {
		if !regexp.MustCompile(rule).MatchString(rules) {
			t.Errorf("no VM has the rules %s: %s", rule, rules)
		}
	}
}
