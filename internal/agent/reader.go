package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"path"
	"strings"
	"unicode/utf8"

	"linus/internal/term"
)

const (
	maxLine = 8 << 20 // bytes; longer ones are skipped
	maxStep = 160     // characters
)

// Reader extracts steps from an agent's stream that comes in pieces.
type Reader struct {
	agent Agent
	line  []byte // the beginning of an incomplete line
	long  bool   // the current line is too long, and its rest is ignored
	cwd   string // the agent's working directory, as it reported
	said  []byte // the beginning of a message that comes in parts
}

// Read takes the next piece of the stream and returns the steps that the agent has started in it, one
// line each for people, such as "reads main.go", "runs go test ./..." or the first line of a message.
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
			steps = append(steps, r.agent.steps(r, r.line)...)
			r.line, r.long = nil, false
		}
	}
	return steps
}

// firstLine returns the first line of text that is not blank, made safe to display.
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

// parse decodes a line of JSON; false if the line is of no use.
func parse(text []byte, into any) bool {
	text = bytes.TrimSpace(text)
	return len(text) > 0 && text[0] == '{' && json.Unmarshal(text, into) == nil
}

// below returns a path relative to the agent's directory, if the path is in it.
func (r *Reader) below(name string) string {
	if rest, ok := strings.CutPrefix(path.Clean(name), path.Clean(r.cwd)+"/"); ok && r.cwd != "" {
		return rest
	}
	return name
}

// tool is the verb for the use of a tool, and the input field that holds the object.
type tool struct{ verb, field string }

// use describes the use of a tool.
func (r *Reader) use(tools map[string]tool, name string, input map[string]json.RawMessage) string {
	t, known := tools[name]
	if !known {
		return "uses " + cmp.Or(name, "a tool")
	}
	var on string
	_ = json.Unmarshal(input[t.field], &on) // of another type, or absent: only the verb remains
	if strings.HasSuffix(t.field, "path") {
		on = r.below(on)
	}
	return t.verb + " " + on
}
