package agent

import (
	"bytes"
	"encoding/json"
)

// geminiLine is a line of the output of gemini --output-format stream-json.
type geminiLine struct {
	Type    string                     `json:"type"`
	Role    string                     `json:"role"`
	Content string                     `json:"content"` // of a message, which comes in parts
	Tool    string                     `json:"tool_name"`
	Input   map[string]json.RawMessage `json:"parameters"`
}

func (l geminiLine) says() bool { return l.Type == "message" && l.Role == "assistant" }

// geminiTools are the CLI's built-in tools.
var geminiTools = map[string]tool{
	"read_file":         {"reads", "file_path"},
	"write_file":        {"writes", "file_path"},
	"replace":           {"edits", "file_path"},
	"run_shell_command": {"runs", "command"},
	"glob":              {"looks for", "pattern"},
	"grep_search":       {"searches for", "pattern"},
	"list_directory":    {"lists", "dir_path"},
	"web_fetch":         {"fetches", "prompt"},
	"google_web_search": {"searches the web for", "query"},
	"write_todos":       {"plans", ""},
}

// geminiSteps reports a message once its next line shows that the message is complete.
func geminiSteps(r *Reader, text []byte) (steps []string) {
	var l geminiLine
	if !parse(text, &l) || l.Type == "" {
		return nil
	}
	if l.says() {
		if len(r.said) < maxLine {
			r.said = append(r.said, l.Content...)
		}
		return nil
	}
	said := firstLine(string(r.said))
	r.said = nil
	if said != "" {
		steps = append(steps, said)
	}
	if l.Type == "tool_use" {
		if step := firstLine(r.use(geminiTools, l.Tool, l.Input)); step != "" {
			steps = append(steps, step)
		}
	}
	return steps
}

// geminiAnswer returns the last message, with all of its parts.
func geminiAnswer(stream []byte) (_ string, ok bool) {
	var text []byte // grows by parts, of which there can be very many
	whole := false
	for raw := range bytes.Lines(stream) {
		var l geminiLine
		switch {
		case !parse(raw, &l) || l.Type == "":
		case !l.says():
			whole = ok
		case whole:
			text, whole = []byte(l.Content), false
		default:
			text, ok = append(text, l.Content...), true
		}
	}
	return string(text), ok
}
