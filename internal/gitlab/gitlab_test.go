package gitlab_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/gitlab"
)

// told is the environment of a stage, with the runner's file.
func told(t *testing.T, response string, more ...string) map[string]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "response.json")
	if err := os.WriteFile(path, []byte(response), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"JOB_RESPONSE_FILE": path}
	for _, pair := range more {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

func TestRead_TakesTheRunnersWordAndNotTheJobs(t *testing.T) {
	env := told(t, `{"id": 42, "token": "secret", "job_info": {"name": "x\u001b[31m\ny", "project_full_path": "acme/`+strings.Repeat("a", 80)+`"}, "runner_info": {"timeout": 60}, "image": {"name": "big"}}`,
		"CUSTOM_ENV_CI_JOB_ID=43", "CUSTOM_ENV_CI_PROJECT_PATH=other/app", "CUSTOM_ENV_LINUS_CPU=2")
	j, err := gitlab.Read(env)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^gitlab-42-[0-9a-f]{8}$`).MatchString(j.VM) || strings.Contains(j.VM, "secret") || j.Timeout != time.Minute || j.Image != "big" || j.Variable("LINUS_CPU") != "2" {
		t.Errorf("%+v", j)
	}
	want := map[string]string{"gitlab/job": "42", "gitlab/project": ("acme/" + strings.Repeat("a", 80))[:63], "gitlab/name": "x[31my"}
	if diff := cmp.Diff(want, j.Labels()); diff != "" {
		t.Error(diff)
	}
	other, err := gitlab.Read(told(t, `{"id": 42, "token": "of another server"}`))
	if err != nil || other.VM == j.VM || other.Timeout != time.Hour {
		t.Errorf("%+v, %v", other, err)
	}
	data, err := j.Config("1.2", "/builds", "/cache")
	var config map[string]any
	if err != nil || json.Unmarshal(data, &config) != nil {
		t.Fatalf("%s, %v", data, err)
	}
	wanted := map[string]any{"driver": map[string]any{"name": "linus", "version": "1.2"}, "hostname": j.VM, "builds_dir": "/builds", "cache_dir": "/cache", "builds_dir_is_shared": false, "shell": "bash"}
	if diff := cmp.Diff(wanted, config); diff != "" {
		t.Error(diff)
	}
}

func TestRead_Refuses(t *testing.T) {
	for text, says := range map[string]string{"": "EOF", "[]": "cannot unmarshal", `{"id": 0, "token": "x"}`: "no job's id and token", `{"id": 1}`: "no job's id and token", `{"id": "1; rm", "token": "x"}`: "cannot unmarshal"} {
		if _, err := gitlab.Read(told(t, text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := gitlab.Read(nil); err == nil || !strings.Contains(err.Error(), "GitLab Runner 14.1 or later") {
		t.Error(err)
	}
	for _, path := range []string{"", "/", "builds", "/a/../b", "/a b", "/$(id)", "/a/"} {
		if gitlab.CheckDirectory(path) == nil {
			t.Errorf("%q is taken", path)
		}
	}
	if err := gitlab.CheckDirectory("/home/debian/builds"); err != nil {
		t.Error(err)
	}
}

func TestFailures_AreWhatTheRunnerWants(t *testing.T) {
	for _, c := range []struct {
		build, system string
		want          gitlab.Failure
	}{{"5", "6", gitlab.Failure{Build: 5, System: 6}}, {"", "", gitlab.Failure{Build: 1, System: 2}}, {"0", "256", gitlab.Failure{Build: 1, System: 2}}, {"x", "-1", gitlab.Failure{Build: 1, System: 2}}} {
		if got := gitlab.Failures(map[string]string{"BUILD_FAILURE_EXIT_CODE": c.build, "SYSTEM_FAILURE_EXIT_CODE": c.system}); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestReady_RefusesServicesThatAreNone(t *testing.T) {
	for text, says := range map[string]string{
		`{}`:                                  "is not the list of a job's services",
		`[{"name":"-v/:/host"}]`:              "is not an image's name",
		`[{"name":"a b"}]`:                    "is not an image's name",
		`[{"name":"redis","alias":"x y;id"}]`: "is not a host's name",
		`[{"name":"redis","variables":{"A=B":"x"}}]`:                "is not a name and a value of one line",
		`[{"name":"redis","variables":{"A":"x\ny"}}]`:               "is not a name and a value of one line",
		"[" + strings.Repeat(`{"name":"a"},`, 20) + `{"name":"a"}]`: "services: there are 21; a job's VM has at most 20",
	} {
		j, err := gitlab.Read(told(t, `{"id": 42, "token": "x"}`, "CUSTOM_ENV_CI_JOB_SERVICES="+text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.Ready("/builds", "/cache")
		if _, is := errors.AsType[*gitlab.JobError](err); !is || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The script is run by bash, with a docker that tells what it was called with.
func TestReady_StartsServices(t *testing.T) {
	bin := t.TempDir()
	programs := map[string]string{
		"docker": `#!/usr/bin/env bash
case "$1" in
  run) printf '<%s>' "$@"; echo; echo "variables: $(paste -sd,)" ;;
  inspect) case "$3" in *IPAddress*) [[ $4 == *-2 ]] || echo 127.0.0.9 ;; *) echo 9/udp ;; esac ;;
  logs) echo "the last words of $4" ;;
