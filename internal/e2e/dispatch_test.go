package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"linus/internal/doctest"
	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
	"linus/internal/queuetest"
)

// transcript is what a program has said so far.
type transcript struct {
	mu   sync.Mutex
	said bytes.Buffer
}

func (s *transcript) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.Write(data)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.said.String()
}

// dispatcher is a linus dispatch that runs.
type dispatcher struct {
	cmd *exec.Cmd
	transcript
}

func (h *host) dispatch(t *testing.T, args ...string) *dispatcher {
	t.Helper()
	return h.start(t, append([]string{"dispatch"}, args...)...)
}

// start runs linus until the test's end, or its own.
func (h *host) start(t *testing.T, args ...string) *dispatcher {
	t.Helper()
	d := &dispatcher{cmd: exec.CommandContext(t.Context(), h.linus(), args...)}
	d.cmd.Env, d.cmd.Stdout, d.cmd.Stderr = h.env, d, d
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
		if t.Failed() {
			t.Logf("linus %s:\n%s", strings.Join(args, " "), d)
		}
	})
	return d
}

// key writes a file that only we can read.
func key(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var jobID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// A hosted agent's sessions have VMs for hands: each one of its own, which has the session's
// secret and not the environment's key. They survive their dispatcher, and end with their lease.
func TestDispatch_ServesClaudesSessionsInVMs(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	q := queuetest.New(t, 40*time.Second)
	file := key(t, queuetest.Key)
	serve := func(name string) *dispatcher {
		return h.dispatch(t, "claude", "--environment", queuetest.Environment, "--key-file", file, "--api", q.URL, "--name", name, "--sessions", "2", "--label", "team=web")
	}
	item := func(session string, is func(queuetest.Item) bool) (it queuetest.Item) {
		t.Helper()
		h.until(t, func() bool { it = q.Item(session); return is(it) })
		return it
	}
	stopped := func(it queuetest.Item) bool { return it.State == "stopped" }
	jobOf := func(session string) string {
		t.Helper()
		out := h.cli(t, "job", "list", "--label", "dispatch/session="+session)
		id := jobID.FindString(out) // the newest
		if id == "" {
			t.Fatalf("jobs of %s: %s", session, out)
		}
		return id
	}

	first := serve("first")
	// A pattern that does not find itself in an argument.
	const search = `grep -rslE 'sk-env-the-[k]ey' /home /root /tmp /dev/shm /run /var /opt /etc && echo 'in a file'
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -qaE 'sk-env-the-[k]ey' && echo 'in a process'
echo searched`
	token := q.Add("sesn_1", true, "uname -n", search, "ls /dev/shm /tmp/linus-dispatch-*; env")
	it := item("sesn_1", func(it queuetest.Item) bool { return len(it.Results) == 3 })
	if strings.TrimSpace(it.Results[1]) != "searched" || strings.Contains(it.Results[2], token) || !strings.Contains(it.Results[2], "worker") || !slices.Equal(it.Keys, []string{token}) {
		t.Errorf("in the VM: %q, by %q", it.Results, it.Keys)
	}
	q.Add("sesn_2", true, "uname -n")
	other := item("sesn_2", func(it queuetest.Item) bool { return len(it.Results) == 1 })
	if other.Results[0] == it.Results[0] {
		t.Errorf("both sessions are in %s", it.Results[0])
	}

	// A dispatcher that is killed leaves its sessions as they are, and the next one of its name
	// goes on with them; another takes what comes.
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.cmd.Wait()
	next, second := serve("first"), serve("second")
	h.until(t, func() bool { return strings.Count(next.String(), "session continues") == 2 })
	q.Add("sesn_3", true, "uname -n")
	third := item("sesn_3", func(it queuetest.Item) bool { return len(it.Results) == 1 })
	if third.Claimed[0] != "second" || q.Item("sesn_1").Claims != 1 {
		t.Errorf("claimed by %q, %+v", third.Claimed, q.Item("sesn_1"))
	}

	// A lease that is lost ends the VM, and nobody stops what is somebody else's.
	lost := jobOf("sesn_3")
	q.Lose("sesn_3")
	h.until(t, func() bool { return strings.Contains(second.String(), "lease is lost") })
	if code, out := h.exits(t, "job", "wait", lost); code != 75 {
		t.Errorf("the job whose lease was lost: %d, %s", code, out)
	}
	again := item("sesn_3", func(it queuetest.Item) bool { return it.Claims == 2 && it.State == "active" })
	if again.Stops != 0 {
		t.Errorf("%+v", again)
	}
	q.Finish("sesn_3")
	item("sesn_3", stopped)

	// Interrupted, it claims no more, and waits for what goes on.
	for _, d := range []*dispatcher{next, second} {
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	h.until(t, func() bool { return strings.Contains(next.String(), "no more work is taken") })
	q.Finish("sesn_1")
	id := jobOf("sesn_1")
	item("sesn_1", stopped)
	if err := next.cmd.Process.Signal(syscall.SIGTERM); err != nil { // it has no time for the other one
		t.Fatal(err)
	}
	_ = next.cmd.Wait()
	if code := next.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(next.String(), "keep running without their dispatcher") || !strings.Contains(next.String(), jobOf("sesn_2")) {
		t.Errorf("%d; it said %s", code, next)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("the second: %v", err)
	}
	q.Finish("sesn_2")
	item("sesn_2", stopped)
	if code, out := h.exits(t, "job", "wait", id); code != 0 {
		t.Errorf("the first session's job: %d, %s", code, out)
	}
	if out := h.cli(t, "job", "logs", id, "--stderr"); !strings.Contains(out, "dispatched tool") || strings.Contains(out, token) {
		t.Errorf("its log: %s", out)
	}
	if refused := q.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	h.waitGone(t)
	err := filepath.WalkDir(h.state, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // sockets, and what goes meanwhile
		}
		data, _ := os.ReadFile(path) //nolint:gosec // our own
		if bytes.Contains(data, []byte(token)) || bytes.Contains(data, []byte(queuetest.Key)) {
			t.Errorf("a secret is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// The service runs dispatchers of its own, which say how they are. One that cannot work hinders no
// other; sessions outlive the service, and the next one takes them up until it is told to drain.
func TestDispatch_RunByTheService(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	q := queuetest.New(t, 40*time.Second)
	lines := "# Ours.\nclaude --environment " + queuetest.Environment + " --key-file '" + key(t, queuetest.Key) + "' --api " + q.URL + " --name main --sessions 1 --label 'team=the web'\n" +
		"claude --environment env_2 --key-file /nowhere --name bad\n"
	file := filepath.Join(t.TempDir(), "dispatch")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	h.env = append(h.env, "DISPATCH_FILE="+file)
	service := h.start(t, "serve")
	q.Add("sesn_1", true, "uname -n")
	h.until(t, func() bool { return len(q.Item("sesn_1").Results) == 1 })
	h.until(t, func() bool {
		out := h.cli(t, "dispatch", "list")
		return strings.Contains(out, "claude:"+queuetest.Environment) && strings.Contains(out, "serving") && strings.Contains(out, "1/1")
	})
	out := h.cli(t, "job", "list", "--dispatcher", "main", "--queue", "claude")
	id := jobID.FindString(out)
	if status := h.cli(t, "job", "status", id); !strings.Contains(status, "claude:"+queuetest.Environment+" sesn_1") || !strings.Contains(status, "team=the web") {
		t.Errorf("%s: %s", id, status)
	}
	if !strings.Contains(service.String(), "/nowhere") {
		t.Errorf("of the line that cannot work nothing is said: %s", service)
	}
	if err := service.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := service.cmd.Wait(); err != nil {
		t.Errorf("the service: %v", err)
	}
	if it := q.Item("sesn_1"); it.Stops != 0 {
		t.Errorf("%+v", it)
	}
	next := h.start(t, "serve")
	h.until(t, func() bool { return strings.Contains(next.String(), "session continues") })
	h.cli(t, "dispatch", "drain", "main")
	h.until(t, func() bool { return strings.Contains(next.String(), "no more work is taken") })
	if out := h.cli(t, "dispatch", "status", "main"); !strings.Contains(out, "draining") {
		t.Errorf("it is to drain: %s", out)
	}
	q.Add("sesn_2", false, "uname -n")
	q.Finish("sesn_1")
	h.until(t, func() bool { return strings.Contains(next.String(), "has drained") })
	if code, out := h.exits(t, "job", "wait", id); code != 0 {
		t.Errorf("the session's job: %d, %s", code, out)
	}
	if it := q.Item("sesn_2"); it.Claims != 0 {
		t.Errorf("one that drains takes work: %+v", it)
	}
	h.until(t, func() bool { return strings.Contains(next.String(), "takes no work until") }) // it has started again
	h.cli(t, "dispatch", "undrain", "main")
	h.until(t, func() bool { return q.Item("sesn_2").State == "stopped" })
	h.waitGone(t) // while there is an engine
	if err := next.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := next.cmd.Wait(); err != nil {
		t.Errorf("the service: %v", err)
	}
}

// standInRunner is what claude self-hosted-runner is to a dispatcher: it takes one session, of a
// server that says when that has ended, and exits.
const standInRunner = `#!/usr/bin/env bash
set -eu
printf '%s\0' "$@" >/tmp/args
[[ $1 == self-hosted-runner ]]
while (($#)); do
  case $1 in
    --environment-secret-file) secret=$(<"$2") ;;
    --api-url) url=$2 ;;
  esac
  shift
done
exec curl -fsS -H "Authorization: Bearer ${secret}" -H "X-Label: $(uname -n)" --data-binary @/tmp/args "${url}/session"
`

// agentCLI is the program of an agent that a variable names; at night, else, the one that npm
// brings.
func agentCLI(t *testing.T, variable, path string) string {
	t.Helper()
	if named := os.Getenv(variable); named != "" {
		return named
	}
	if !loops.AtNight() {
		t.Skipf("%s does not name it: at night npm brings it", variable)
	}
	return filepath.Join(fromNPM(t, "agents").dir, "node_modules", path)
}

// Runners of Claude Code have a VM each, which is another one after each session. With a
// stand-in for the runner; and the same arguments make the real one register with the same
// secret.
func TestDispatch_KeepsRunnersOfClaudeCode(t *testing.T) {
	t.Parallel()
	const secret = "sk-env-of-a-pool"
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/claude": standInRunner})
	var mu sync.Mutex
	var labels []string
	var args []byte
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer "+secret {
			http.Error(w, "{}", http.StatusUnauthorized)
			return
		}
		mu.Lock()
		labels = append(labels, r.Header.Get("X-Label")+r.URL.Path)
		if r.URL.Path == "/session" {
			args = body
		}
		mu.Unlock()
		if r.URL.Path != "/session" {
			http.Error(w, `{"error":{"message":"no such pool"}}`, http.StatusNotFound)
			return
		}
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(labels)
	}
	d := h.dispatch(t, "claude-code", "--secret-file", key(t, secret), "--sessions", "2", "--replace-after", "1h", "--", "--api-url", server.URL)
	h.until(t, func() bool { return count() == 2 })
	end <- struct{}{}
	h.until(t, func() bool { return count() == 3 })
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(d.String(), "no more work is taken") })
	close(end)
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	mu.Lock()
	if len(labels) != 3 || labels[0] == labels[1] || labels[2] == labels[0] || labels[2] == labels[1] {
		t.Errorf("runners in %q", labels)
	}
	given := strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00")
	mu.Unlock()
	h.waitGone(t)

	t.Run("real runner", func(t *testing.T) {
		real := agentCLI(t, "LINUS_TEST_CLAUDE", "@anthropic-ai/claude-code-linux-x64/claude")
		for i, a := range given[:len(given)-1] {
			switch a {
			case "--environment-secret-file":
				given[i+1] = key(t, secret)
			case "--base-dir":
				given[i+1] = t.TempDir()
			}
		}
		cmd := exec.CommandContext(t.Context(), real, given...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, _ := cmd.CombinedOutput() // nobody lets it register
		mu.Lock()
		defer mu.Unlock()
		if last := labels[len(labels)-1]; !strings.HasSuffix(last, "/register") {
			t.Errorf("the real runner asked for %q; with %q it said %s", last, given, out)
		}
	})
}

// Codex's recipe of the document, with the real codex here and in a VM: what the model has it do is
// done in the VM, in the directory of the same name, and no other machine is offered. With a
// stand-in for the model.
func TestDispatch_CodexReachesAVM(t *testing.T) {
	t.Parallel()
	codex := agentCLI(t, "LINUS_TEST_CODEX", "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex")
	api := newAgentAPI(t, "", "", nil)
	api.command = "echo in $(uname -n) at $PWD"
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/codex": "#!/bin/sh\nexec /home/debian/codex \"$@\"\n"})
	h.cli(t, "vm", "create", "hands")
	h.cli(t, "vm", "cp", codex, "hands:codex") // too large for each clone of the template
	home, project := t.TempDir(), t.TempDir()
	place(t, filepath.Join(home, ".codex"), map[string]string{
		"environments.toml": codexRecipe(t),
		"config.toml": fmt.Sprintf("model = \"a-model\"\nmodel_provider = \"here\"\n[model_providers.here]\nname = \"here\"\nbase_url = \"%s/v1\"\n"+
			"env_key = \"OPENAI_API_KEY\"\nwire_api = \"responses\"\nsupports_websockets = false\n", api.url),
	})
	asks := func() string {
		cmd := exec.CommandContext(t.Context(), codex, "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "Which machine is this?")
		cmd.Dir = project
		cmd.Env = append(h.env[:len(h.env):len(h.env)], "HOME="+home, "CODEX_HOME="+filepath.Join(home, ".codex"), "OPENAI_API_KEY="+agentKey, "PATH="+binDir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("codex: %v\n%s", err, out)
		}
		return string(out)
	}
	if out := asks(); strings.Contains(out, "in hands at") || !strings.Contains(out, "No such file or directory") {
		t.Errorf("without the directory in the VM: %s", out)
	}
	h.cli(t, "vm", "ssh", "hands", "--", "sudo", "install", "-d", "-m", "777", project)
	if out := asks(); !strings.Contains(out, "in hands at "+project+"\n") {
		t.Errorf("codex said %s", out)
	}
	if said := api.said(); !strings.Contains(said, "<environment_context>") || strings.Contains(said, "<environments>") {
		t.Errorf("the model is offered more than one machine: %s", said)
	}
}

// codexRecipe is the document's environments.toml.
func codexRecipe(t *testing.T) string {
	t.Helper()
	_, recipe, _ := strings.Cut(doctest.Read(t, "../../embed/docs/dispatch.md"), "`~/.codex/environments.toml`:\n\n```toml\n")
	recipe, _, found := strings.Cut(recipe, "```\n")
	if !found {
		t.Fatal("the document has no environments.toml")
	}
	return recipe
}

// A session has a VM of a pool, or one that is restored from a checkpoint, if there is one like it:
// with its own secret alone, and not what another session has left.
func TestDispatch_SessionsOfAPoolAndOfACheckpoint(t *testing.T) {
	loops.AtNightOnly(t, "TestDispatch_ServesClaudesSessionsInVMs serves sessions, TestPool_JobStartsAtOnce and TestCheckpoint_JobsGoOnFromIt have such VMs, each its own")
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	made := strings.Fields(h.cli(t, "template", "checkpoint", "build", "--wait")) // checkpoint NAME of ...
	if len(made) < 2 || made[len(made)-1] != "ready" {
		t.Fatalf("the checkpoint: %q", made)
	}
	h.makePool(t, "--warm", "1")
	q := queuetest.New(t, 40*time.Second)
	file := key(t, queuetest.Key)
	vms := map[string]bool{}
	for i, of := range []struct{ start, source string }{{"any", "pool"}, {"restore", "restored"}, {"restore", "restored"}} {
		d := h.dispatch(t, "claude", "--environment", queuetest.Environment, "--key-file", file, "--api", q.URL, "--name", "it", "--start", of.start)
		session := fmt.Sprintf("sesn_%d", i)
		token := q.Add(session, false, "uname -n", "ls -A /dev/shm; ls -A; echo mine >left; env")
		h.until(t, func() bool { return q.Item(session).State == "stopped" })
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := d.cmd.Wait(); err != nil {
			t.Errorf("start %s: the dispatcher: %v", of.start, err)
		}
		it := q.Item(session)
		id := jobID.FindString(h.cli(t, "job", "list", "--label", "dispatch/session="+session))
		if status := h.cli(t, "job", "status", id, "-o", "json"); !strings.Contains(status, `"source": "`+of.source+`"`) {
			t.Errorf("start %s: %s", of.start, status)
		}
		if len(it.Results) != 2 || !slices.Equal(it.Keys, []string{token}) || strings.Contains(it.Results[1], "left") || strings.Contains(it.Results[1], "sessions-token") || vms[it.Results[0]] {
			t.Fatalf("start %s: %+v; VMs before: %v", of.start, it, vms)
		}
		vms[it.Results[0]] = true
	}
	if refused := q.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	h.cli(t, "template", "checkpoint", "rm", made[1])
	h.emptyPool(t)
}

// Dispatchers of two engines on one database share a queue. When one is lost with its engine, its
// session goes on: the other engine has the job, and a dispatcher of the same name there counts it.
func TestDispatch_OfTwoEngines(t *testing.T) {
	loops.AtNightOnly(t, "TestClaude_DrainsAndTakesUp has sessions taken up, TestEngines_OneIsKilledInTheMiddleOfAJob a job")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	q := queuetest.New(t, 40*time.Second)
	file := key(t, queuetest.Key)
	serve := func(h *host, name string) *dispatcher {
		return h.dispatch(t, "claude", "--environment", queuetest.Environment, "--key-file", file, "--api", q.URL, "--name", name, "--sessions", "1")
	}
	by := map[string]queuetest.Item{}
	served := func(session string) {
		t.Helper()
		h.until(t, func() bool { return len(q.Item(session).Results) == 1 })
		it := q.Item(session)
		by[it.Claimed[0]] = it
	}
	q.Add("sesn_1", true, "uname -n")
	one := serve(h, "one")
	served("sesn_1") // while there is no other engine that could run its job
	other := h.another(t)
	q.Add("sesn_2", true, "uname -n")
	two := serve(other, "two")
	served("sesn_2")
	if len(by) != 2 || by["one"].Results[0] == by["two"].Results[0] {
		t.Fatalf("claimed: %+v", by)
	}
	if err := one.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = one.cmd.Wait()
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	other.until(t, func() bool { return other.logs("job adopted") })
	next := serve(other, "one")
	other.until(t, func() bool { return strings.Contains(next.String(), "session continues") })
	for _, d := range []*dispatcher{next, two} {
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for _, it := range by {
		q.Finish(it.Session)
		other.until(t, func() bool { return q.Item(it.Session).State == "stopped" })
		if got := q.Item(it.Session); got.Claims != 1 {
			t.Errorf("%+v", got)
		}
		id := jobID.FindString(other.cli(t, "job", "list", "--label", "dispatch/session="+it.Session))
		if code, out := other.exits(t, "job", "wait", id); code != 0 {
			t.Errorf("the job of %s: %d, %s", it.Session, code, out)
		}
	}
	for _, d := range []*dispatcher{next, two} {
		if err := d.cmd.Wait(); err != nil {
			t.Errorf("%v, it said %s", err, d)
		}
	}
	if refused := q.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
	other.waitGone(t)
}
