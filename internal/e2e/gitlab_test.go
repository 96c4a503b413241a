package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"al.essio.dev/pkg/shellescape"

	"linus/internal/doctest"
	"linus/internal/lab"
)

// gitlabRunner stands in for GitLab Runner with the custom executor: it calls its stages as GitLab
// Runner 19.4.0 does (executors/custom/custom.go and command/command.go there), with the variables,
// the files, the arguments and the exit codes that docs/executors/custom.md names.
type gitlabRunner struct {
	t       *testing.T
	h       *host
	dir     string
	env     []string
	own     []string // the runner's own environment; nil: the host's
	prepare []string // prepare_args
	trace   transcript
}

func (h *host) gitlab(t *testing.T, id int, vars map[string]string, prepare ...string) *gitlabRunner {
	t.Helper()
	r := &gitlabRunner{t: t, h: h, dir: t.TempDir(), prepare: prepare}
	all := []map[string]any{}
	for key, value := range vars {
		r.env = append(r.env, "CUSTOM_ENV_"+key+"="+value)
		if key != "CI_JOB_SERVICES" && key != "CI_JOB_IMAGE" {
			all = append(all, map[string]any{"key": key, "value": value, "public": !strings.Contains(key, "SECRET"), "file": false, "masked": false})
		}
	}
	data, err := json.Marshal(map[string]any{
		"id": id, "token": fmt.Sprintf("glcbt-64_of-job-%d", id), "variables": all,
		"job_info":    map[string]any{"name": "unit tests", "stage": "test", "project_id": 7, "project_name": "app", "project_full_path": "acme/app"},
		"runner_info": map[string]any{"timeout": 600}, "image": map[string]any{"name": vars["CI_JOB_IMAGE"]}, "services": []any{},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(r.dir, "response.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("job %d:\n%s", id, &r.trace)
		}
	})
	return r
}

// command is a stage's program, which runs in a process group of its own.
func (r *gitlabRunner) command(args ...string) *exec.Cmd {
	argv := append(gitlabArgs(r.t, args[0]), args[1:]...)
	cmd := exec.CommandContext(r.t.Context(), r.h.linus(), argv...)
	cmd.Dir = r.dir
	own := r.h.env
	if r.own != nil {
		own = r.own
	}
	cmd.Env = append(append(own[:len(own):len(own)], "TMPDIR="+r.dir, "BUILD_FAILURE_EXIT_CODE=81", "SYSTEM_FAILURE_EXIT_CODE=82",
		"BUILD_EXIT_CODE_FILE="+filepath.Join(r.dir, "build_exit_code"), "JOB_RESPONSE_FILE="+filepath.Join(r.dir, "response.json")), r.env...)
	cmd.Stdout, cmd.Stderr = &r.trace, &r.trace
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

func (r *gitlabRunner) stage(args ...string) (code int) {
	r.t.Helper()
	err := r.command(args...).Run()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		return exit.ExitCode()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return 0
}

// gitlabArgs are a stage's arguments in the document's config.toml.
func gitlabArgs(t *testing.T, stage string) (args []string) {
	t.Helper()
	_, text, _ := strings.Cut(doctest.Read(t, "../../embed/docs/dispatch.md"), "\n    "+stage+"_args = ")
	text, _, found := strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(text), &args); err != nil || !found { // TOML's lists of strings are JSON's
		t.Fatalf("%s_args in the document: %q, %v", stage, text, err)
	}
	return args
}

// script is a file as the runner's bash writer makes them.
func (r *gitlabRunner) script(commands string) string {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.dir, "script")
	path := filepath.Join(dir, "script.")
	if err == nil {
		err = os.WriteFile(path, []byte("set -eo pipefail\nset +o noclobber\n: | eval "+shellescape.Quote(commands)+"\nexit 0\n"), 0o700) //nolint:gosec // a program
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *gitlabRunner) run(stage, commands string) (code int) {
	r.t.Helper()
	return r.stage("run", r.script(commands), stage)
}

func (r *gitlabRunner) has(text string) {
	r.t.Helper()
	if !strings.Contains(r.trace.String(), text) {
		r.t.Errorf("the trace has no %q", text)
	}
}

