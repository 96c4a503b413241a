package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/gittest"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/tlstest"
)

var update = flag.Bool("update", false, "rewrite what the scripts compare with")

// TestMain makes this binary be linus as well: with VMs in memory, whose tasks
// run here, at once, in bash. The engine in the background is this binary too.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"linus": func() {
		version = os.Getenv("TEST_VERSION")
		os.Exit(process(fakeBackend))
	}})
}

func fakeBackend(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
	log.Print("said by a library")
	fake := providertest.NewFake()
	fake.Set(providertest.Behaviour{Task: runTask, OnStart: func(j job.Job, p job.Payload) {
		if strings.Contains(p.Manifest.Task, "loses its marker") {
			fake.Doubt(j.VM.ID, true)
		}
		callBack(j, p)
	}})
	return daemon.Backend{Provider: fake, Guest: fake, Close: func() {}}
}

// runTask runs a script task in bash. A task with the word "forever" in it runs
// until it is stopped, one with "echoes" prints its stdin and ends with it, the
// VM of one with "loses its marker" does, and a job that asks for artifacts leaves two, and
// a third that is too big, or 60 that match nothing where it "leaves nothing".
func runTask(p job.Payload) providertest.Task {
	switch {
	case strings.Contains(p.Manifest.Task, "forever"):
		return providertest.Task{Until: make(chan struct{}), Stdout: []byte("so far\n")}
	case strings.Contains(p.Manifest.Task, "echoes"):
		return providertest.Task{Echo: true}
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command("bash", "-c", p.Manifest.Task)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if p.Repository != nil {
		cmd.Dir = checkout(p)
		defer func() { _ = os.RemoveAll(cmd.Dir) }()
	}
	for name, value := range p.Manifest.Env {
		cmd.Env = append(cmd.Environ(), name+"="+value)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		panic(err)
	}
	task := providertest.Task{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: cmd.ProcessState.ExitCode()}
	switch {
	case p.Repository != nil:
		if data := bundle(cmd.Dir, p.Commit); data != nil {
			task.Artifacts = map[string][]byte{job.BundleArtifact: data}
		}
	case len(p.Manifest.Artifacts) == 0:
	case strings.Contains(p.Manifest.Task, "leaves nothing"):
		for i := range 60 {
			task.LeftOut = append(task.LeftOut, job.SkippedArtifact{Path: fmt.Sprintf("none/%d", i), Reason: "nothing there matches"})
		}
	default:
		task.LeftOut = []job.SkippedArtifact{{Path: "huge", Reason: "its 9 bytes are more than the 8 a file may have"}}
		task.Artifacts = map[string][]byte{"dist/a b": []byte("made\n"), "report.xml": []byte("<ok/>\n")}
		if strings.Contains(p.Manifest.Task, "<testsuite") { // it prints its report
			task.Artifacts["report.xml"] = stdout.Bytes()
		}
	}
	return task
}

// checkout makes the work tree of a job's repository, as a runner does.
func checkout(p job.Payload) string {
	dir, err := os.MkdirTemp("", "linus-checkout")
	if err != nil {
		panic(err)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = io.NewSectionReader(p.Repository, 0, p.RepositorySize)
	for _, cmd := range []*exec.Cmd{unpack, exec.Command("git", "-C", dir, "reset", "-q", "--hard", p.Commit)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v: %s", err, out))
		}
	}
	return dir
}

// bundle is what a task has committed; nil: nothing.
func bundle(dir, from string) []byte {
	out, err := exec.Command("git", "-C", dir, "bundle", "create", "-q", "-", "HEAD", "--not", from).Output()
	if err != nil {
		return nil
	}
	return out
}

// callBack reports the end of a task as a runner would, so that nobody waits
// for the engine to ask. The address VMs are told is documentation's: only its
// port is real.
func callBack(j job.Job, p job.Payload) {
	task := runTask(p)
	if task.Until != nil || task.Echo {
		return
	}
	told, err := url.Parse(p.CallbackURL)
	if err != nil {
		panic(err)
	}
	code := task.ExitCode
	status := map[bool]string{true: "success", false: "failed"}[code == 0]
	body := fmt.Sprintf(`{"job_id":%q,"status":%q,"exit_code":%d,"duration_seconds":0}`, j.ID, status, code)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost,
		"http://127.0.0.1:"+told.Port()+"/callback/"+j.ID+"/complete", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.Token)
	if resp, err := http.DefaultClient.Do(req); err == nil { // else the engine asks
		_ = resp.Body.Close()
	}
}

