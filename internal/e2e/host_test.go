package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

// binDir holds linus, linus-worker, linus-sandbox and pvelab, built once.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "linus-e2e-bin")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir, "linus/cmd/linus", "linus/cmd/linus-worker", "linus/cmd/linus-sandbox", "linus/cmd/pvelab")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
		binDir = dir
		flag.Parse()
		// The parallel tests here wait more than they work: for thresholds, and
		// for hosts that do not answer.
		if err := flag.Set("test.parallel", "6"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return pgtest.Main(m)
	}())
}

// host is a lab with an installation of linus that uses it.
type host struct {
	dir   string // the lab's
	state string // linus's
	env   []string
	lab   *lab.Lab
	next  string // the program; empty: the one of this version
}

// linus is the program.
func (h *host) linus() string { return cmp.Or(h.next, filepath.Join(binDir, "linus")) }

// knows has linus, and what it starts, find a name on this machine.
func (h *host) knows(t testing.TB, name string) {
	t.Helper()
	hosts, program := filepath.Join(filepath.Dir(h.dir), "hosts"), filepath.Join(filepath.Dir(h.dir), "linus-with-names")
	wrapper := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /etc/hosts && exec \"$0\" \"$@\"' %s \"$@\"\n", hosts, h.linus())
	for file, text := range map[string]string{hosts: "127.0.0.1 localhost " + name + "\n", program: wrapper} {
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil { //nolint:gosec // one is a program
			t.Fatal(err)
		}
	}
	h.next = program
}

// newHost brings a lab up, with extra settings for linus, and takes it down,
// with everything that is linus's, at the end of the test.
func newHost(t testing.TB, driver string, settings ...string) *host {
	t.Helper()
	return newHostAs(t, lab.Options{Driver: driver}, settings...)
}

// newHostAs is newHost with a lab's options; its directory is set here, and its program unless
// it is another version's.
func newHostAs(t testing.TB, o lab.Options, settings ...string) *host {
	t.Helper()
	loops.NotInCheck(t)
	if missing := lab.Missing(o.Driver); len(missing) > 0 {
		t.Skipf("no %s lab here: %s", o.Driver, strings.Join(missing, "; "))
	}
	in := "" // or on a disk: those of real VMs are too large for memory
	if o.Driver == lab.DriverQemu {
		in = "/var/tmp"
	}
	dir, err := os.MkdirTemp(in, "linus-e2e")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: filepath.Join(dir, "host"), state: filepath.Join(dir, "linus")}
	ctx, cancel := context.WithTimeout(context.Background(), 25*time.Minute) // a guest image may have to be built first
	defer cancel()
	o.Dir, o.Binary = h.dir, cmp.Or(o.Binary, filepath.Join(binDir, "pvelab"))
	h.lab, err = lab.Up(ctx, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if h.lab != nil {
			if err := h.lab.Down(ctx); err != nil {
				t.Errorf("lab down: %v", err)
			}
		}
		os.RemoveAll(dir)
	})
	if err != nil {
		t.Fatalf("lab up: %v", err)
	}
	h.env = append(os.Environ(), "LINUS_STATE_DIR="+h.state, "CALLBACK_PORT=0", "LINUS_LOG_LEVEL=debug")
	for k, v := range h.lab.Env() {
		h.env = append(h.env, k+"="+v)
	}
	if url := pgtest.URL(t, h.state); url != "" {
		h.env = append(h.env, "LINUS_DATABASE_URL="+url)
	}
	h.env = append(h.env, settings...)
	t.Cleanup(func() { h.stop(t) })
	return h
}

// stop stops the engine, and shows its log where the test has failed.
func (h *host) stop(t testing.TB) {
	t.Helper()
	if t.Failed() {
		for _, path := range []string{h.logPath(), h.state + ".log"} {
			if log, err := os.ReadFile(path); err == nil {
				t.Logf("%s:\n%s", path, log[max(0, len(log)-20000):])
			}
		}
	}
	stop := exec.Command(h.linus(), "serve", "--stop")
	stop.Env = h.env
	if out, err := stop.CombinedOutput(); err != nil {
		t.Errorf("linus serve --stop: %v\n%s", err, out)
	}
}

// fault switches a fault of the lab on.
func (h *host) fault(t *testing.T, name, value string) {
	t.Helper()
	set := exec.Command(filepath.Join(binDir, "pvelab"), "fault", "--dir", h.dir, "set", name, value)
	if out, err := set.CombinedOutput(); err != nil {
		t.Fatalf("fault %s: %v\n%s", name, err, out)
	}
}

