package e2e

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/loops"
)

// liar is a task that puts a job runner of its own in place of linus's, as any
// task that is root in its VM can: that one says the task has ended, and does in
// collecting what lies says.
func liar(size, files, lies string) string {
	return `set -e
cd /opt/job-runner
cat >liar <<'END'
printf 'LINUS_BEGIN:%s\n' "$LINUS_NONCE"
case $1 in
  ` + lies + `
  probe | stop) printf 'LINUS_%s\n' JOB_STATE:exited EXIT_CODE:0 EXIT_REASON:exit STDOUT_BYTES:` + size + ` STDERR_BYTES:0 DURATION:1 RUNNER_ALIVE:yes ;;
esac
printf 'LINUS_RESULT:SUCCESS\nLINUS_END:%s\n' "$LINUS_NONCE"
END
` + files + `
mv -f liar job-runner.sh
` + withToken + `
curl -sS "${with[@]}" -H 'Content-Type: application/json' "$url/complete" \
  -d "{\"job_id\":\"$LINUS_JOB_ID\",\"status\":\"success\",\"exit_code\":0,\"output\":\"\",\"duration_seconds\":1}"
sleep 1000`
}

// withToken makes a task able to send callbacks, as who has seen the token is.
const withToken = `url=$(sed -n 's/^CALLBACK_URL=//p' /opt/job-runner/settings)
[[ ! -e /var/lib/linus/job/callback_url ]] || url=$(</var/lib/linus/job/callback_url)
url+=/callback/$LINUS_JOB_ID with=(-H "Authorization: Bearer $(</run/linus/token)")`

// A VM that lies while its job's output is collected holds nobody up: the job
// ends, at the latest when it is cancelled, other clients' jobs go through
// meanwhile, and the VM is gone.
func TestHostileCollect(t *testing.T) {
	loops.AtNightOnly(t, "TestCollect_OfASlyVMEnds, TestCancel_EndsCollecting and TestFiles_AHostileVMIsBounded have such VMs, TestHostileCollect_WritesNothingThatRunsHere whole programs")
	t.Parallel()
	tests := []struct {
		name, size, files, lies string
		cancel                  bool // else it ends by itself
		says                    string
	}{
		{name: "an artifact that is a pipe", size: "0", files: "mkfifo /tmp/f; printf '%s\\0' out/x /tmp/f 1 0644 $(printf x | sha256sum | head -c 64) >/var/lib/linus/job/artifacts.index", lies: "artifacts) ;;", says: "not a regular file"},
		{name: "a list of artifacts a byte a second", size: "0", lies: "artifacts) while :; do printf x; sleep 1; done ;;", cancel: true, says: "collecting was cancelled by user"},
		{name: "a list of artifacts without an end", size: "0", lies: "artifacts) exec yes ;;", says: "wrote more than"},
		{name: "a list that never comes, and no exit status", size: "0", lies: "artifacts) exec sleep 1000 ;;", cancel: true, says: "collecting was cancelled by user"},
		{name: "sizes nothing has", size: "1000000000000000", says: "of 5242880 bytes"},
		{name: "a stdout that is short", size: "1000", files: "printf short >/tmp/f; mv -f /tmp/f /var/lib/linus/job/stdout", says: "stdout ends at 5 of 1000 bytes"},
		{name: "a stdout that is a pipe", size: "1000000", files: "mkfifo /tmp/f; mv -f /tmp/f /var/lib/linus/job/stdout", says: "not a regular file"},
	}
	h := newHost(t, lab.DriverProcess, "MAX_JOBS=20")
	l, c, other := newLedger(t), h.connect(t), h.connect(t)
	ids := make([]string, len(tests))
	for i, tt := range tests { // all at once: one of them takes as long as a call may
		m := script(liar(tt.size, tt.files, tt.lies))
		m["artifacts"] = []any{"out/*"}
		ids[i] = c.submit(m)
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, other, id := &mcpClient{c.Client, t}, &mcpClient{other.Client, t}, ids[i]
			if tt.cancel {
				c.until(id, func(j map[string]any) bool { return j["phase"] == "collect" })
				w := work{n: i, lines: 10, sleep: "0"}
				other.endsWhole(l, other.submit(script(l.task(w))), w)
				if j := c.call("get_job_status", map[string]any{"job_id": id}); j["phase"] != "collect" || j["status"] != "running" {
					t.Errorf("it was not held up: %v", j)
				}
				if got := c.call("cancel_job", map[string]any{"job_id": id}); got["cancelled"] != true {
					t.Errorf("cancel_job: %v", got)
				}
			}
			c.endsAs(id, "success", "exit_status")
			got := c.call("get_job_result", map[string]any{"job_id": id})
			why, _ := got["output_incomplete_reason"].(string)
			if skipped, ok := got["artifacts_skipped"].([]any); ok && why == "" {
				why, _ = skipped[0].(map[string]any)["reason"].(string)
			}
			if !strings.Contains(why, tt.says) || got["artifacts_skipped_count"] != 1.0 {
				t.Errorf("the result does not say %q: %v", tt.says, got)
			}
			if text := c.fail("cancel_job", map[string]any{"job_id": id}); !strings.Contains(text, "Job already completed") {
				t.Errorf("cancel after the end: %q", text)
			}
		})
	}
	h.waitGone(t)
}

