// Package agent describes the agents that run tasks, with a row for each: how to run an agent without
// questions, where its key comes from, and how to report its stream to people. scripts/lib/bootstrap.sh
// installs agents. The package knows nothing of jobs, and imports the standard library and term only.
package agent

import (
	"slices"
	"sync"
)

// Agent is a row for one agent.
type Agent struct {
	Name string // of its type and its program
	Key  string // the variable with its key
	NPM  string // its npm package

	Host   string   // of its model's API, over HTTPS, unless Base is set
	Base   string   // the variable with another URL of the API
	Header string   // the header for the key, as in a credential
	Logins []string // the variables for logging in without the key

	once   []string // the command that runs the task on stdin
	stream []string // options that make stdout JSON lines
	steps  func(r *Reader, line []byte) []string
	answer func(stream []byte) (string, bool)
}

// codex is a script that runs codex, which expects its key and the API's URL under other names.
const codex = `export CODEX_API_KEY="${CODEX_API_KEY:-${OPENAI_API_KEY:-}}"
[ -z "${OPENAI_BASE_URL:-}" ] || set -- "$@" -c "openai_base_url=\"$OPENAI_BASE_URL\""
exec codex exec "$@" -`

// All returns all agents.
func All() []Agent { return slices.Clone(all()) }

// all is built once: each submission asks for it a dozen times.
var all = sync.OnceValue(func() []Agent {
	return []Agent{
		{
			Name: "claude", Key: "ANTHROPIC_API_KEY", NPM: "@anthropic-ai/claude-code",
			Host: "api.anthropic.com", Base: "ANTHROPIC_BASE_URL", Header: "x-api-key", Logins: []string{"ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
			once: []string{"claude", "--print"}, stream: []string{"--output-format", "stream-json", "--verbose"},
			steps: claudeSteps, answer: claudeAnswer,
		},
		{
			Name: "codex", Key: "OPENAI_API_KEY", NPM: "@openai/codex",
			Host: "api.openai.com", Base: "OPENAI_BASE_URL", Header: "Authorization: Bearer", Logins: []string{"CODEX_API_KEY"},
			once:   []string{"sh", "-c", codex, "codex", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"},
			stream: []string{"--json"}, steps: codexSteps, answer: codexAnswer,
		},
		{
			Name: "gemini", Key: "GEMINI_API_KEY", NPM: "@google/gemini-cli",
			Host: "generativelanguage.googleapis.com", Base: "GOOGLE_GEMINI_BASE_URL", Header: "x-goog-api-key", Logins: []string{"GOOGLE_API_KEY"},
			once: []string{"gemini", "--skip-trust", "--approval-mode", "yolo"}, stream: []string{"--output-format", "stream-json"},
			steps: geminiSteps, answer: geminiAnswer,
		},
	}
})

// Named returns the agent with a name.
func Named(name string) (Agent, bool) {
	for _, a := range all() {
		if a.Name == name {
			return a, true
		}
	}
	return Agent{}, false
}

// Command returns the words of a command that reads a task on stdin. model may be empty; with
// streams, stdout has the format that Reader and Answer read.
func (a Agent) Command(model string, streams bool) []string {
	words := slices.Clone(a.once)
	if streams {
		words = append(words, a.stream...)
	}
	if model != "" {
		words = append(words, "--model", model)
	}
	return words
}

// Reader returns a Reader for a stream of the agent.
func (a Agent) Reader() Reader { return Reader{agent: a} }

// Answer returns the agent's final text. It returns false if the stream has none, as when the CLI
// never started.
func (a Agent) Answer(stream []byte) (string, bool) { return a.answer(stream) }
