package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"linus/internal/lab"
	"linus/internal/pgtest"
	"linus/internal/tlstest"
)

// A job's requests to a credential's host have the value, and nothing that is in the VM, or
// comes out of it, or is stored: through a killed engine, too, which makes another CA. Other
// hosts are reached from the VM as ever.
func TestCredential_IsUsedAndNeverInTheVM(t *testing.T) {
	t.Parallel()
	const value = "ghp-the-value-that-no-vm-has"
	dir := t.TempDir()
	var mu sync.Mutex
	var seen []string
	site, pair := tlstest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Host+r.URL.Path+" "+r.Header.Get("Authorization"))
		mu.Unlock()
		_, _ = fmt.Fprintf(w, "got %s\n", r.Header.Get("Authorization"))
	}), "api.example", "127.0.0.1")
	ca := filepath.Join(dir, "ca.pem")
	pair.Write(t, ca, filepath.Join(dir, "key.pem"))
	at := strings.TrimPrefix(site.URL, "https://")
	_, port, _ := strings.Cut(at, ":")

	h := newHost(t, lab.DriverProcess, "LINUS_SECRET_GH="+value, "SSL_CERT_FILE="+ca)
	h.knows(t, "api.example")
	if out := h.cli(t, "credential", "add", "github", "--host", "api.example:"+port, "--path", "/repos/acme/", "--env", "GITHUB_TOKEN", "--secret", "GH"); !strings.Contains(out, "credential github is added for api.example:"+port+"/repos/acme/") {
		t.Errorf("add: %s", out)
	}
	if code, out := h.exits(t, "run", "--egress", "none", "--credential", "github", "--", "true"); code == 0 || !strings.Contains(out, "--credential: credentials need a network: the VM reaches no host") {
		t.Errorf("egress none: %d, %s", code, out)
	}
	c := h.connect(t)
	for _, network := range []map[string]any{nil, {"egress": "allow"}} {
		manifest := map[string]any{
			"agentType": "script", "timeout": 300, "credentials": []any{"github"}, "artifacts": []any{"body"},
			"task": fmt.Sprintf(`api=https://api.example:%s
get() { curl -sS --max-time 20 "$@"; }
env
curl -sS -H "Authorization: Bearer $GITHUB_TOKEN" "$api/repos/acme/x" | tee body
get -o /dev/null -w 'path %%{http_code}\n' "$api/repos/acme/../other" --path-as-is
get -k --noproxy '' https://%s/direct || echo unreachable
while get -o /dev/null "$api/repos/acme/x" 2>/dev/null; do sleep 0.1; done
until get "$api/repos/acme/again" 2>/dev/null; do sleep 0.1; done
`, port, at),
		}
		other := "got \n"
		if network != nil {
			manifest["network"], other = network, "unreachable\n"
		}
		id := c.submit(manifest)
		h.until(t, func() bool {
			return strings.Contains(c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string), other)
		})
		if !h.killEngine() {
			t.Fatal("no engine to kill")
		}
		c = h.connect(t)
		if job := c.wait(id); job["status"] != "success" {
			t.Fatalf("job %v", job)
		}
		stars := "got Bearer " + strings.Repeat("*", len(value)) + "\n"
		out := h.cli(t, "job", "result", id)
		if !strings.Contains(out, "GITHUB_TOKEN=linus-credential-github\n") || !strings.HasSuffix(out, stars+"path 403\n"+other+stars) {
			t.Errorf("output %q", out)
		}
		if network != nil && !strings.Contains(out, "HTTP_PROXY=") || network == nil && strings.Contains(out, "HTTP_PROXY=") {
			t.Errorf("egress %v: %s", network, out)
		}
		h.cli(t, "job", "artifacts", "get", id, "--dir", filepath.Join(dir, id))
		kept, err := os.ReadFile(filepath.Join(dir, id, "body"))
		if err != nil {
			t.Error(err)
		}
		status := exec.Command(h.linus(), "job", "status", id, "--wait")
		status.Env = h.env
		events, err := status.CombinedOutput()
		if err != nil || !strings.Contains(string(events), "credential github: GET api.example:"+port+"/repos/acme/x 200") {
			t.Errorf("events: %s, %v", events, err)
		}
		for name, text := range map[string]string{"output": out, "artifact": string(kept), "events": string(events), "manifest": h.cli(t, "job", "status", id, "-o", "json")} {
			if strings.Contains(text, value) {
				t.Errorf("the value is in the %s: %s", name, text)
			}
		}
	}
	mu.Lock()
	for _, s := range seen {
		direct := strings.HasPrefix(s, at+"/direct ")
		if strings.Contains(s, value) == direct || !direct && !strings.HasPrefix(s, "api.example:"+port+"/repos/acme/") {
			t.Errorf("the host saw %s", s)
		}
	}
	mu.Unlock()
	if out := h.cli(t, "credential", "list"); !strings.Contains(out, "/repos/acme/") || strings.Contains(out, value) {
		t.Errorf("list: %s", out)
	}
	if out := h.cli(t, "credential", "rm", "github"); out != "credential github is removed\n" {
		t.Errorf("rm: %s", out)
	}
	nowhere(t, h.state, value)
}

