package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"linus/internal/lab"
)

const claudeKey = "sk-test-not-a-real-key"

// standInCLI prints what the Claude CLI prints, of what it was given.
const standInCLI = `#!/usr/bin/env bash
[[ $1 == --print ]] || exit 64
shift
format=text model=
while [[ $1 == --* ]]; do
  case $1 in
    --output-format) format=$2; shift 2 ;;
    --model) model=$2; shift 2 ;;
    *) shift ;;
  esac
done
if [[ $format == stream-json ]]; then
  printf '%s\n' '{"type":"system","subtype":"init","cwd":"'"$PWD"'"}'
  printf '%s\n' '{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Bash","input":{"command":"echo from-the-tool"}}]}}'
  sleep 3
  printf '%s\n' '{"type":"result","subtype":"success","result":"It is done: '"$*"' '"$ANTHROPIC_API_KEY"'"}'
else
  printf 'It is done: %s\n' "$*"
fi
curl -fsS -o /dev/null -X POST -d "$model" "$ANTHROPIC_BASE_URL/model"
`

// A claude job gets its key without naming it, tells what it does while it
// runs, and its answer is the job's output. With a stand-in for the CLI; and,
// where LINUS_TEST_CLAUDE names one (the program of the npm package
// @anthropic-ai/claude-code), with the real CLI against a stand-in of its API.
func TestClaude_TellsWhatItDoesAndAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, path string
		answer     string
	}{
		{"stand-in CLI", "", "It is done: say 'it' " + strings.Repeat("*", len(claudeKey))},
		{"real CLI", os.Getenv("LINUS_TEST_CLAUDE"), "It is done."},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if i > 0 && tt.path == "" {
				t.Skip("LINUS_TEST_CLAUDE does not name the Claude CLI")
			}
			api := newClaudeAPI(t, tt.path)
			h := newHost(t, lab.DriverProcess, "LINUS_SECRET_ANTHROPIC_API_KEY="+claudeKey)
			c := h.connect(t)
			install := script("set -e; mkdir -p ~/.local/bin; curl -fsS -o ~/.local/bin/claude " + api.url + "/claude; chmod +x ~/.local/bin/claude; ls ~/.local/bin")
			install["lifecycle"], install["vmName"] = "persistent", "claude"
			c.endsAs(c.submit(install), "success", "exit_status")
			job := map[string]any{
				"agentType": "claude", "task": "say 'it'", "agent": map[string]any{"claudeModel": "a-model"}, "vm": "claude", "statusMode": "streaming",
				"env": map[string]any{"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
			}
			id := c.submit(job)
			ended := c.endsAs(id, "success", "exit_status")
			got := c.call("get_job_result", map[string]any{"job_id": id})
			if got["output"] != tt.answer {
				t.Errorf("output %q, want %q; stderr %q, %v", got["output"], tt.answer, got["stderr"], ended)
			}
			raw := c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string)
			if !strings.Contains(raw, `"type":"result"`) || strings.Contains(raw, claudeKey) {
				t.Errorf("raw output %q", raw)
			}
			follow := exec.Command(filepath.Join(binDir, "linus"), "job", "status", "--wait", id)
			follow.Env = h.env
			if told, err := follow.CombinedOutput(); err != nil || !strings.Contains(string(told), "runs echo from-the-tool") || strings.Contains(string(told), claudeKey) {
				t.Errorf("told %s, %v", told, err)
			}
			if model, key := api.asked(); model != "a-model" || tt.path != "" && key != claudeKey {
				t.Errorf("asked for model %q with key %q", model, key)
			}
			c.call("destroy_vm", map[string]any{"vm_id": "claude", "confirm": true})
			h.waitGone(t)
		})
	}
}

// claudeAPI serves the CLI's program, and stands in for the API: the agent is
// told to use its shell once, and then to end.
type claudeAPI struct {
	url string

	mu         sync.Mutex
	model, key string
}

func (a *claudeAPI) asked() (model, key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.model, a.key
}

func newClaudeAPI(t *testing.T, program string) *claudeAPI {
	t.Helper()
	a := &claudeAPI{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /claude", func(w http.ResponseWriter, r *http.Request) {
		if program != "" {
			http.ServeFile(w, r, program)
			return
		}
		_, _ = io.WriteString(w, standInCLI)
	})
	mux.HandleFunc("POST /model", func(_ http.ResponseWriter, r *http.Request) {
		model, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.model = string(model)
	})
	mux.HandleFunc("POST /v1/messages", a.messages)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

// messages returns a request of the Messages API, as a stream of events.
func (a *claudeAPI) messages(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model    string            `json:"model"`
		Tools    []json.RawMessage `json:"tools"`
		Messages []json.RawMessage `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || len(asked.Messages) == 0 {
		http.Error(w, "{}", http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.key = r.Header.Get("X-Api-Key")
	if len(asked.Tools) > 0 {
		a.model = asked.Model
	}
	a.mu.Unlock()
	block, delta, stop := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": "It is done."}, "end_turn"
	if len(asked.Tools) > 0 && !strings.Contains(string(asked.Messages[len(asked.Messages)-1]), "tool_result") {
		block = map[string]any{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": map[string]any{}}
		delta = map[string]any{"type": "input_json_delta", "partial_json": `{"command":"echo from-the-tool","description":"says it"}`}
		stop = "tool_use"
	}
	usage := map[string]any{"input_tokens": 1, "output_tokens": 1}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []map[string]any{
		{"type": "message_start", "message": map[string]any{
			"id": "msg_1", "type": "message", "role": "assistant", "model": asked.Model, "content": []any{},
			"stop_reason": nil, "stop_sequence": nil, "usage": usage,
		}},
		{"type": "content_block_start", "index": 0, "content_block": block},
		{"type": "content_block_delta", "index": 0, "delta": delta},
		{"type": "content_block_stop", "index": 0},
		{"type": "message_delta", "delta": map[string]any{"stop_reason": stop, "stop_sequence": nil}, "usage": usage},
		{"type": "message_stop"},
	} {
		data, _ := json.Marshal(event) // maps of ours always can be
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event["type"], data)
	}
}
