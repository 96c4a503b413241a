package actions

import (
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
				for name, text := range map[string]string{"run.sh": fmt.Sprintf(standIn, tt.runner), "_diag/Worker_1.log": "of the template"} {
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
