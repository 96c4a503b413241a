package e2e

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// A VM that nobody uses is suspended, and goes on where it was for a job and for who logs in.
func TestIdleSuspend(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "CLEANUP_INTERVAL_SECONDS=10", clientsToken)
	h.serveHTTP(t)
	h.cli(t, "vm", "create", "dev", "--idle-suspend", "60")
	before := h.cli(t, "vm", "ssh", "dev", "--", "sh", "-c", "setsid sleep 100000 >/dev/null 2>&1 </dev/null & echo $! $(cut -d' ' -f22 /proc/$!/stat) | tee here")
	asleep := func() {
		t.Helper()
		for until := time.Now().Add(4 * time.Minute); ; {
			shown := h.cli(t, "vm", "show", "dev")
			if strings.Contains(shown, "suspended") && strings.Contains(shown, "its next use resumes it") {
				return
			}
			if time.Now().After(until) {
				t.Fatalf("it is not suspended:\n%s", shown)
			}
			pause := time.NewTimer(2 * time.Second)
			select {
			case <-pause.C:
			case <-t.Context().Done():
				t.FailNow()
			}
		}
	}
	const goesOn = "read pid began <here; echo $pid $(cut -d' ' -f22 /proc/$pid/stat)"
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the VM") }))
	defer site.Close()
	at := strings.TrimSpace(h.cli(t, "vm", "expose", "dev", strconv.Itoa(site.Listener.Addr().(*net.TCPAddr).Port)))
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(h.cli(t, "vm", "ssh-config", "dev")), 0o600); err != nil {
		t.Fatal(err)
	}
	uses := []func(){
		func() {
			if got := h.cli(t, "job", "exec", "--vm", "dev", "--", "sh", "-c", goesOn); got != before {
				t.Errorf("what ran there: %q, before %q", got, before)
			}
		},
		func() {
			if _, got := h.exits(t, "vm", "ssh", "dev", "--", "sh", "-c", goesOn); !strings.HasSuffix(got, before) || strings.Count(got, "resuming VM dev (") != 1 {
				t.Errorf("by ssh: %q, before %q", got, before)
			}
		},
		func() {
			cmd := exec.CommandContext(t.Context(), "ssh", "-F", config, "dev.linus", goesOn)
			cmd.Env = h.env
			if got, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(got), before) || strings.Count(string(got), "resuming VM dev (") != 1 {
				t.Errorf("by an editor's ssh: %q, before %q, %v", got, before, err)
			}
		},
		func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(clientsToken, "HTTP_TOKEN="))
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || string(text) != "from the VM" {
				t.Errorf("by a port's URL: %s %q, %v", resp.Status, text, err)
			}
			_ = resp.Body.Close()
		},
	}
	for _, use := range loops.Every(len(uses), 4, "TestIdleSuspend_SuspendsAndTheNextUseResumes has other uses, TestPort_WaitsForAVMThatIsResumed a port") {
		asleep()
		uses[use]()
		if shown := h.cli(t, "vm", "show", "dev"); !strings.Contains(shown, "running") {
			t.Errorf("its use has not resumed it:\n%s", shown)
		}
	}
	h.cli(t, "vm", "destroy", "dev", "--yes")
	h.waitGone(t)
}
