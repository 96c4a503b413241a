// Package claude parses the output of the Claude CLI with --output-format
// stream-json: one JSON object per line. It describes what the agent is doing
// in lines for people, and finds the agent's final text. It knows nothing of
// jobs, and imports the standard library and term only. It skips what it does
// not know: the CLI adds kinds of lines from version to version.
package claude

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"linus/internal/term"
)

const (
	maxLine = 8 << 20 // bytes; longer ones are skipped
	maxStep = 160     // characters
)

// Reader extracts steps from a stream that comes in pieces. The zero value is
// ready to use.
type Reader struct {
	line []byte // the beginning of an incomplete line
	long bool   // the rest of the current line is ignored: it is too long
	cwd  string // the agent's working directory, as it reported
}

// Read takes the next piece of the stream and returns the steps the agent has
// started in it, one line for people each, such as "reads main.go", "runs go
// test ./..." or the first line of what it says.
func (r *Reader) Read(data []byte) []string {
	var steps []string
	for len(data) > 0 {
		piece, rest, whole := bytes.Cut(data, []byte("\n"))
		data = rest
		r.long = r.long || len(r.line)+len(piece) > maxLine
		if r.long {
			r.line = nil
		} else {
			r.line = append(r.line, piece...)
		}
		if whole {
			steps = append(steps, r.steps(r.line)...)
			r.line, r.long = nil, false
		}
	}
	return steps
}

// line has the fields of a line that are used here.
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

// parse decodes a line; false if it is not one to use.
func parse(text []byte) (l line, ok bool) {
	text = bytes.TrimSpace(text)
	return l, len(text) > 0 && text[0] == '{' && json.Unmarshal(text, &l) == nil && l.Type != ""
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

func (r *Reader) steps(text []byte) []string {
	l, ok := parse(text)
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
			step = firstLine(r.use(b))
		}
		if step != "" {
			steps = append(steps, step)
		}
	}
	return steps
}

// uses maps a tool to the verb for its use, and to the field of its input that
// has the object.
var uses = map[string]struct{ verb, field string }{
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

func (r *Reader) use(b block) string {
	use, known := uses[b.Name]
	if !known {
		return "uses " + cmp.Or(b.Name, "a tool")
	}
	var on string
	_ = json.Unmarshal(b.Input[use.field], &on) // of another type, or absent: the verb alone
	if strings.HasSuffix(use.field, "path") {
		if below, ok := strings.CutPrefix(path.Clean(on), path.Clean(r.cwd)+"/"); ok && r.cwd != "" {
			on = below
		}
	}
	return fmt.Sprintf("%s %s", use.verb, on)
}

// firstLine returns the first line of text that is not blank, made safe to
// show.
func firstLine(text string) string {
	for l := range strings.Lines(text) {
		l = term.Line(l)
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		if utf8.RuneCountInString(l) > maxStep {
			l = string([]rune(l)[:maxStep-1]) + "…"
		}
		return l
	}
	return ""
}

// Result returns the agent's final text: that of the stream's result line or,
// if the agent was stopped before that, its last message. False if the stream
// has neither, as when the CLI never started.
func Result(stream []byte) (text string, ok bool) {
	for raw := range bytes.Lines(stream) {
		l, known := parse(raw)
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