func TestCommandLine(t *testing.T) {
	loops.NotInCheck(t)
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("..", "..", "testdata", "script"),
		UpdateScripts: *update,
		Setup: func(e *testscript.Env) error {
			e.Setenv("LINUS_STATE_DIR", filepath.Join(e.WorkDir, "state"))
			e.Setenv("PROXMOX_HOST", "pve.example")
			e.Setenv("CALLBACK_PORT", "0")
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("TZ", "UTC")
			e.Setenv("LINUS_SECRET_TOKEN", "hunter2")
			e.Defer(func() {
				stop := exec.Command("linus", "serve", "--stop")
				stop.Env = append(os.Environ(), e.Vars...)
				if out, err := stop.CombinedOutput(); err != nil {
					t.Errorf("linus serve --stop: %v\n%s", err, out)
				}
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitfor":    waitFor,
			"busyport":   busyPort,
			"waitjob":    waitJob,
			"id":         keepID,
			"killengine": killEngine,
			"engineof":   engineOf,
			"race":       race,
			"novm":       noVM,

			"waitforgetting": waitForgetting,
			"gitserver":      func(ts *testscript.TestScript, _ bool, args []string) { gitServer(t, ts, args[0]) },
		},
	})
}

// gitserver PASSWORD starts a git server that asks for it, at https://localhost:$PORT/app.git,
// which the engine trusts; its repository is $BARE.
func gitServer(t *testing.T, ts *testscript.TestScript, password string) {
	r := gittest.New(t)
	site, pair := tlstest.Serve(t, gittest.Behind(password, r.HTTP()), "localhost")
	pair.Write(t, ts.MkAbs("ca.pem"), ts.MkAbs("key.pem"))
	_, port, err := net.SplitHostPort(site.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv("PORT", port)
	ts.Setenv("BARE", r.Bare)
	ts.Setenv("SSL_CERT_FILE", ts.MkAbs("ca.pem"))
}

// waitfor FILE waits until the file is there; ! waitfor FILE until it is gone.
func waitFor(ts *testscript.TestScript, gone bool, args []string) {
	path := ts.MkAbs(args[0])
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Lstat(path); (err != nil) == gone {
			return
		}
	}
	ts.Fatalf("waited 2 minutes for %s", path)
}

// waitjob STATUS waits until there is a job of this status; stdout is then the
// list of these, newest first.
func waitJob(ts *testscript.TestScript, _ bool, args []string) {
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ts.Check(ts.Exec("linus", "job", "list", "--status", args[0], "-o", "json"))
		if out := ts.ReadFile("stdout"); strings.Contains(out, `"id"`) {
			return
		}
	}
	ts.Fatalf("waited 2 minutes for a job to be %s", args[0])
}

// waitforgetting N runs job cleanup until it has forgotten so many jobs: a VM
// may still be on its way out.
func waitForgetting(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	for deadline := time.Now().Add(time.Minute); got < want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		ts.Check(ts.Exec("linus", "job", "cleanup", "--older-than", "0s"))
		var n int
		_, err := fmt.Sscan(ts.ReadFile("stdout"), &n)
		ts.Check(err)
		got += n
	}
	if got != want {
		ts.Fatalf("%d jobs deleted, want %d", got, want)
	}
}

