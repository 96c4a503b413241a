package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/creack/pty"

	"linus/internal/lab"
	"linus/internal/mcptask"
)

// claudeModel stands in for the model of a Claude Code that has linus as an MCP server.
type claudeModel struct {
	url string

	mu    sync.Mutex
	asked int // how often with tools
	// next is called with the last message once linus's tools are offered, and returns the tool
	// to be used, if any.
	next func(said string) (tool string, input any)
}

func newClaudeModel(t *testing.T, next func(said string) (string, any)) *claudeModel {
	t.Helper()
	m := &claudeModel{next: next}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", m.messages)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

func (m *claudeModel) messages(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model string `json:"model"`
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Messages []struct {
			Content any `json:"content"`
		} `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Messages) == 0 {
		http.Error(w, "{}", http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	tool, input := "", any(nil)
	for _, offered := range asked.Tools {
		if offered.Name == "mcp__linus__submit_job" {
			tool, input = m.next(fmt.Sprint(asked.Messages[len(asked.Messages)-1].Content))
			break
		}
	}
	if len(asked.Tools) > 0 {
		m.asked++
	}
	speak(w, asked.Model, "Well.", tool, input)
}

// turns is how often it was asked.
func (m *claudeModel) turns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// claudeSubmits is the use of a tool that submits a script, and would wait for it.
func claudeSubmits(task string) (string, any) {
	return "mcp__linus__submit_job", map[string]any{"wait_seconds": 45, "manifest": map[string]any{"agentType": "script", "task": task}}
}

// claudeCode returns a Claude Code with linus as its one MCP server, in a new home that is past its
// first questions, and what reads the requests it has sent to linus.
func (h *host) claudeCode(t *testing.T, program string, m *claudeModel, args ...string) (*exec.Cmd, func() string) {
	t.Helper()
	const secret = "sk-ant-api03-not-a-real-key-0123456789"
	dir := t.TempDir()
	sent, server, servers, project := filepath.Join(dir, "sent"), filepath.Join(dir, "server"), filepath.Join(dir, "servers.json"), filepath.Join(dir, "project")
	write := func(path string, mode os.FileMode, v any) {
		data, is := v.(string)
		if !is {
			text, _ := json.Marshal(v) // maps of ours always can be
			data = string(text)
		}
		if err := os.WriteFile(path, []byte(data), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	write(sent, 0o600, "")
	write(server, 0o700, fmt.Sprintf("#!/bin/sh\ntee -a %s | %s mcp\n", sent, h.linus()))
	write(servers, 0o600, map[string]any{"mcpServers": map[string]any{"linus": map[string]any{"command": server}}})
	write(filepath.Join(dir, ".claude.json"), 0o600, map[string]any{
		"hasCompletedOnboarding": true, "theme": "dark",
		"customApiKeyResponses": map[string]any{"approved": []any{secret[len(secret)-20:]}},
		"projects":              map[string]any{project: map[string]any{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}},
	})
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--mcp-config", servers, "--strict-mcp-config", "--allowedTools", "mcp__linus,TaskStop"}, args...)...)
	cmd.Dir = project
	cmd.Env = append(h.env[:len(h.env):len(h.env)], "HOME="+dir, "TERM=xterm-256color", "ANTHROPIC_BASE_URL="+m.url, "ANTHROPIC_API_KEY="+secret,
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "ENABLE_TOOL_SEARCH=false")
	return cmd, func() string {
		data, _ := os.ReadFile(sent)
		return string(data)
	}
}

// Claude Code in a terminal has a job done as an MCP task: it declares them, its user sees the
// task go on while the model has its turn, it polls, and the model is told of the end; a task
// that the model stops is a job that is cancelled. With -p it declares none, and the call waits.
func TestTasks_ClaudeCodeHasThemInATerminal(t *testing.T) {
	t.Parallel()
	program := agentCLI(t, "LINUS_TEST_CLAUDE", "@anthropic-ai/claude-code-linux-x64/claude")
	h := newHost(t, lab.DriverProcess)
	until := func(what string, yes func() bool) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Minute); !yes(); <-time.After(50 * time.Millisecond) { // it is 380 MB
			if time.Now().After(deadline) {
				t.Fatalf("waited for %s", what)
			}
		}
	}
	var open atomic.Bool
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // the task sees no file of this machine
		if !open.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(gate.Close)
	inBackground := regexp.MustCompile(`server-side task (` + jobID.String() + `)\. It was moved to the background as task (\w+)`)
	said := make([]string, 4) // to the model, by its steps
	step := 0
	model := newClaudeModel(t, func(last string) (tool string, input any) {
		moved := "" // the last one: what it is told at once is one message
		if all := inBackground.FindAllString(last, -1); len(all) > 0 {
			moved = all[len(all)-1]
		}
		switch {
		case step == 0:
			tool, input = claudeSubmits("until curl -fs " + gate.URL + "; do sleep 0.1; done; echo as a task; exit 3")
		case step == 1 && moved == "" && strings.Contains(last, "tool_use_id"):
			t.Errorf("the call returned %s", last)
			return "", nil
		case step == 1 && moved != "":
			last = moved
		case step == 2 && strings.Contains(last, "<task-notification>"):
			tool, input = claudeSubmits("sleep 1000")
		case step == 3 && moved != "" && moved != said[1]:
			tool, input = "TaskStop", map[string]any{"task_id": inBackground.FindStringSubmatch(moved)[3]}
			last = moved
		default:
			return "", nil
		}
		said[step] = last
		step++
		return tool, input
	})
	stepped := func(to int) func() bool {
		return func() bool {
			model.mu.Lock()
			defer model.mu.Unlock()
			return step == to
		}
	}
	cmd, sent := h.claudeCode(t, program, model)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	shown, ended := &transcript{}, make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = tty.WriteTo(shown)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		tty.Close()
		<-ended
		if t.Failed() {
			t.Logf("the terminal:\n%s\nsent to linus:\n%s", visible(shown.String()), sent())
		}
	})
	typed := func(text string) {
		t.Helper()
		for _, keys := range []string{text, "\r"} { // together they would be pasted
			before := shown.String()
			if _, err := tty.WriteString(keys); err != nil {
				t.Fatal(err)
			}
			until("an echo", func() bool { return shown.String() != before })
		}
	}
	until("its server", func() bool { return strings.Contains(sent(), `"tools/list"`) })
	until("its prompt", func() bool { return strings.Contains(shown.String(), "❯") })
	for n := 0; stepped(0)(); n = model.turns() { // until linus's tools are there for a turn
		typed("Have it done.")
		until("a turn", func() bool { return model.turns() > n })
	}
	until("the task", stepped(2))
	until("polls, and the task on the screen", func() bool {
		return strings.Count(sent(), `"tasks/get"`) > 1 && strings.Contains(visible(shown.String()), "1 MCP task")
	})
	open.Store(true)
	until("its end", stepped(4))

	first, second := inBackground.FindStringSubmatch(said[1])[1], inBackground.FindStringSubmatch(said[3])[1]
	if !strings.Contains(sent(), `"extensions":{"`+mcptask.Extension+`":{}}`) {
		t.Error("it declares no tasks")
	}
	for _, text := range []string{"<status>completed</status>", "MCP task " + first + " (linus/submit_job) completed.", `"exit_code":3`, `"stdout":"as a task\n"`} {
		if !strings.Contains(said[2], text) {
			t.Errorf("of the end of %s the model was told %s, without %q", first, said[2], text)
		}
	}
	until("the cancel", func() bool { return strings.Contains(sent(), `"tasks/cancel"`) })
	if code, out := h.exits(t, "job", "wait", second); code == 0 || !strings.Contains(out, "cancelled") {
		t.Errorf("the job that was stopped: %d, %s", code, out)
	}

	t.Run("with -p it waits", func(t *testing.T) {
		var result string
		step := 0
		model := newClaudeModel(t, func(last string) (string, any) {
			if step++; step == 1 {
				return claudeSubmits("echo in a call; exit 4")
			}
			result = last
			return "", nil
		})
		cmd, sent := h.claudeCode(t, program, model, "-p", "Have it done.")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Well.") {
			t.Fatalf("%v: %s", err, out)
		}
		if strings.Contains(sent(), mcptask.Extension) || !strings.Contains(sent(), "2026-07-28") {
			t.Errorf("it declares something else than is written: %s", sent())
		}
		if !strings.Contains(result, `"job_id":`) || inBackground.MatchString(result) {
			t.Errorf("the call returned %s", result)
		}
	})
	h.waitGone(t)
}

// visible is what a terminal's output shows, roughly: its words in the order in which they came.
func visible(said string) string {
	return regexp.MustCompile(`(\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9])+`).ReplaceAllString(said, " ")
}