// A GitLab job's stages run in a VM of its own, with its directories and services, and what fails
// is told as the runner wants it.
func TestGitLab_AJobHasAVM(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), map[string]string{"home/debian/.local/bin/docker": standInDocker})
	const secret = "glpat-a-secret-of-the-job"
	r := h.gitlab(t, 4711, map[string]string{
		"CI_JOB_ID": "1; rm -rf /", "MY_SECRET": secret, "POSTGRES_DB": "app", "LINUS_MEMORY": "1G", "LINUS_CPU": "32", "EVIL\nKEY": "x",
		"CI_JOB_SERVICES": `[{"name":"registry.example:5000/acme/postgres:17","alias":"db","entrypoint":null,"command":["-c","fsync=off"],"variables":{"POSTGRES_PASSWORD":"it's"}}]`,
	}, "--allow-variables", "cpu")
	out, err := func() ([]byte, error) { c := r.command("config"); c.Stdout = nil; return c.Output() }()
	var told struct {
		BuildsDir string `json:"builds_dir"`
		Shared    bool   `json:"builds_dir_is_shared"`
		Hostname  string
		Driver    struct{ Name string }
	}
	if err != nil || json.Unmarshal(out, &told) != nil || told.BuildsDir != "/builds" || told.Shared || told.Driver.Name != "linus" || !strings.HasPrefix(told.Hostname, "gitlab-4711-") {
		t.Fatalf("config: %s, %v", out, err)
	}
	r.env = append(r.env, "CUSTOM_ENV_LINUS_CPU=2")
	if code := r.stage(append([]string{"prepare"}, r.prepare...)...); code != 0 {
		t.Fatalf("prepare: %d", code)
	}
	r.has("section_start:")
	r.has(":linus_vm[collapsed=true]\r\x1b[0KCreating the VM " + told.Hostname)
	r.has(":linus_vm\r\x1b[0K")
	r.has("LINUS_MEMORY is ignored: the runner's owner does not allow it (--allow-variables memory)")
	show := h.cli(t, "vm", "show", told.Hostname)
	for _, want := range []string{"2 cores, 768M", "expires", "gitlab/job=4711", "gitlab/project=acme/app", "gitlab/name=unit tests"} {
		if !strings.Contains(show, want) {
			t.Errorf("the VM has no %q: %s", want, show)
		}
	}
	// Prepared once more, as by a runner that has not seen the answer, it is the same VM.
	if code := r.stage(append([]string{"prepare"}, r.prepare...)...); code != 0 {
		t.Fatalf("prepare again: %d", code)
	}
	if n := h.ourVMs(t); n != 1 {
		t.Errorf("%d VMs", n)
	}
	if code := r.run("get_sources", "mkdir -p /builds/acme/app && cd /builds/acme/app && echo source >main.c && echo \"token $MY_TOKEN\""); code != 0 {
		t.Errorf("get_sources: %d", code)
	}
	if code := r.run("build_script", "echo \"$(cat /builds/acme/app/main.c) on $(uname -n)\"; cat /tmp/docker-args /tmp/docker-env; grep ' db ' /etc/hosts; read -r line || echo no input; ls /dev/shm; echo to stderr >&2"); code != 0 {
		t.Errorf("build_script: %d", code)
	}
	for _, want := range []string{
		"source on " + told.Hostname, "--network-alias registry.example-acme-postgres", "--network-alias registry.example__acme__postgres", "-- registry.example:5000/acme/postgres:17 -c fsync=off",
		"POSTGRES_PASSWORD=it's", "POSTGRES_DB=app", "127.9.9.9 db", "no input", "to stderr",
	} {
		r.has(want)
	}
	if strings.Contains(r.trace.String(), "MY_SECRET=") || strings.Contains(r.trace.String(), "linus-stage") {
		t.Error("a service or the VM's memory has what is not for it")
	}
	// The exit code of the script is told, for allow_failure.
	if code := r.run("step_script", "exit 3"); code != 81 {
		t.Errorf("a script that fails: %d", code)
	}
	if told, err := os.ReadFile(filepath.Join(r.dir, "build_exit_code")); err != nil || string(told) != "3" {
		t.Errorf("the exit code is told as %q, %v", told, err)
	}

	// A job that is cancelled: the runner ends its stage, and what that has started.
	cmd := r.command("run", r.script("trap 'echo ends >/tmp/ended; exit 1' TERM; echo begins; sleep 600 & wait"), "step_script")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(r.trace.String(), "begins\n") })
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 82 {
		t.Errorf("a stage that was ended: %d", code)
	}
	if code := r.run("after_script", "cat /tmp/ended; ! pgrep -x sleep"); code != 0 {
		t.Errorf("after_script: %d", code)
	}
	r.has("ends\n")

	// The engine dies within a stage, which goes on; the next one has its end.
	cmd = r.command("run", r.script("echo half; until [[ -e /tmp/go-on ]]; do sleep 0.1; done; echo whole; exit 4"), "step_script")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(r.trace.String(), "half\n") })
	if !h.killEngine() {
		t.Error("no engine to kill")
	}
	h.cli(t, "vm", "ssh", told.Hostname, "--", "touch", "/tmp/go-on")
	_ = cmd.Wait()
	r.has("half\nwhole\n")
	if code := cmd.ProcessState.ExitCode(); code != 81 {
		t.Errorf("a stage whose engine was killed: %d", code)
	}

	// The runner dies within a stage: its clean-up ends that, and the VM.
	cmd = r.command("run", r.script("echo goes on; sleep 600"), "step_script")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(r.trace.String(), "goes on\n") })
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for range 2 { // once more there is nothing to do
		if code := r.stage("cleanup"); code != 0 {
			t.Errorf("cleanup: %d", code)
		}
	}
	h.waitGone(t)
	if strings.Contains(h.wholeLog(), secret) {
		t.Error("the log has the job's secret")
	}
	// A VM that is lost fails the runner's stage, and not the job's script.
	if code := r.run("step_script", "true"); code != 82 {
		t.Errorf("without a VM: %d", code)
	}
}

