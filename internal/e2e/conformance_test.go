package e2e

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/mcptask"
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
	handler := mcptool.NewHTTP(mcptool.Options{Engine: engine{}, Version: "test", Log: slog.New(slog.DiscardHandler)}, fixtures()...)
	guarded := web.Handler(web.Options{MCP: handler, Token: token, Log: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer "+token) // the suites know of no tokens
		guarded.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		if err := handler.Close(t.Context()); err != nil {
			t.Log(err)
		}
		s.Close()
	})
	for _, suite := range []struct {
		name, module, baseline string
		args                   []string
	}{
		{"0.1 all", "conformance-0.1", "conformance-0.1.yml", []string{"--suite", "all"}},
		{"0.2 of 2025-11-25", "conformance-0.2", "conformance-2025-11-25.yml", []string{"--requirements", "2025-11-25"}},
		{"0.2 of 2026-07-28", "conformance-0.2", "conformance-2026-07-28.yml", []string{"--requirements", "2026-07-28"}},
	} {
		t.Run(suite.name, func(t *testing.T) {
			c.conformance(t, suite.module, s.URL+"/mcp", suite.baseline, suite.args...)
		})
	}
}

// The suite's scenarios of tasks meet mcptask in front of mcp-go, as mcptool has it, with the
// tools they ask for: our own never ask, and take longer.
func TestConformance_Tasks(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	tasks, hooks := &fixtureTasks{all: map[string]*fixtureTask{}}, &server.Hooks{}
	mcptask.Offer(hooks)
	m := server.NewMCPServer("fixtures", "1", server.WithToolCapabilities(false), server.WithHooks(hooks))
	m.AddTools(tasks.tools()...)
	front := mcptask.New(mcptask.Options{Source: tasks, Info: mcp.Implementation{Name: "fixtures", Version: "1"}, Every: 100 * time.Millisecond})
	next := server.NewStreamableHTTPServer(m)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { front.ServeHTTP(w, r, next) }))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		_ = next.Shutdown(context.Background()) // it has no streams left
	})
	suite := filepath.Join(c.dir, "node_modules", "conformance-0.2")
	required, err := os.ReadFile(filepath.Join(suite, "requirements", "2026-07-28.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	scenarios := regexp.MustCompile(`(?m)scenario: (tasks-\S+)$`).FindAllStringSubmatch(string(required), -1)
	if len(scenarios) == 0 {
		t.Fatal("the suite has no scenario of tasks")
	}
	for _, i := range loops.Every(len(scenarios), 3, "TestServeHTTP_AnswersWhatIsAboutTasks and TestListen_TellsOfEachChange have the requests, TestTasks_WholeByTheirClient a whole life by another client") {
		scenario := scenarios[i][1]
		t.Run(scenario, func(t *testing.T) {
			c.conformance(t, "conformance-0.2", s.URL, "conformance-tasks.yml", "--scenario", scenario)
		})
	}
}

// conformance has a suite check a server, and holds what fails against a baseline.
func (c clients) conformance(t *testing.T, module, url, baseline string, args ...string) {
	t.Helper()
	known, err := filepath.Abs(filepath.Join(c.source, baseline))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), c.node, append([]string{
		filepath.Join(c.dir, "node_modules", module, "dist", "index.js"), "server", "--url", url, "--expected-failures", known,
	}, args...)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(regexp.MustCompile(`(?m)^(Total|Passed): .*$`).FindString(string(out)))
}
