package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/vm"
)

// A sandbox that a client of E2B asks for is a VM in the lists, which say that it is one, and on
// record as what that client has done.
func TestSandboxes_AreVMsInListsAndOnRecord(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("PROXMOX_HOST", "pve.example")
	t.Setenv("CALLBACK_PORT", "0")
	t.Setenv("E2B_ADDR", "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	backend := func(c config.Config, of daemon.Installation, log *slog.Logger) daemon.Backend {
		b := fakeBackend(c, of, log)
		b.Templates = &shelf{}
		return b
	}
	said, stderr := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, backend, []string{"serve"}, strings.NewReader(""), io.Discard, stderr)
		_ = stderr.Close()
		ended <- code
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("linus serve exits with %d", code)
		}
	})
	url := ""
	for lines := bufio.NewScanner(said); url == "" && lines.Scan(); {
		if m := regexp.MustCompile(`Sandboxes for E2B's clients at (\S+);`).FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	go io.Copy(io.Discard, said) //nolint:errcheck // the rest of the log
	linus := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), fakeBackend, args, strings.NewReader(""), &stdout, &stderr); code != 0 {
			t.Fatalf("linus %s exits with %d: %s%s", strings.Join(args, " "), code, &stdout, &stderr)
		}
		return stdout.String()
	}
	var token struct{ ID, Token string }
	if err := json.Unmarshal([]byte(linus("token", "create", "ann", "--role", "run", "--e2b", "-o", "json")), &token); err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string, into any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-API-KEY", token.Token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && into != nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil || resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, text, err)
		}
	}
	linus("vm", "create", "dev")
	if list := linus("vm", "list"); strings.Contains(list, "KIND") || !strings.Contains(list, "dev") {
		t.Errorf("a list without sandboxes: %s", list)
	}
	var made struct{ SandboxID string }
	ask(http.MethodPost, "/sandboxes", `{"templateID": "base", "timeout": 600, "envVars": {"API_KEY": "s3cret"},
		"metadata": {"user": "\u001b[31mAda\u0000\u202e <b>", "text": "a\nb", "long": "`+strings.Repeat("x", 9000)+`"}}`, &made)
	list := linus("vm", "list")
	m := regexp.MustCompile(`(?m)^\d+ +(sandbox-\S+) +running .* sandbox +0$`).FindStringSubmatch(list)
	if m == nil || !regexp.MustCompile(`(?m)^\d+ +dev +running .* - +0$`).MatchString(list) {
		t.Fatalf("the list: %s", list)
	}
	shown := linus("vm", "show", m[1])
	for _, want := range []string{"sandbox     " + made.SandboxID, "metadata    user=Ada <b>", "metadata    text=a b", "variables   API_KEY", "belongs to  ann"} {
		if !strings.Contains(shown, want+"\n") {
			t.Errorf("vm show lacks %q: %q", want, shown)
		}
	}
	if strings.Contains(shown, "s3cret") || strings.ContainsAny(shown, "\x1b\x00\u202e") || len(shown) > 4000 {
		t.Errorf("vm show: %q", shown)
	}

	by := regexp.MustCompile(`(?m)^made by +job (\S+)$`).FindStringSubmatch(shown)
	if by == nil || vm.SandboxID(by[1]) != made.SandboxID {
		t.Fatalf("sandbox %s is this VM: %s", made.SandboxID, shown)
	}
	if j := linus("job", "status", by[1], "-o", "json"); !strings.Contains(j, `"client": "e2b"`) {
		t.Errorf("what stands for the job that makes it: %s", j)
	}

	ask(http.MethodPost, "/sandboxes/"+made.SandboxID+"/pause", "{}", nil)
	ask(http.MethodPost, "/sandboxes/"+made.SandboxID+"/connect", `{"timeout": 600}`, nil)
	ask(http.MethodDelete, "/sandboxes/"+made.SandboxID, "", nil)
	want := []string{
		"create_vm for e2b of ann: engine, ann", "suspend_vm for e2b of ann: e2b, ann", "start_vm for e2b of ann: e2b, ann", "destroy_vm for e2b of ann: e2b, ann",
	}
	linus("vm", "destroy", "dev", "--yes")
	var got []string
	for deadline := time.Now().Add(time.Minute); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		got = recordsOf(t, filepath.Join(dir, "audit.log"), by[1], token.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("on record is %q, want %q", got, want)
	}
}

// recordsOf returns what the audit log has of a VM, all of it with a token.
func recordsOf(t *testing.T, path, id, token string) (got []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r["job_id"] == id && r["result"] == "ok" {
			got = append(got, fmt.Sprintf("%s for %s: %s, %s", r["action"], r["for"], r["who"], r["principal"]))
			if r["token"] != token {
				t.Errorf("not with the token: %s", line)
			}
		}
	}
	return got
}
