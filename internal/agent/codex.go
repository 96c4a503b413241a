package agent

import (
	"bytes"
	"strings"
)

// codexLine is a line of the output of codex exec --json.
type codexLine struct {
	Type string `json:"type"`
	Item struct {
		Type    string `json:"type"`
		Text    string `json:"text"`
		Command string `json:"command"`
		Query   string `json:"query"`
		Server  string `json:"server"`
		Tool    string `json:"tool"`
		Changes []struct {
			Path string `json:"path"`
			Kind string `json:"kind"`
		} `json:"changes"`
	} `json:"item"`
}

func codexSteps(r *Reader, text []byte) (steps []string) {
	var l codexLine
	if !parse(text, &l) {
		return nil
	}
	add := func(step string) {
		if step = firstLine(step); step != "" {
			steps = append(steps, step)
		}
	}
	switch l.Type + " " + l.Item.Type {
	case "item.started command_execution":
		add("runs " + l.Item.Command)
	case "item.started mcp_tool_call":
		add("uses " + strings.TrimSpace(l.Item.Server+" "+l.Item.Tool))
	case "item.completed web_search":
		add("searches the web for " + l.Item.Query)
	case "item.completed agent_message":
		add(l.Item.Text)
	case "item.completed file_change":
		for _, c := range l.Item.Changes {
			verb, known := map[string]string{"add": "writes", "delete": "removes"}[c.Kind]
			if !known {
				verb = "edits"
			}
			add(verb + " " + r.below(c.Path))
		}
	}
	return steps
}

// codexAnswer returns the last message.
func codexAnswer(stream []byte) (text string, ok bool) {
	for raw := range bytes.Lines(stream) {
		var l codexLine
		if parse(raw, &l) && l.Type == "item.completed" && l.Item.Type == "agent_message" {
			text, ok = l.Item.Text, true
		}
	}
	return text, ok
}
