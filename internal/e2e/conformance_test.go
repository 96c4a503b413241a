package e2e

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"linus/internal/job"
	"linus/internal/mcptool"
	"linus/internal/web"
)

// engine is none but for what the suites reach beside their own fixtures: they
// read every resource in the list.
type engine struct{ job.Engine }

func (engine) CheckHost(context.Context) (job.HostReport, error) {
	return job.HostReport{OK: true}, nil
}

// The conformance suites meet the server as linus serve builds it, behind the
// checks of the web package, with the tools, prompts and resources they ask for
// beside our own. What is known to fail, and why, stands in the baselines; what
// is there and passes fails the test, too.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	const token = "a-token-of-this-test"
	mcp := mcptool.NewHTTP(mcptool.Options{Engine: engine{}, Version: "test", Log: slog.New(slog.DiscardHandler)}, fixtures()...)
	guarded := web.Handler(web.Options{MCP: mcp, Token: token, Log: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+token) // the suites know of no tokens
		guarded.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		if err := mcp.Close(t.Context()); err != nil {
			t.Log(err)
		}
		s.Close()
	})
	counts := regexp.MustCompile(`(?m)^Total: .*$`)
	for _, suite := range []struct {
		name, module, baseline string
		args                   []string
	}{
		{"0.1 all", "conformance-0.1", "conformance-0.1.yml", []string{"--suite", "all"}},
		{"0.2 of 2025-11-25", "conformance-0.2", "conformance-2025-11-25.yml", []string{"--requirements", "2025-11-25"}},
		{"0.2 of 2026-07-28", "conformance-0.2", "conformance-2026-07-28.yml", []string{"--requirements", "2026-07-28"}},
	} {
		t.Run(suite.name, func(t *testing.T) {
			baseline, err := filepath.Abs(filepath.Join("..", "..", "testdata", "clients", suite.baseline))
			if err != nil {
				t.Fatal(err)
			}
			args := append([]string{
				filepath.Join(c.dir, "node_modules", suite.module, "dist", "index.js"),
				"server", "--url", s.URL + "/mcp", "--expected-failures", baseline,
			}, suite.args...)
			cmd := exec.CommandContext(t.Context(), c.node, args...)
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			t.Log(counts.FindString(string(out)))
		})
	}
}
