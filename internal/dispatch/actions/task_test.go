package actions

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A runner that says what it was given, as run.sh of actions/runner v2.330 does: it ends with 0, and
// a job's worker has a log of its own.
const standIn = `#!/bin/bash
echo "arguments: $*"
echo "configuration: ${ACTIONS_RUNNER_INPUT_JITCONFIG:-}"
mkdir -p _diag
%s
`

func TestTask_RunsTheRunnerForOneJob(t *testing.T) {
	if _, err := os.Stat("/opt/actions-runner"); err == nil {
		t.Skip("this machine has a runner of its own")
	}
	for _, tt := range []struct {
		name, runner string
		idle         time.Duration
		code         int
		says         string
	}{
		{"a job", "echo >_diag/Worker_2.log; echo built", time.Minute, 0, "configuration: the-secret\nbuilt\n"},
		{"a job that fails", "echo >_diag/Worker_2.log; echo '[2026-11-28 12:00:00Z INFO Terminal] WRITE LINE: 2026-11-28 12:00:00Z: Job test completed with result: Failed' >_diag/Runner_2.log", time.Minute, 99, "the job has failed"},
		{"a job that does not", "echo >_diag/Worker_2.log; echo '[2026-11-28 12:00:00Z INFO Terminal] WRITE LINE: 2026-11-28 12:00:00Z: Job test completed with result: Succeeded' >_diag/Runner_2.log", time.Minute, 0, ""},
		{"no runner", "", time.Minute, 127, "template build --bootstrap github-runner"},
		{"no job comes", "trap 'echo interrupted; exit 0' INT; while :; do sleep 0.1; done", time.Second, 69, "interrupted\n"},
		{"no job", "echo 'Runner listener exit with terminated error'", time.Minute, 69, "ended without a job (exit status 0)"},
		{"too old", "exit 7", time.Minute, 7, "build it with a newer one"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			item := filepath.Join(home, "item")
			if err := os.WriteFile(item, []byte("the-secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(home, "actions-runner")
			if tt.runner != "" {
				if err := os.MkdirAll(filepath.Join(dir, "_diag"), 0o700); err != nil {
					t.Fatal(err)
				}
				for name, text := range map[string]string{"run.sh": fmt.Sprintf(standIn, tt.runner), "_diag/Worker_1.log": "of the template", "_diag/Runner_1.log": "WRITE LINE: Job of the template's completed with result: Failed\n"} {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
						t.Fatal(err)
					}
				}
			}
			q := &Queue{Options: Options{Idle: tt.idle}}
			cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -eu\nname=s item="+item+"\n"+q.Task())
			cmd.Env = append(os.Environ(), "HOME="+home)
			out, _ := cmd.CombinedOutput() // its status counts
			if cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.says) {
				t.Errorf("%s: %s", cmd.ProcessState, out)
			}
			if _, err := os.Stat(item); tt.runner != "" && !os.IsNotExist(err) {
				t.Errorf("the secret is still there: %v", err)
			}
			if strings.Contains(string(out), "arguments: the") {
				t.Errorf("%s", out)
			}
		})
	}
}

// What GitHub gives a runner it looks at before the first step: a fork's job loses its worker.
func TestTask_RefusesForksInTheVM(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("this machine has no Node.js, which runners bring")
	}
	for _, tt := range []struct {
		name, event string
		forks, runs bool
	}{
		{"a push", `{"ref":"refs/heads/main"}`, false, true},
		{"a pull request of its own", `{"pull_request":{"head":{"repo":{"full_name":"Acme/Web"}}}}`, false, true},
		{"a pull request of a fork", `{"pull_request":{"head":{"repo":{"full_name":"mallory/web"}}}}`, false, false},
		{"a pull request of a fork that is allowed", `{"pull_request":{"head":{"repo":{"full_name":"mallory/web"}}}}`, true, true},
		{"a pull request of a fork that is gone", `{"pull_request":{"head":{"repo":null}}}`, false, false},
		{"a run of a fork's run", `{"workflow_run":{"head_repository":{"full_name":"mallory/web"}}}`, false, false},
		{"nonsense", `{`, false, false},
		{"nothing", ``, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(home, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o700)); err != nil { //nolint:gosec // programs
					t.Fatal(err)
				}
			}
			write("item", "the-secret")
			write("event.json", tt.event)
			write("theirs.sh", "echo the hook of the template\n")
			write("actions-runner/.env", "LANG=C\nACTIONS_RUNNER_HOOK_JOB_STARTED="+home+"/theirs.sh\n")
			write("actions-runner/externals/node20/bin/node", "#!/bin/sh\nexit 1\n") // the newer one counts
			write("actions-runner/externals/node24/bin/node", "#!/bin/sh\nexec "+node+" \"$@\"\n")
			write("worker", "if [ -n \"${ACTIONS_RUNNER_HOOK_JOB_STARTED:-}\" ]; then bash -e \"$ACTIONS_RUNNER_HOOK_JOB_STARTED\" || :; fi\necho the steps\n")
			write("actions-runner/run.sh", "#!/bin/bash\nmkdir _diag\n: >_diag/Worker_1.log\nbash "+home+"/worker\n:\n")
			q := &Queue{Options: Options{Idle: time.Minute, Forks: tt.forks}}
			cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -eu\nname=s item="+home+"/item\n"+q.Task())
			cmd.Env = append(os.Environ(), "HOME="+home, "GITHUB_EVENT_PATH="+home+"/event.json", "GITHUB_REPOSITORY=acme/web")
			out, err := cmd.CombinedOutput()
			if ran := strings.Contains(string(out), "the steps"); ran != tt.runs || err != nil {
				t.Errorf("ran: %t, %v; %s", ran, err, out)
			}
			if tt.runs && !strings.Contains(string(out), "the hook of the template") {
				t.Errorf("the template's own hook has not run: %s", out)
			}
			if host, _ := os.Hostname(); !strings.Contains(string(out), "VM "+host+": linus vm ssh "+host) {
				t.Errorf("the job's log does not say where it runs: %s", out)
			}
		})
	}
}
