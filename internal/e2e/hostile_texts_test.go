package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"linus/internal/lab"
)

// nasty is what a guest may say: colours, a title, the clipboard, C1 controls in
// UTF-8 and as bytes, text turned around. shownNasty is what may be left of it.
const (
	nasty      = "a\x1b[31mb\x1b]0;t\ac\x1b]52;c;eA==\x1b\\d\u009b1me\u0085f\u202eg\x7f\rh"
	shownNasty = "abcdefgh"
)

// obeyed returns the first thing in text that a terminal would obey.
func obeyed(text string) string {
	for i, r := range strings.ToValidUTF8(text, "\x00") {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			return fmt.Sprintf("%U in %q", r, text[max(0, i-60):min(len(text), i+60)])
		}
	}
	return ""
}

// textLiar is a job runner that answers what a guest's root likes when it is asked
// how the task stands, as it is once the channel on which the task was started is
// gone; else it is the real one.
const textLiar = `#!/usr/bin/env bash
if [[ $* == *probe* ]]; then
  nasty=$(base64 -d <<<%s)
  printf 'LINUS_%%s\n' "BEGIN:$LINUS_NONCE" JOB_STATE:exited EXIT_CODE:3 EXIT_REASON:stopped "EXIT_TEXT:lies $nasty" DURATION:1.5 STDOUT_BYTES:0 STDERR_BYTES:0 RESULT:SUCCESS "END:$LINUS_NONCE"
  exit
fi
exec bash %s "$@"
`

// A guest whose runner, callbacks and files' names have escapes in them shows
// none of these anywhere, but in the task's own output.
func TestHostileTexts_ReachNoTerminal(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, clientsToken)
	base := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	l, c := newLedger(t), h.connect(t)
	manifest := script(fmt.Sprintf(`set -e
curl -fsS --data-binary @/run/linus/token %s/word/token
curl -fsS -d "$(sed -n s/^CALLBACK_URL=//p /opt/job-runner/settings)" %[1]s/word/url
read -r nasty
nasty=$(base64 -d <<<"$nasty")
mkdir -p out
echo kept >"out/$nasty"
printf '%%s\n' "$nasty"
read -r lie
runner=$(ls /opt/job-runner/job-runner*.sh)
cp "$runner" /opt/job-runner/honest.sh
base64 -d <<<"$lie" >"$runner"
pkill -KILL -f 'job-runner.*sh (launch|wait)'
exit 3`, l.url))
	manifest["stdin"], manifest["sudo"], manifest["artifacts"], manifest["cwd"] = "open", true, []any{"out/**"}, "/tmp"
	v := &hostage{host: h, c: c, id: c.submit(manifest)}
	v.token, v.where = l.word(t, "token"), strings.TrimPrefix(l.word(t, "url"), "http://")
	c.until(v.id, func(j map[string]any) bool { return j["status"] == "running" })

	report, err := json.Marshal(map[string]any{"job_id": v.id, "progress": "reports " + nasty})
	if err != nil {
		t.Fatal(err)
	}
	if code, answer := v.post(t, "status", v.token, string(report)); code != http.StatusOK {
		t.Fatalf("status: %d %s", code, answer)
	}
	j := c.until(v.id, func(j map[string]any) bool { s, _ := j["progress"].(string); return strings.HasPrefix(s, "reports") })
	if j["progress"] != "reports "+shownNasty {
		t.Errorf("progress %q", j["progress"])
	}
	v.looksHarmless(t, base, "reports "+shownNasty)

	c.call("interact_with_job", map[string]any{"job_id": v.id, "input": encoded(nasty) + "\n"})
	c.call("interact_with_job", map[string]any{"job_id": v.id, "input": encoded(fmt.Sprintf(textLiar, encoded(nasty), "/opt/job-runner/honest.sh")) + "\n"})
	end := c.wait(v.id)
	if text, _ := end["error"].(string); text != "lies "+shownNasty {
		t.Errorf("error %q", end["error"])
	}
	v.looksHarmless(t, base, "lies "+shownNasty)
	if kept := h.cli(t, "job", "artifacts", v.id); !strings.Contains(kept, "out/a_[31mb_]0;t_c") {
		t.Errorf("artifacts: %q", kept)
	}
	waited := exec.Command(filepath.Join(binDir, "linus"), "job", "status", "--wait", v.id)
	waited.Env = h.env
	if out, _ := waited.CombinedOutput(); !strings.Contains(string(out), shownNasty) || obeyed(string(out)) != "" {
		t.Errorf("job status --wait shows %s: %q", obeyed(string(out)), out)
	}
	h.waitGone(t)
}

func encoded(text string) string {
	cmd := exec.Command("base64", "-w", "0")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		panic(err)
	}
	return string(out)
}

