package e2e

import (
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
	t.Parallel()
	tests := []struct {
		name, size, files, lies string
		cancel                  bool // else it ends by itself
		says                    string
	}{
		{name: "a stdout that is a pipe", size: "1000000", files: "mkfifo /tmp/f; mv -f /tmp/f /var/lib/linus/job/stdout", says: "not a regular file"},
		{name: "an artifact that is a pipe", size: "0", files: "mkfifo /tmp/f; printf '%s\\0' out/x /tmp/f 1 0644 $(printf x | sha256sum | head -c 64) >/var/lib/linus/job/artifacts.index", lies: "artifacts) ;;", says: "not a regular file"},
		{name: "a list of artifacts a byte a second", size: "0", lies: "artifacts) while :; do printf x; sleep 1; done ;;", cancel: true, says: "collecting was cancelled by user"},
		{name: "a list of artifacts without an end", size: "0", lies: "artifacts) exec yes ;;", says: "wrote more than"},
		{name: "a list that never comes, and no exit status", size: "0", lies: "artifacts) exec sleep 1000 ;;", cancel: true, says: "collecting was cancelled by user"},
		{name: "sizes nothing has", size: "1000000000000000", says: "of 5242880 bytes"},
		{name: "a stdout that is short", size: "1000", files: "printf short >/tmp/f; mv -f /tmp/f /var/lib/linus/job/stdout", says: "stdout ends at 5 of 1000 bytes"},
	}
	h := newHost(t, lab.DriverProcess, "MAX_JOBS=20")
	l, c, other := newLedger(t), h.connect(t), h.connect(t)
	for _, i := range loops.Some(len(tests), 3) {
		tt := tests[i]
		t.Run(tt.name, func(t *testing.T) {
			c, other := &mcpClient{c.Client, t}, &mcpClient{other.Client, t}
			m := script(liar(tt.size, tt.files, tt.lies))
			m["artifacts"] = []any{"out/*"}
			id := c.submit(m)
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
			h.waitGone(t)
		})
	}
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