// standInDocker is what docker is to a job's VM.
const standInDocker = `#!/usr/bin/env bash
case "$1" in
  run) printf '%s ' "$@" >>/tmp/docker-args; cat >>/tmp/docker-env ;;
  inspect) case "$3" in *IPAddress*) echo 127.9.9.9 ;; esac ;;
esac
`

// What a job gets wrong fails it at once; what is ours the runner tries again.
func TestGitLab_FailuresOfJobsAndOfOurs(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	for name, c := range map[string]struct {
		vars map[string]string
		args []string
		code int
		says string
	}{
		"no Docker":   {map[string]string{"CI_JOB_SERVICES": `[{"name":"redis:7"}]`}, nil, 81, "the job's services need Docker, which its VM does not have"},
		"no services": {map[string]string{"CI_JOB_SERVICES": `[{"name":"--privileged"}]`}, nil, 81, "services[0]: \"--privileged\" is not an image's name"},
		"memory":      {map[string]string{"LINUS_MEMORY": "$(id)"}, []string{"--allow-variables", "memory"}, 81, "$(id)"},
		"image":       {map[string]string{"CI_JOB_IMAGE": "golang:1.25"}, []string{"--image", "golang:1.25=nothing"}, 82, "nothing"},
		"no image":    {map[string]string{"CI_JOB_IMAGE": "golang:1.25"}, []string{"--image", "ruby=x", "--memory", "1"}, 82, "the image golang:1.25 is ignored: it is not one of the runner's (--image)"},
		"ours":        {nil, []string{"--template", "nothing"}, 82, "nothing"},
		"options":     {nil, []string{"--at-end", "suspend", "--ttl", "1h"}, 82, "--at-end and --idle-suspend are not for the VMs of jobs"},
	} {
		r := h.gitlab(t, 100, c.vars)
		if code := r.stage(append([]string{"prepare"}, c.args...)...); code != c.code || !strings.Contains(r.trace.String(), c.says) {
			t.Errorf("%s: %d", name, code)
		}
		if code := r.stage("cleanup"); code != 0 {
			t.Errorf("%s: cleanup: %d", name, code)
		}
	}

	// The VM is lost in a stage.
	r := h.gitlab(t, 101, nil)
	if code := r.stage("prepare"); code != 0 {
		t.Fatalf("prepare: %d", code)
	}
	cmd := r.command("run", r.script("echo begins; sleep 600"), "step_script")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(r.trace.String(), "begins\n") })
	vm := regexp.MustCompile(`(?m)^(\d+) +gitlab-101-`).FindStringSubmatch(h.cli(t, "vm", "list"))
	if vm == nil {
		t.Fatal("no VM")
	}
	h.qm(t, "stop", vm[1])
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 82 {
		t.Errorf("a stage whose VM is lost: %d", code)
	}
	// The VM is being made when the runner gives up; the next attempt has a new one.
	if code := r.stage("cleanup"); code != 0 {
		t.Errorf("cleanup: %d", code)
	}
	prepare := r.command("prepare")
	if err := prepare.Start(); err != nil {
		t.Fatal(err)
	}
	h.until(t, func() bool { return strings.Contains(h.cli(t, "vm", "list"), "gitlab-101-") })
	if err := syscall.Kill(-prepare.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = prepare.Wait()
	for _, stage := range []string{"cleanup", "prepare"} {
		if code := r.stage(stage); code != 0 {
			t.Errorf("%s: %d", stage, code)
		}
	}
	if code := r.run("step_script", "true"); code != 0 {
		t.Errorf("after a second attempt: %d", code)
	}
	if code := r.stage("cleanup"); code != 0 {
		t.Errorf("cleanup: %d", code)
	}
	h.waitGone(t)
}

