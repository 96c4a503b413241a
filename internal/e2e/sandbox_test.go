package e2e

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// E2B's own SDK, unmodified, does in a sandbox what programs do there. The engine is not there:
// what stands in its place forwards, and the SDK's way of finding a local sandbox finds it.
func TestSandbox_ByTheSDKOfE2B(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	served := exec.Command(filepath.Join(binDir, "linus-sandbox"), "serve", "--socket", socket, "--user", self.Username)
	if err := served.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = served.Process.Kill(); _ = served.Wait() }()
	untilDials(t, "unix", socket)
	// The second one returns, since the first one answers.
	if out, err := exec.Command(filepath.Join(binDir, "linus-sandbox"), "serve", "--socket", socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// Its commands are login shells: what this machine's profile does is not theirs.
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	told, err := (&http.Client{Transport: transport}).Post("http://sandbox/init", "application/json", strings.NewReader(`{"envVars":{"HOME":"`+t.TempDir()+`"}}`)) //nolint:noctx // it answers
	if err != nil {
		t.Fatal(err)
	}
	_ = told.Body.Close()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandbox"})
	proxy.FlushInterval = -1
	proxy.Transport = transport
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // as the engine does: an answer may begin while the request goes on
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, c.node, filepath.Join(c.scripts(t, "sandbox.mjs"), "sandbox.mjs"), dir)
	cmd.Env = []string{"E2B_DEBUG=true", "E2B_API_KEY=e2b_" + strings.Repeat("0", 40), "E2B_SANDBOX_URL=" + front.URL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, stderr.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list := []any{}
	for _, name := range []string{"a", "b", "b/file", "large", "zipped"} {
		list = append(list, filepath.Join(dir, name))
	}
	want := map[string]any{
		"hello": []any{"hello\n" + dir + "\n", "you\n", 0.0}, "failure": 3.0, "timeout": "TimeoutError",
		"listed": true, "again": "typed", "killed": []any{true, false},
		"written": []any{"file", dir + "/a/file"}, "read": "text", "info": []any{4.0, true, "me"},
		"large": []any{2e6, true}, "made": []any{true, false}, "moved": dir + "/b/file", "list": list,
		"exists": []any{false, true}, "refused": []any{"FileNotFoundError", "InvalidArgumentError"},
		"watched": []any{"new/file", dir + "/new/file"}, "terminal": []any{4.0, true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the SDK saw (-want +got):\n%s", diff)
	}
}
