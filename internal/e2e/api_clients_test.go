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
	"linus/internal/loops"
)

// described is the API's description, as it is served.
func described() []byte {
	served := httptest.NewRecorder()
	control.API(engine{}, control.APIOptions{Version: "test"}).ServeHTTP(served, httptest.NewRequest(http.MethodGet, control.APIPrefix+"/v1/openapi.json", nil))
	return served.Body.Bytes()
}

// apiClient makes a client of the API's description and runs examples with it, in a directory
// of its own.
type apiClient struct {
	t   *testing.T
	dir string
	env []string
}

func newAPIClient(t *testing.T) *apiClient {
	t.Helper()
	h := newHost(t, lab.DriverProcess)
	at := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	token, err := os.ReadFile(filepath.Join(h.state, "http-token"))
	if err != nil {
		t.Fatal(err)
	}
	c := &apiClient{t: t, dir: t.TempDir()}
	c.env = append(os.Environ(), "LINUS_URL="+at, "LINUS_TOKEN="+strings.TrimSpace(string(token)))
	c.write("openapi.json", described())
	return c
}

func (c *apiClient) write(name string, data []byte) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), data, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// example copies a file of examples/api.
func (c *apiClient) example(name string) {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join("../../examples/api", name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(filepath.Base(name), data)
}

// run returns what a program prints.
func (c *apiClient) run(stdin []byte, program string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = c.dir, c.env, bytes.NewReader(stdin), c.t.Output()
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ran checks what the example has printed: a job's result, and the error of what is missing.
func (c *apiClient) ran(out, language string) {
	c.t.Helper()
	if want := "success 0 hello from " + language + "\n404 not_found\n"; out != want {
		c.t.Errorf("it says %q, want %q", out, want)
	}
}

// A client in Python that was made of the API's description runs a job, and has its output.
func TestAPI_AClientMadeOfItsDescriptionRunsAJob(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("there is no python3")
	}
	c := newAPIClient(t)
	c.env = append(c.env, "PYTHONDONTWRITEBYTECODE=1")
	c.example("generate.py")
	c.example("job.py")
	c.write("linus_api.py", []byte(c.run(described(), "python3", "generate.py")))
	c.ran(c.run(nil, "python3", "job.py"), "Python")
}

// So do those in Go and TypeScript that generators from elsewhere make.
func TestAPI_ClientsOfOtherGeneratorsRunJobs(t *testing.T) {
	const covered = "TestAPI_AClientMadeOfItsDescriptionRunsAJob makes one in Python, and TestOpenAPI_IsValidForOthers lints the description"
	t.Run("Go", func(t *testing.T) {
		loops.AtNightOnly(t, covered)
		c := newAPIClient(t)
		for _, name := range []string{"go/main.go", "go/go.mod", "go/go.sum"} {
			c.example(name)
		}
		generator := strings.Fields(line(t, filepath.Join(c.dir, "main.go"), "//	go run "))
		if err := os.Mkdir(filepath.Join(c.dir, "linusapi"), 0o700); err != nil {
			t.Fatal(err)
		}
		c.env = append(c.env, "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=off")
		c.run(nil, generator[1], generator[2:]...)
		c.ran(c.run(nil, "go", "run", "."), "Go")
	})
	t.Run("TypeScript", func(t *testing.T) {
		loops.AtNightOnly(t, covered)
		npm := fromNPM(t, "generators")
		c := newAPIClient(t)
		if err := os.Symlink(filepath.Join(npm.dir, "node_modules"), filepath.Join(c.dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
		c.example("job.ts")
		c.write("package.json", []byte(`{"type": "module"}`))
		c.run(nil, npm.node, "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "-o", "api.d.ts")
		c.run(nil, npm.node, "node_modules/typescript/bin/tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "node", "job.ts")
		c.ran(c.run(nil, npm.node, "job.js"), "TypeScript")
	})
}

// line returns the line of a file that begins with a prefix.
func line(t *testing.T, path, prefix string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, prefix) {
			return line
		}
	}
	t.Fatalf("%s has no line %q", path, prefix)
	return ""
}

// spectral's recommended rules find nothing in the API's description, and something in a
// broken one.
func TestOpenAPI_SpectralFindsNothing(t *testing.T) {
	loops.AtNightOnly(t, "TestOpenAPI_IsValidForOthers has redocly's rules")
	t.Parallel()
	npm := fromNPM(t, "generators")
	script := filepath.Join(npm.scripts(t, "spectral.mjs"), "spectral.mjs")
	lint := func(document []byte) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, npm.node, script)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(document), t.Output()
		found, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(found)
	}
	if found := lint(described()); found != "" {
		t.Error(found)
	}
	if found := lint(bytes.Replace(described(), []byte(`"type": "integer"`), []byte(`"type": "int"`), 1)); !strings.Contains(found, "(oas3-schema)") {
		t.Errorf("in a broken one: %q", found)
	}
}