// busyport VAR takes a port, for the length of the script, and puts it into VAR.
func busyPort(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// id VAR puts the first job id in the last stdout into VAR.
func keepID(ts *testscript.TestScript, _ bool, args []string) {
	id := jobID.FindString(ts.ReadFile("stdout"))
	if id == "" {
		ts.Fatalf("no job id in stdout")
	}
	ts.Setenv(args[0], id)
}

var jobID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// killengine ends the engine of the state directory without a warning, and
// waits until it is gone.
func killEngine(ts *testscript.TestScript, _ bool, _ []string) {
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile("state/engine.lock")))
	ts.Check(err)
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		lock, err := daemon.Lock(ts.MkAbs("state"))
		if err == nil {
			ts.Check(lock.Close())
			return
		}
	}
	ts.Fatalf("engine %d holds its lock after SIGKILL", pid)
}

// engineof FILE writes the id of the engine's process into FILE.
func engineOf(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ts.ReadFile("state/engine.lock")), 0o600))
}

// noVM runs every command that takes a VM with one that does not exist. Each refuses it
// before it looks at anything else: what it names beside is not there either.
func noVM(ts *testscript.TestScript, _ bool, _ []string) {
	lines := map[string]string{
		"job exec": "--vm nobody -- true", "job submit": "--vm nobody -- true",
		"run": "--vm nobody --repo none -- true", "network test": "nobody github.com", "vm create": "",
		"vm cp": "none nobody:", "vm cat": "nobody:none", "vm ls": "nobody:none", "vm forward": "nobody 80",
		"vm expose": "", "vm unexpose": "nobody none", "vm fork": "nobody", "vm set": "nobody --idle-suspend off", "vm save": "nobody --as none", "vm snapshot": "nobody none", "vm revert": "nobody none", "vm remove-snapshot": "nobody none", "vm list": "",
		"volume attach": "", "volume detach": "", // what comes first: the server, the volume
		"schedule add": "", // the VM is looked for when a run comes
	}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
		path := strings.TrimPrefix(cmd.CommandPath(), "linus ")
		line, special := lines[path]
		switch {
		case cmd.HasSubCommands() || special && line == "":
			return
		case !special && !strings.HasPrefix(path, "vm ") && cmd.Flags().Lookup("vm") == nil && !strings.Contains(cmd.Use, "VM"):
			return
		case !special:
			line = "nobody"
		}
		if err := ts.Exec("linus", append(strings.Fields(path), strings.Fields(line)...)...); err == nil || err.Error() != "exit status 2" {
			ts.Fatalf("%s: %v", path, err)
		}
		const want = "linus: vm: \"nobody\" is not a VM of ours; linus vm list shows the VMs there are\n"
		if said := ts.ReadFile("stderr"); said != want {
			ts.Fatalf("%s: it says %s", path, said)
		}
	}
	visit((&app{}).root(nil))
}

// race N submits N jobs at once, from as many processes, each with settings of its
// own, three times over. A client may be refused for its settings. Every job that
// one was told of is there, and succeeds.
func race(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	environ := []string{}
	for _, name := range []string{"LINUS_STATE_DIR", "PROXMOX_HOST", "CALLBACK_PORT", "HOME", "PATH"} {
		environ = append(environ, name+"="+ts.Getenv(name))
	}
	told := []string{}
	for range 3 {
		var clients sync.WaitGroup
		var mu sync.Mutex
		for i := range n {
			clients.Go(func() {
				cmd := exec.Command("linus", "job", "submit", "-o", "json", "--", "true")
				cmd.Env = append(slices.Clone(environ), fmt.Sprintf("DEFAULT_CPU=%d", i%3+1))
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					told = append(told, jobID.FindString(string(out)))
				} else if !strings.Contains(stderr.String(), "runs with other settings") {
					ts.Logf("a client failed: %v: %s", err, stderr.String())
					told = append(told, "a client that failed")
				}
			})
		}
		clients.Wait()
	}
	ts.Logf("%d of %d jobs were taken", len(told), 3*n)
	if len(told) == 0 {
		ts.Fatalf("every client was refused")
	}
	for _, id := range told {
		ts.Check(ts.Exec("linus", "job", "wait", id))
	}
}