// An engine is killed while a job uses credentials: the engine that takes the job over makes
// another CA, and the job goes on with them, its agent's key among them. No engine has stored a value.
func TestCredential_GoesOnAtAnotherEngine(t *testing.T) {
	t.Parallel()
	const value, key = "ghp-the-value-that-no-vm-has", "sk-the-key-that-no-vm-has"
	site, pair := tlstest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s: %v\n", r.URL.Path, r.Header.Get("Authorization") == "Bearer "+value || r.Header.Get("X-Api-Key") == key)
	}), "api.example", "model.example")
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	pair.Write(t, ca, filepath.Join(dir, "key.pem"))
	_, port, _ := strings.Cut(site.Listener.Addr().String(), ":")

	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t), "LINUS_SECRET_GH="+value, "LINUS_SECRET_ANTHROPIC_API_KEY="+key, "SSL_CERT_FILE="+ca)
	h.knows(t, "api.example")
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/claude": `#!/bin/sh
echo 127.0.0.1 model.example >>/etc/hosts # the model is reached from here
both() { curl -sSf --max-time 20 "$1/repos/acme/$2" && curl -sSf --max-time 20 -H "x-api-key: $ANTHROPIC_API_KEY" "$ANTHROPIC_BASE_URL/$2"; }
both "$(cat)" first
while curl -sSf --max-time 20 "$ANTHROPIC_BASE_URL/" >/dev/null 2>&1; do sleep 0.1; done
until both "$API" again; do sleep 0.2; done 2>/dev/null
`})
	h.cli(t, "credential", "add", "github", "--host", "api.example:"+port, "--path", "/repos/acme/", "--secret", "GH")
	if code, out := h.exits(t, "credential", "add", "other", "--host", "api.example"); code == 0 || !strings.Contains(out, "others may share the database") {
		t.Errorf("a value is taken: %d, %s", code, out)
	}
	c := h.connect(t)
	api := "https://api.example:" + port
	id := c.submit(map[string]any{
		"agentType": "claude", "task": api, "timeout": 600, "credentials": []any{"github"},
		"env": map[string]any{"API": api, "ANTHROPIC_BASE_URL": "https://model.example:" + port},
	})
	h.until(t, func() bool {
		return strings.Contains(c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string), "/first: true\n/first: true\n")
	})
	other := h.another(t)
	seen := other.connect(t)
	c.Close() // it would start an engine where one was killed
	if !h.killEngine() {
		t.Fatal("no engine to kill")
	}
	seen.endsAs(id, "success", "exit_status")
	if out := other.cli(t, "job", "result", id); out != "/repos/acme/first: true\n/first: true\n/repos/acme/again: true\n/again: true\n" {
		t.Errorf("output %q", out)
	}
	status := exec.Command(other.linus(), "job", "status", id, "--wait")
	status.Env = other.env
	events, err := status.CombinedOutput()
	for _, use := range []string{"credential github: GET api.example:" + port + "/repos/acme/again 200", "credential claude@model.example:" + port + ": GET model.example:" + port + "/again 200"} {
		if err != nil || !strings.Contains(string(events), use) {
			t.Errorf("%q is no event: %s, %v", use, events, err)
		}
	}
	for _, dir := range []string{h.dir, h.state, other.state} {
		nowhere(t, dir, value)
		nowhere(t, dir, key)
	}
}

// nowhere fails when a file below dir has the text in it.
func nowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // sockets, and what goes meanwhile
		}
		f, err := os.Open(path) //nolint:gosec // our own
		if err != nil {
			return nil //nolint:nilerr // it has gone
		}
		defer f.Close() //nolint:errcheck // read only
		data, err := io.ReadAll(f)
		if strings.Contains(string(data), text) {
			t.Errorf("%s has what it must not have", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
