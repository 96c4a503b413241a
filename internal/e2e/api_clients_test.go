package e2e

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/control"
	"linus/internal/lab"
)

// A client in Python that was made of the API's description runs a job, and has its output.
func TestAPI_AClientMadeOfItsDescriptionRunsAJob(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	h := newHost(t, lab.DriverProcess)
	at := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	token, err := os.ReadFile(filepath.Join(h.state, "http-token"))
	if err != nil {
		t.Fatal(err)
	}

	served := httptest.NewRecorder()
	control.API(engine{}, control.APIOptions{Version: "test"}).ServeHTTP(served, httptest.NewRequest(http.MethodGet, control.APIPrefix+"/v1/openapi.json", nil))
	dir := t.TempDir()
	run := func(stdin []byte, script string) string {
		t.Helper()
		path, err := filepath.Abs(filepath.Join("../../examples/api", script))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, path)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "LINUS_URL="+at, "LINUS_TOKEN="+strings.TrimSpace(string(token)))
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		return string(out)
	}
	client := run(served.Body.Bytes(), "generate.py")
	if err := os.WriteFile(filepath.Join(dir, "linus_api.py"), []byte(client), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := run(nil, "job.py"), "success 0 hello from Python\n404 not_found\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