esac | tee -a "$SAID"
`,
		"sudo": "#!/bin/sh\nshift\nif [ \"$1\" = sed ]; then echo \"$@\" >>\"$SAID\"; elif [ \"$1\" = tee ]; then cat >>\"$SAID\"; else exec \"$@\"; fi\n",
		"git":  "#!/bin/sh\n",
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil { //nolint:gosec // programs
			t.Fatal(err)
		}
	}
	services := `[{"name":"registry.example:5000/acme/postgres:17@sha256:0123","alias":"db,pg","entrypoint":["/run me","$(id)"],"command":["-c","it's"],"variables":{"PASSWORD":"$HOME ' \" x"}},
		{"name":"redis","alias":"","entrypoint":null,"command":null},{"name":"ends"}]`
	j, err := gitlab.Read(told(t, `{"id": 42, "token": "x", "variables": [{"key":"SHARED","public":true},{"key":"HIDDEN","public":false},{"key":"A_FILE","public":true,"file":true},{"key":"MASKED","public":true,"masked":true},{"key":"LINES","public":true},{"key":"PASSWORD","public":true}]}`,
		"CUSTOM_ENV_CI_JOB_SERVICES="+services, "CUSTOM_ENV_SHARED=s", "CUSTOM_ENV_HIDDEN=h", "CUSTOM_ENV_A_FILE=f", "CUSTOM_ENV_MASKED=m", "CUSTOM_ENV_LINES=a\nb", "CUSTOM_ENV_PASSWORD=of the job"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script, err := j.Ready(dir+"/builds", dir+"/cache")
	if err != nil {
		t.Fatal(err)
	}
	said := filepath.Join(dir, "said")
	cmd := exec.CommandContext(t.Context(), "bash")
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "SAID=" + said, "HOME=" + dir}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, _ := os.ReadFile(said)
	for _, want := range []string{
		"<--network-alias><db>", "<--network-alias><pg>", "<--network-alias><registry.example__acme__postgres>", "<--network-alias><registry.example-acme-postgres>",
		"<--entrypoint></run me><--><registry.example:5000/acme/postgres:17@sha256:0123><$(id)><-c><it's>",
		`variables: CI=true,PASSWORD=$HOME ' " x,SHARED=s` + "\n", "<--><redis>\n", "sed -i / # linus-service-1$/d /etc/hosts\n127.0.0.9 redis # linus-service-1\n", "the last words of linus-service-2",
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in:\n%s", want, data)
		}
	}
	if !strings.Contains(string(out), "warning: linus-service-2 has ended; its last lines:") || !strings.Contains(string(out), "warning: the VM has no gitlab-runner") {
		t.Errorf("it said %s", out)
	}
	for _, made := range []string{"builds", "cache"} {
		if _, err := os.Stat(filepath.Join(dir, made)); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(filepath.Join(bin, "docker")); err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), "bash")
	cmd.Stdin, cmd.Env = strings.NewReader(script), []string{"PATH=" + bin + ":/usr/bin:/bin", "SAID=" + said}
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != gitlab.NoDocker {
		t.Errorf("without Docker: %d, %s", cmd.ProcessState.ExitCode(), out)
	}
}

// A stage's script is in no file once it runs, and has no stdin.
func TestStage_RunsAScriptOfStdin(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", gitlab.Stage)
	cmd.Stdin = strings.NewReader("read -r line || echo none; ls /dev/shm | grep -c linus-stage; false; exit 7\n")
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 7 || string(out) != "none\n0\n" {
		t.Errorf("%d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

func TestSection_IsFolded(t *testing.T) {
	begin, end := gitlab.Section("linus_vm", "Creating the VM", time.Unix(100, 0))
	if begin != "\x1b[0Ksection_start:100:linus_vm[collapsed=true]\r\x1b[0KCreating the VM\n" || end(time.Unix(105, 0)) != "\x1b[0Ksection_end:105:linus_vm\r\x1b[0K" {
		t.Errorf("%q, %q", begin, end(time.Unix(105, 0)))
	}
}