// A task that has put a runner of its own in place of linus's names files that are run by
// themselves in a repository here: none of those is written, whichever verb brings the files, and the next
// commit runs nothing.
func TestHostileCollect_WritesNothingThatRunsHere(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	here, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	do := func(name string, args ...string) (code int, text string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = here, append(slices.Clone(h.env), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	commit := func() (int, string) {
		return do("git", "-c", "user.name=a", "-c", "user.email=a@example", "commit", "-q", "--allow-empty", "-m", "x")
	}
	if code, said := do("git", "init", "-q"); code != 0 {
		t.Fatal(said)
	}
	if code, said := commit(); code != 0 {
		t.Fatal(said)
	}
	_, before := do("find", ".git", "-not", "-path", "*/objects/*", "-type", "f", "-path", "*hooks*", "-o", "-name", "config")

	// evil is a file for each name, and lists them as the artifacts, below a directory; what
	// is named so does write the mark.
	evil := func(below string, names ...string) string {
		text := "printf '#!/bin/sh\ntouch " + ran + "\n' >/tmp/evil\n: >/var/lib/linus/job/artifacts.index\n"
		for _, name := range names {
			text += "printf '%s\\0' " + below + name + " /tmp/evil $(stat -c %s /tmp/evil) 0755 $(sha256sum </tmp/evil | head -c 64) >>/var/lib/linus/job/artifacts.index\n"
		}
		return text
	}
	runs := []string{".git/hooks/post-commit", ".git/hooks/pre-commit", ".GIT/config", "sub/.git/hooks/post-commit", ".envrc", ".bashrc", ".vscode/tasks.json", "../out"}
	task := func(below string, names ...string) string {
		return liar("0", evil(below, append(slices.Clone(runs), names...)...), "artifacts) ;;")
	}
	// clean checks what has been written: what was asked for, and nothing that runs.
	clean := func(how, said string, want ...string) {
		t.Helper()
		for _, name := range want {
			if _, err := os.Stat(filepath.Join(here, name)); err != nil {
				t.Errorf("%s: %v\n%s", how, err, said)
			}
		}
		_ = filepath.WalkDir(here, func(at string, d fs.DirEntry, err error) error {
			if name, _ := filepath.Rel(here, at); err == nil && !d.IsDir() && !strings.HasPrefix(name, ".git"+string(filepath.Separator)) && !slices.Contains(want, name) {
				t.Errorf("%s has written %s\n%s", how, name, said)
			}
			return err
		})
		if _, after := do("find", ".git", "-not", "-path", "*/objects/*", "-type", "f", "-path", "*hooks*", "-o", "-name", "config"); after != before {
			t.Errorf("%s has changed .git: %s, was %s", how, after, before)
		}
		if code, text := commit(); code != 0 {
			t.Error(text)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s: a commit has run what the VM has named\n%s", how, said)
		}
		for _, name := range want {
			_ = os.RemoveAll(filepath.Join(here, strings.Split(name, "/")[0]))
		}
	}

	// The manifest's only pattern, and one that takes all.
	for pattern, want := range map[string][]string{"fix.patch": {"fix.patch"}, "**": {"fix.patch", "d/x"}} {
		manifest := filepath.Join(t.TempDir(), "job.json")
		text, err := json.Marshal(map[string]any{"task": task("", "fix.patch", "d/x"), "agentType": "script", "artifacts": []string{pattern}})
		if err == nil {
			err = os.WriteFile(manifest, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, said := do(h.linus(), "job", "submit", "--wait", "--manifest", manifest)
		id := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(said)
		_, got := do(h.linus(), "job", "artifacts", "get", id)
		clean("artifacts get of "+pattern, said+got, want...)
	}

	_, said := do(h.linus(), "run", "--pull", "site", "--", "bash", "-c", task(`"linus-run/${OLDPWD##*/}/site/"`, "ok"))
	clean("run --pull", said, "site/ok")
	if !strings.Contains(said, "not pulled") {
		t.Errorf("it does not say what is not pulled: %s", said)
	}

	h.cli(t, "vm", "create", "dev")
	h.cli(t, "vm", "ssh", "dev", "--", "sh", "-c", "mkdir -p proj/.git/hooks proj/sub/.git/hooks proj/.vscode && cd proj && printf '#!/bin/sh\ntouch "+ran+"\n' >.git/hooks/post-commit && chmod 755 .git/hooks/post-commit && "+
		"cp .git/hooks/post-commit sub/.git/hooks/ && cp .git/hooks/post-commit .envrc && cp .envrc .vscode/tasks.json && cp .envrc .bashrc && echo '[core]' >.git/config && echo ok >ok && ln -s /etc out")
	for from, want := range map[string]string{"dev:proj/.": "ok", "dev:proj": "proj/ok"} {
		_, said = do(h.linus(), "vm", "cp", from, ".")
		clean("vm cp "+from, said, want)
	}
	_, said = do(h.linus(), "vm", "cp", "--force", "dev:proj/.", ".") // brings the rest, but for git's own
	clean("vm cp --force", said, "ok", ".envrc", ".bashrc", ".vscode/tasks.json")
}

// Who has seen a job's token can send output in its name; what is kept in the end
// is what the VM has.
func TestHostileCollect_ForgedOutput(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	m := script(withToken + `
curl -sS "${with[@]}" -H 'Content-Type: application/octet-stream' \
  --data-binary "a lie, and a lie, and a lie" "$url/output?stream=stdout&offset=0" >&2
echo the truth`)
	m["statusMode"] = "streaming"
	id := c.submit(m)
	c.wait(id)
	got := c.call("get_job_result", map[string]any{"job_id": id})
	if got["output"] != "the truth\n" || !strings.Contains(got["stderr"].(string), `"length":27`) && !strings.Contains(got["stderr"].(string), `"length": 27`) {
		t.Errorf("result %v", got)
	}
	h.waitGone(t)
}
