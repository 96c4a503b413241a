package agent

import (
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const codexSession = `{"type":"thread.started","thread_id":"1"}
{"type":"turn.started"}
{"type":"item.completed","item":{"id":"0","type":"reasoning","text":"hm"}}
{"type":"item.started","item":{"id":"1","type":"command_execution","command":"bash -lc 'go test'\nx","aggregated_output":"","status":"in_progress"}}
{"type":"item.completed","item":{"id":"1","type":"command_execution","command":"bash -lc 'go test'","aggregated_output":"ok","exit_code":0,"status":"completed"}}
{"type":"item.completed","item":{"id":"2","type":"file_change","changes":[{"path":"/a/b","kind":"add"},{"path":"c","kind":"update"},{"path":"d","kind":"delete"}],"status":"completed"}}
{"type":"item.started","item":{"id":"3","type":"mcp_tool_call","server":"s","tool":"t"}}
{"type":"item.completed","item":{"id":"4","type":"web_search","query":"go"}}
{"type":"item.completed","item":{"id":"5","type":"agent_message","text":"I'll go on."}}
{"type":"item.completed","item":{"id":"6","type":"agent_message","text":"All tests pass.\nDone."}}
{"type":"turn.completed","usage":{"input_tokens":1}}
`

const geminiSession = `Loaded cached credentials.
{"type":"init","session_id":"1","model":"m"}
{"type":"message","role":"user","content":"do it"}
{"type":"message","role":"assistant","content":"I'll look","delta":true}
{"type":"message","role":"assistant","content":" at it.\nThen","delta":true}
{"type":"tool_use","tool_name":"run_shell_command","tool_id":"1","parameters":{"command":"go test"}}
{"type":"tool_result","tool_id":"1","status":"success","output":"ok"}
{"type":"tool_use","tool_name":"mine","tool_id":"2","parameters":{}}
{"type":"message","role":"assistant","content":"All tests pass.","delta":true}
{"type":"message","role":"assistant","content":"\nDone.","delta":true}
{"type":"result","status":"success","stats":{}}
`

func TestAgents_TellTheirStepsAndAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		stream string
		steps  []string
	}{
		"claude": {session, steps},
		"codex": {codexSession, []string{
			"runs bash -lc 'go test'", "writes /a/b", "edits c", "removes d", "uses s t", "searches the web for go", "I'll go on.", "All tests pass.",
		}},
		"gemini": {geminiSession, []string{"I'll look at it.", "runs go test", "uses mine", "All tests pass."}},
	} {
		a, ok := Named(name)
		r := a.Reader()
		if got := r.Read([]byte(tt.stream)); !ok || !slices.Equal(got, tt.steps) {
			t.Errorf("%s tells %q, want %q", name, got, tt.steps)
		}
		if got, ok := a.Answer([]byte(tt.stream)); !ok || got != "All tests pass.\nDone." {
			t.Errorf("%s answers %q, %v", name, got, ok)
		}
		if got, ok := a.Answer([]byte(name + ": command not found\n")); ok {
			t.Errorf("%s answers %q without having started", name, got)
		}
	}
}

func TestAgents_Command(t *testing.T) {
	for name, want := range map[string]string{
		"claude": "claude --print --output-format stream-json --verbose --model m",
		"codex":  "sh -c * codex --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox --json --model m",
		"gemini": "gemini --skip-trust --approval-mode yolo --output-format stream-json --model m",
	} {
		a, _ := Named(name)
		if got := strings.ReplaceAll(strings.Join(a.Command("m", true), " "), codex, "*"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := a.Command("", false); slices.Contains(got, "--model") || slices.Contains(got, a.stream[0]) {
			t.Errorf("%s without model and stream: %q", name, got)
		}
	}
}

// A template has the agents that there are, from the same packages.
func TestAgents_AreWhatTemplatesGet(t *testing.T) {
	text, err := os.ReadFile("../../scripts/lib/bootstrap.sh")
	if err != nil {
		t.Fatal(err)
	}
	var rows, want []string
	for _, m := range regexp.MustCompile(`(?m)^install_\w+\(\) \{ install_agent (\w+) \d+ (\S+); \}$`).FindAllSubmatch(text, -1) {
		rows = append(rows, string(m[1])+" "+string(m[2]))
	}
	for _, a := range All() {
		want = append(want, a.Name+" "+a.NPM)
	}
	if !slices.Equal(rows, want) {
		t.Errorf("bootstrap.sh installs %q, want %q", rows, want)
	}
}

// A VM that has an agent say something letter by letter, to an end or not, costs no more than
// what it sends.
func TestGemini_SaidInManyParts(t *testing.T) {
	gemini, _ := Named("gemini")
	const parts = 20000
	part := strings.Repeat("x", 100)
	message := strings.Repeat(`{"type":"message","role":"assistant","content":"`+part+`","delta":true}`+"\n", parts)
	for end, want := range map[string][]string{"": nil, `{"type":"result"}` + "\n": {strings.Repeat("x", maxStep-1) + "…"}} {
		stream := []byte(message + end)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := gemini.Reader()
		steps := r.Read(stream)
		text, ok := gemini.Answer(stream)
		runtime.ReadMemStats(&after)
		if !slices.Equal(steps, want) {
			t.Errorf("steps %q", steps)
		}
		if !ok || len(text) != parts*len(part) {
			t.Errorf("%d bytes, %v", len(text), ok)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 100*uint64(len(stream)) {
			t.Errorf("%d bytes were allocated for a stream of %d", used, len(stream))
		}
	}
}