// A runner on another machine goes through a server, by a token that may do no more than it has to.
func TestGitLab_ThroughAServer(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	url := h.serveHTTP(t)
	token := strings.TrimSpace(h.cli(t, "token", "create", "runner", "--role", "run", "--toolsets", "jobs,exec,vm"))
	dir := t.TempDir()
	r := h.gitlab(t, 4712, nil)
	r.own = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LINUS_SERVER=" + url, "LINUS_TOKEN_FILE=" + key(t, regexp.MustCompile(`linus_\S+`).FindString(token)), "LINUS_STATE_DIR=" + filepath.Join(dir, "state")}
	for _, stage := range []string{"config", "prepare"} {
		if code := r.stage(stage); code != 0 {
			t.Fatalf("%s: %d", stage, code)
		}
	}
	// The VM of a job that has failed stays, if that is wanted, and no other.
	if code := r.run("get_sources", "exit 4"); code != 81 {
		t.Errorf("get_sources: %d", code)
	}
	if code := r.run("step_script", "true"); code != 0 {
		t.Errorf("step_script: %d", code)
	}
	if code := r.stage("cleanup", "--keep-on-failure"); code != 0 {
		t.Errorf("cleanup of a job that has not failed: %d", code)
	}
	h.waitGone(t)
	if code := r.stage("prepare"); code != 0 {
		t.Fatalf("prepare: %d", code)
	}
	if code := r.run("step_script", "echo in $(uname -n); exit 5"); code != 81 {
		t.Errorf("step_script: %d", code)
	}
	r.has("in gitlab-4712-")
	if code := r.stage("cleanup", "--keep-on-failure", "--keep-for", "2h", "--keep-at-most", "1"); code != 0 {
		t.Errorf("cleanup of a job that has failed: %d", code)
	}
	r.has(" stays for 2h0m0s; linus vm ssh gitlab-4712-")
	if n := h.ourVMs(t); n != 1 {
		t.Errorf("%d VMs", n)
	}
	// Of as many as may be kept the newest.
	next := h.gitlab(t, 4713, nil)
	next.own = r.own
	if code := next.stage("prepare"); code != 0 {
		t.Fatalf("prepare: %d", code)
	}
	if code := next.run("step_script", "exit 5"); code != 81 {
		t.Errorf("step_script: %d", code)
	}
	if code := next.stage("cleanup", "--keep-on-failure", "--keep-at-most", "1"); code != 0 {
		t.Errorf("cleanup of another job that has failed: %d", code)
	}
	h.until(t, func() bool {
		list := h.cli(t, "vm", "list")
		return strings.Contains(list, "gitlab-4713-") && !strings.Contains(list, "gitlab-4712-")
	})
	if code := next.stage("cleanup"); code != 0 {
		t.Errorf("cleanup: %d", code)
	}
	h.waitGone(t)
}