// looksHarmless reads the job every way there is.
func (v *hostage) looksHarmless(t *testing.T, base, want string) {
	t.Helper()
	for _, args := range [][]string{{"job", "status", v.id}, {"job", "status", v.id, "-o", "json"}, {"job", "list"}, {"job", "list", "-o", "json"}, {"job", "artifacts", v.id}, {"job", "logs", "--strip-ansi", v.id}, {"vm", "list"}} {
		cmd := exec.Command(filepath.Join(binDir, "linus"), args...)
		cmd.Env = v.env
		out, _ := cmd.CombinedOutput()
		if found := obeyed(string(out)); found != "" {
			t.Errorf("linus %s shows %s", strings.Join(args, " "), found)
		}
		if len(args) > 1 && args[1] == "status" && !strings.Contains(string(out), want) {
			t.Errorf("linus %s: %s", strings.Join(args, " "), out)
		}
	}
	for tool, args := range map[string]map[string]any{"get_job_status": {"job_id": v.id}, "list_jobs": {}, "get_job_result": {"job_id": v.id}, "list_vms": {}} {
		res := v.c.request(tool, args)
		if found := obeyed(text(res)); found != "" {
			t.Errorf("%s shows %s", tool, found)
		}
		if answer, ok := res.StructuredContent.(map[string]any); ok {
			delete(answer, "output") // the task's own
			for key, value := range flat("", answer) {
				if found := obeyed(value); found != "" {
					t.Errorf("%s: %s has %s", tool, key, found)
				}
			}
		}
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	for _, path := range []string{"/login?token=" + strings.TrimPrefix(clientsToken, "HTTP_TOKEN="), "/", "/jobs/" + v.id} {
		resp, err := browser.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if found := obeyed(string(page)); err != nil || resp.StatusCode != http.StatusOK || found != "" {
			t.Errorf("%s: %s, %v, shows %s", path, resp.Status, err, found)
		}
		if strings.HasPrefix(path, "/jobs/") && !strings.Contains(string(page), shownNasty) {
			t.Errorf("%s does not tell the text", path)
		}
	}
}

// flat returns the strings of a value by where they are.
func flat(at string, value any) map[string]string {
	found := map[string]string{}
	switch value := value.(type) {
	case string:
		found[at] = value
	case map[string]any:
		for k, v := range value {
			for where, text := range flat(at+"."+k, v) {
				found[where] = text
			}
		}
	case []any:
		for i, v := range value {
			for where, text := range flat(fmt.Sprintf("%s[%d]", at, i), v) {
				found[where] = text
			}
		}
	}
	return found
}

// Where no list of networks is set, agents get the configured network alone, at
// whichever tool they ask, and the command line any.
func TestHostileClient_GetsTheConfiguredNetworkAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "ALLOWED_SECRETS=CI_*", "LINUS_SECRET_ROOT=hunter2hunter2")
	c := h.connect(t)
	elsewhere := script("true")
	elsewhere["network"] = map[string]any{"bridge": "vmbr1", "vlan": 9, "ip": "10.9.0.2/24"}
	secret := script("true")
	secret["secrets"] = []any{"ROOT"}
	for name, refused := range map[string]struct {
		tool  string
		args  map[string]any
		wants []string
	}{
		"a job":     {"submit_job", map[string]any{"manifest": elsewhere}, []string{"network.bridge", "network.vlan", "network.ip", "MCP clients get only the configured network"}},
		"a VM":      {"provision_vm", map[string]any{"name": "dev", "network": map[string]any{"bridge": "vmbr1"}}, []string{"network.bridge", "ALLOWED_BRIDGES is not set"}},
		"a plan":    {"provision_vm", map[string]any{"name": "dev", "network": map[string]any{"vlan": 9}, "dry_run": true}, []string{"network.vlan"}},
		"a secret":  {"submit_job", map[string]any{"manifest": secret}, []string{`"ROOT" is not allowed: ALLOWED_SECRETS allows CI_*`}},
		"a command": {"execute_command", map[string]any{"command": "true", "secrets": []any{"ROOT"}}, []string{"secrets"}},
	} {
		said := c.fail(refused.tool, refused.args)
		for _, want := range refused.wants {
			if !strings.Contains(said, want) {
				t.Errorf("%s: %q does not say %q", name, said, want)
			}
		}
	}
	cmd := exec.Command(filepath.Join(binDir, "linus"), "vm", "create", "dev", "--bridge", "vmbr1", "--dry-run")
	cmd.Env = h.env
	if out, _ := cmd.CombinedOutput(); strings.Contains(string(out), "not allowed") {
		t.Errorf("the command line is bound, too: %s", out)
	}
	if files, err := os.ReadDir(filepath.Join(h.dir, "etc/pve/qemu-server")); err == nil {
		for _, f := range files {
			if h.ourVMs(t) > 0 {
				t.Errorf("something was made: %s", f.Name())
			}
		}
	}
}
