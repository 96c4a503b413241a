// Package agent has the agents that run tasks, a row for each: how one is asked for a
// task without questions, where its key comes from, and how its stream is told to people.
// How it is installed is in scripts/lib/bootstrap.sh. It knows nothing of jobs, and imports
// the standard library and term only.
package agent

import (
	"slices"
	"sync"
)

// Agent is a row.
type Agent struct {
	Name string // of its type and of its program
	Key  string // the variable with its key
	NPM  string // its package

	Host   string   // of its model, by HTTPS, unless Base says another
	Base   string   // the variable with another URL of the model
	Header string   // in which the key is sent, as of a credential
	Logins []string // the variables by which it logs in without the key

	once   []string // runs the task that is on stdin
	stream []string // makes stdout JSON lines
	steps  func(r *Reader, line []byte) []string
	answer func(stream []byte) (string, bool)
}

// codex reads its key and the address of its model under other names.
const codex = `export CODEX_API_KEY="${CODEX_API_KEY:-${OPENAI_API_KEY:-}}"
[ -z "${OPENAI_BASE_URL:-}" ] || set -- "$@" -c "openai_base_url=\"$OPENAI_BASE_URL\""
exec codex exec "$@" -`

// All returns all agents.
func All() []Agent { return slices.Clone(all()) }

// all is made once: each submission asks for them a dozen times.
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

// Named returns an agent by its name.
func Named(name string) (Agent, bool) {
	for _, a := range all() {
		if a.Name == name {
			return a, true
		}
	}
	return Agent{}, false
}

// Command returns the words of a command that reads a task on stdin. model may be empty;
// streams says that its stdout is to be what Reader and Answer read.
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

// Reader returns one for a stream of the agent.
func (a Agent) Reader() Reader { return Reader{agent: a} }

// Answer returns the agent's final text. False if the stream has none, as when the CLI
// never started.
func (a Agent) Answer(stream []byte) (string, bool) { return a.answer(stream) }
