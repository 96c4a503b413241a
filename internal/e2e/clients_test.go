package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/doctest"
	"linus/internal/lab"
	"linus/internal/loops"
)

// clients are what scripts/dev/clients.sh has installed.
type clients struct{ source, dir, node string }

// npmClients installs other people's MCP clients, or skips the test where npm
// cannot.
func npmClients(t *testing.T) clients {
	t.Helper()
	return fromNPM(t, "clients")
}

// fromNPM installs what a directory of testdata needs, or skips the test.
func fromNPM(t *testing.T, source string) clients {
	t.Helper()
	c, missing := findNPM(t, source)
	if missing != "" {
		t.Skipf("no clients from npm: %s", missing)
	}
	return c
}

// findNPM installs what a directory of testdata needs, or says why it cannot.
func findNPM(t *testing.T, source string) (c clients, missing string) {
	t.Helper()
	out, err := exec.Command("bash", "../../scripts/dev/clients.sh", source).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if exit.ExitCode() == 75 {
			return c, strings.TrimSpace(string(exit.Stderr))
		}
		t.Fatalf("clients.sh: %v\n%s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, node, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
	return clients{filepath.Join("../../testdata", source), dir, node}, ""
}

// scripts copies scripts of its directory of testdata to a new one beside what is
// installed, because ES modules are found from where the importing file lies.
func (c clients) scripts(t *testing.T, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range names {
		script, err := os.ReadFile(filepath.Join(c.source, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), script, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(c.dir, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serveHTTP runs linus serve with MCP by HTTP on loopback and returns its URL.
func (h *host) serveHTTP(t *testing.T) string {
	t.Helper()
	return h.serveAt(t, "127.0.0.1:0")
}

// serveAt runs linus serve at an address and returns MCP's URL.
func (h *host) serveAt(t *testing.T, addr string) string {
	t.Helper()
	return h.serveTelling(t, `MCP at (https?://\S+/mcp)`, "--http", addr)
}

// serveTelling runs linus serve and returns what it says in place of a pattern's group.
func (h *host) serveTelling(t *testing.T, pattern string, args ...string) string {
	t.Helper()
	log, err := os.Create(h.state + ".log") // which is shown where the test fails
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	cmd := exec.Command(h.linus(), append([]string{"serve"}, args...)...)
	cmd.Env = h.env
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("linus serve: %v", err)
		}
	})
	lines := bufio.NewScanner(io.TeeReader(stderr, log))
	for lines.Scan() {
		if m := regexp.MustCompile(pattern).FindStringSubmatch(lines.Text()); m != nil {
			go io.Copy(log, stderr) //nolint:errcheck // the rest of it
			return m[1]
		}
	}
	t.Fatalf("linus serve does not tell %s: %v", pattern, lines.Err())
	return ""
}

const clientsToken = "HTTP_TOKEN=a-token-of-this-test"

// Both generations of the official SDK have a job done, read it every way there
// is, and are asked before a VM is destroyed; over both transports, in both eras
// of the protocol.
func TestSDKs(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, clientsToken)
	url := h.serveHTTP(t)
	dir := c.scripts(t, "drive.mjs")
	generations, ways := []string{"sdk", "client", "client-2026"}, []string{"stdio", "http"}
	for g, generation := range generations { // each by one way by day
		for w, way := range ways {
			if !loops.AtNight() && (g+w)%2 != 0 {
				continue
			}
			t.Run(generation+" by "+way, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, c.node, filepath.Join(dir, "drive.mjs"), generation, way)
				cmd.Env = append(h.env, "LINUS_PROGRAM="+filepath.Join(binDir, "linus"), "LINUS_URL="+url)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v\n%s%s", err, out, stderr.String())
				}
				said := fmt.Sprintf("from %s by %s\n", generation, way)
				var got map[string]any
				if err := json.Unmarshal(out, &got); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				asked, _ := got["asked"].([]any)
				delete(got, "asked")
				_, table, _ := strings.Cut(doctest.Read(t, "../../embed/docs/tools.md"), "<!-- tools:begin -->")
				table, _, _ = strings.Cut(table, "<!-- tools:end -->")
				want := map[string]any{
					"tools": float64(strings.Count(table, "\n| `")), "prompts": []any{"delegate_task", "diagnose_job"}, "resources": []any{"linus://host", "linus://manifest"}, "templates": 4.0,
					"submitted": true, "status": "failed", "exit_code": 3.0, "output": said, "read": said,
					"completed": true, "diagnosed": true, "destroyed": true,
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("the client saw (-want +got):\n%s", diff)
				}
				if len(asked) != 1 || !strings.Contains(fmt.Sprint(asked[0]), "Destroy VM") {
					t.Errorf("the user was asked %q", asked)
				}
			})
		}
	}
	h.waitGone(t)
}
