package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/telemetry"
)

// TestServe_IsSeenFromOutside runs one job through linus serve, and looks at it
// in the metrics, the audit log and a collector of traces.
func TestServe_IsSeenFromOutside(t *testing.T) {
	traced := make(chan string, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		traced <- string(body)
	}))
	defer collector.Close()
	dir := t.TempDir()
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("PROXMOX_HOST", "pve.example")
	t.Setenv("CALLBACK_PORT", "0")
	t.Setenv("HTTP_TOKEN", "a-token-of-some-length")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	ctx, cancel := context.WithCancel(t.Context())
	said, stderr := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, fakeBackend, []string{"serve", "--http", "127.0.0.1:0"}, strings.NewReader(""), io.Discard, stderr)
		_ = stderr.Close()
		ended <- code
	}()
	address := ""
	for lines := bufio.NewScanner(said); address == "" && lines.Scan(); {
		if m := regexp.MustCompile(`MCP at (http://\S+)/mcp`).FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	go io.Copy(io.Discard, said) //nolint:errcheck // the rest of the log

	var out, errs strings.Builder
	if code := run(ctx, fakeBackend, []string{"job", "submit", "--wait", "--", "echo", "hello"}, strings.NewReader(""), &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	id := jobID.FindString(errs.String())

	want := []string{
		`linus_jobs{state="running"} 0`,
		`linus_jobs_ended_total{reason="exit_status",status="success"} 1`,
		`linus_phase_duration_seconds_count{phase="destroy",result="ok"} 1`,
		`linus_host_changes_total{action="destroy_vm",result="ok"} 1`,
		`linus_callbacks_total{kind="complete",result="ok"} 1`,
		`linus_ssh_reconnects_total 0`,
		`linus_leaked_vms 0`,
	}
	metrics := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		metrics = get(t, address+"/metrics", "a-token-of-some-length")
		if strings.Contains(metrics, want[2]) { // the VM goes after the result is there
			break
		}
	}
	for _, line := range want {
		if !strings.Contains(metrics, line+"\n") {
			t.Errorf("the metrics have no line %s", line)
		}
	}
	if got := get(t, address+"/metrics", "wrong"); !strings.Contains(got, "Unauthorized") {
		t.Errorf("metrics without the token: %s", got)
	}

	file, err := os.Open(filepath.Join(dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var records []string
	for lines := json.NewDecoder(file); lines.More(); {
		var r telemetry.Record
		if err := lines.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Who != "engine" || r.For != "cli" || r.Job != id || r.Proof == nil || r.Proof.Job != id || r.Proof.Owner == "" {
			t.Errorf("record %+v", r)
		}
		records = append(records, r.Action+" "+r.Result)
	}
	if got := strings.Join(records, ", "); got != "create_vm begun, create_vm ok, destroy_vm begun, destroy_vm ok" {
		t.Errorf("on record: %s", got)
	}

	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d after the end", code)
	}
	close(traced)
	spans := ""
	for body := range traced {
		spans += body
	}
	for _, name := range []string{"job", "queue", "provision", "push", "start", "run", "collect", "destroy"} {
		if !strings.Contains(spans, name) { // protobuf has strings as they are
			t.Errorf("no span %s was exported", name)
		}
	}
	if !strings.Contains(spans, id) {
		t.Error("no span tells the job's ID")
	}
}

// get returns a page's text, for a client with a token.
func get(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