// cli runs a verb of linus and returns its stdout.
func (h *host) cli(t *testing.T, args ...string) string {
	t.Helper()
	cmd, stderr := exec.Command(h.linus(), args...), &bytes.Buffer{}
	cmd.Env, cmd.Stderr = h.env, stderr
	out, err := cmd.Output()
	if err != nil && len(out) == 0 {
		t.Errorf("linus %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// exits runs a verb of linus, and returns its exit code and all it says.
func (h *host) exits(t *testing.T, args ...string) (code int, text string) {
	t.Helper()
	cmd := exec.Command(h.linus(), args...)
	cmd.Env = h.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// mcpClient is a real MCP client process's end of `linus mcp`.
type mcpClient struct {
	*client.Client
	t testing.TB
}

func (h *host) connect(t testing.TB) *mcpClient {
	t.Helper()
	return h.connectBy(t, h.linus(), "mcp")
}

// connectBy starts a client's `linus mcp` by the command line.
func (h *host) connectBy(t testing.TB, program string, args ...string) *mcpClient {
	t.Helper()
	c, err := client.NewStdioMCPClient(program, h.env, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	init := mcp.InitializeRequest{}
	init.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	init.Params.ClientInfo = mcp.Implementation{Name: "e2e", Version: "1"}
	if _, err := c.Initialize(ctx, init); err != nil {
		said := make([]byte, 4096)
		if r, ok := client.GetStderr(c); ok {
			n, _ := r.Read(said)
			said = said[:n]
		}
		t.Fatalf("initialize: %v\n%s", err, said)
	}
	return &mcpClient{c, t}
}

// try calls a tool; an error is the connection's, never the tool's.
func (c *mcpClient) try(tool string, args map[string]any) (*mcp.CallToolResult, error) {
	return c.tryFor(callTime, tool, args)
}

// callTime is how long a call may take.
const callTime = 90 * time.Second

func (c *mcpClient) tryFor(limit time.Duration, tool string, args map[string]any) (*mcp.CallToolResult, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	req := mcp.CallToolRequest{}
	req.Params.Name, req.Params.Arguments = tool, args
	return c.CallTool(ctx, req)
}

func (c *mcpClient) request(tool string, args map[string]any) *mcp.CallToolResult {
	c.t.Helper()
	res, err := c.try(tool, args)
	if err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	return res
}

// call returns a tool's structured result.
func (c *mcpClient) call(tool string, args map[string]any) map[string]any {
	c.t.Helper()
	res := c.request(tool, args)
	if res.IsError {
		c.t.Fatalf("%s: %s", tool, text(res))
	}
	var v map[string]any
	data, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		c.t.Fatalf("%s: %v in %s", tool, err, data)
	}
	return v
}

// fail returns the text of a tool's error.
func (c *mcpClient) fail(tool string, args map[string]any) string {
	c.t.Helper()
	res := c.request(tool, args)
	if !res.IsError {
		c.t.Fatalf("%s: no error, but %s", tool, text(res))
	}
	return text(res)
}

func text(res *mcp.CallToolResult) string {
	var all []string
	for _, content := range res.Content {
		if t, ok := content.(mcp.TextContent); ok {
			all = append(all, t.Text)
		}
	}
	return strings.Join(all, "\n")
}

func (c *mcpClient) submit(manifest map[string]any) string {
	c.t.Helper()
	return c.call("submit_job", map[string]any{"manifest": manifest})["job_id"].(string)
}

// until polls the job's status, as agents do, until it is as wanted.
func (c *mcpClient) until(id string, wanted func(map[string]any) bool) map[string]any {
	c.t.Helper()
	deadline := time.After(20 * time.Minute)
	for {
		j := c.call("get_job_status", map[string]any{"job_id": id})
		if wanted(j) {
			return j
		}
		select {
		case <-deadline:
			c.t.Fatalf("waited 10 minutes; job is %v", j)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// wait follows the job to its end.
func (c *mcpClient) wait(id string) map[string]any {
	c.t.Helper()
	return c.until(id, func(j map[string]any) bool {
		return j["status"] == "success" || j["status"] == "failed" || j["status"] == "timeout"
	})
}

// until waits until it is so.
func (h *host) until(t *testing.T, yes func() bool) {
	t.Helper()
	if !within(time.Minute, yes) {
		t.Fatal("it does not come")
	}
}

// within waits until it is so, and reports whether it came in that time.
func within(limit time.Duration, yes func() bool) bool {
	for deadline := time.Now().Add(limit); !yes(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
