package e2e

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"linus/internal/lab"
)

// askProxy prints the proxy's answer for a name, 000 where there is none.
const askProxy = `ask() { curl -s -o /dev/null --max-time 20 -w '%{http_connect}' "https://$1/" || :; }
`

// The proxy of a job with egress allow is there before the task, in its environment, and
// again at the same place when the engine was killed; what it did is in the events.
func TestEgress_ProxyIsThereForTheWholeTask(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	id := c.submit(map[string]any{
		"agentType": "script", "timeout": 300,
		"network": map[string]any{"allow": []any{"allowed.invalid"}},
		"task": askProxy + `echo "$(ask other.example) $(ask allowed.invalid) $(ask 10.0.0.1)"
curl -s http://other.example/
echo "$http_proxy $NO_PROXY"
until [ "$(ask other.example)" = 000 ]; do sleep 0.1; done
until [ "$(ask other.example)" = 403 ]; do sleep 0.1; done
echo again
`})
	h.until(t, func() bool {
		return strings.Contains(c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string), "localhost")
	})
	if show := h.cli(t, "network", "show", id); !strings.Contains(show, ` goto from_`) || !strings.Contains(show, "allowed.invalid:443 refused") {
		t.Errorf("network show: %s", show)
	}
	tried := regexp.MustCompile(" +").ReplaceAllString(h.cli(t, "network", "test", id, "allowed.invalid", "127.0.0.1:1"), " ")
	for _, want := range []string{
		"allowed.invalid direct - unresolved -", "allowed.invalid proxy - unreachable: it cannot be reached -",
		"127.0.0.1:1 direct 127.0.0.1 refused -", "127.0.0.1:1 proxy - refused: only names can be reached",
	} {
		if !strings.Contains(tried, want) {
			t.Errorf("network test lacks %q: %s", want, tried)
		}
	}
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	if job := h.connect(t).wait(id); job["status"] != "success" || job["vm"].(map[string]any)["egress"] != "allow" {
		t.Fatalf("job %v", job)
	}
	out := h.cli(t, "job", "result", id)
	if !strings.HasPrefix(out, "403 502 403\nlinus: it is not in the job's network.allow\nhttp://127.0.0.1:2") || !strings.HasSuffix(out, "\nagain\n") {
		t.Errorf("output %q", out)
	}
	follow := exec.Command(h.linus(), "job", "status", id, "--wait")
	follow.Env = h.env
	text, err := follow.CombinedOutput()
	if err != nil {
		t.Error(err)
	}
	events := string(text)
	for _, want := range []string{"other.example:443 refused: it is not in the job's network.allow", "allowed.invalid:443 refused: it cannot be reached", "10.0.0.1:443 refused: only names can be reached"} {
		if !strings.Contains(events, want) {
			t.Errorf("no event says %q: %s", want, events)
		}
	}
	if show := h.cli(t, "job", "status", id); !strings.Contains(show, "egress allow") {
		t.Errorf("status: %s", show)
	}
}
