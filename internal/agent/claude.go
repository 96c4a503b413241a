package agent

import (
	"bytes"
	"encoding/json"
	"strings"
)

// claude --output-format stream-json writes one JSON object per line. Unknown lines are skipped: the
// CLI adds kinds of lines from version to version.

// line has the fields of a line that linus uses.
type line struct {
	Type    string `json:"type"`
	Cwd     string `json:"cwd"`
	Parent  string `json:"parent_tool_use_id"` // set for subagents
	Message struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	Result *string `json:"result"`
}

// block is a part of a message.
type block struct {
	Type  string                     `json:"type"`
	Text  string                     `json:"text"`
	Name  string                     `json:"name"`
	Input map[string]json.RawMessage `json:"input"`
}

// claudeLine decodes a line; false if the line is of no use.
func claudeLine(text []byte) (l line, ok bool) {
	ok = parse(text, &l) && l.Type != ""
	return l, ok
}

// blocks returns the parts of a message, whose content may be a single text.
func (l line) blocks() []block {
	var parts []json.RawMessage
	if json.Unmarshal(l.Message.Content, &parts) != nil {
		var text string
		if json.Unmarshal(l.Message.Content, &text) != nil {
			return nil
		}
		return []block{{Type: "text", Text: text}}
	}
	var blocks []block
	for _, part := range parts {
		var b block
		if json.Unmarshal(part, &b) == nil {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

func claudeSteps(r *Reader, text []byte) []string {
	l, ok := claudeLine(text)
	switch {
	case ok && l.Type == "system" && l.Cwd != "":
		r.cwd = l.Cwd
		return nil
	case !ok || l.Type != "assistant":
		return nil
	}
	var steps []string
	for _, b := range l.blocks() {
		step := ""
		switch b.Type {
		case "text":
			step = firstLine(b.Text)
		case "tool_use":
			step = firstLine(r.use(claudeTools, b.Name, b.Input))
		}
		if step != "" {
			steps = append(steps, step)
		}
	}
	return steps
}

// claudeTools are the CLI's built-in tools.
var claudeTools = map[string]tool{
	"Read":         {"reads", "file_path"},
	"Write":        {"writes", "file_path"},
	"Edit":         {"edits", "file_path"},
	"MultiEdit":    {"edits", "file_path"},
	"NotebookEdit": {"edits", "notebook_path"},
	"Bash":         {"runs", "command"},
	"Glob":         {"looks for", "pattern"},
	"Grep":         {"searches for", "pattern"},
	"LS":           {"lists", "path"},
	"WebFetch":     {"fetches", "url"},
	"WebSearch":    {"searches the web for", "query"},
	"Task":         {"has an agent", "description"},
	"Agent":        {"has an agent", "description"},
	"TodoWrite":    {"plans", ""},
}

// claudeAnswer returns the text of the stream's result line or, if the agent was stopped before
// that, its last message.
func claudeAnswer(stream []byte) (text string, ok bool) {
	for raw := range bytes.Lines(stream) {
		l, known := claudeLine(raw)
		switch {
		case known && l.Type == "result" && l.Result != nil:
			return *l.Result, true
		case known && l.Type == "assistant" && l.Parent == "":
			for _, b := range l.blocks() {
				if b.Type == "text" && strings.TrimSpace(b.Text) != "" {
					text, ok = b.Text, true
				}
			}
		}
	}
	return text, ok
}
