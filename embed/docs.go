package embed

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

//go:embed docs/*.md docs/*.svg
var docs embed.FS

// Doc is one of the documents that come with the binary.
type Doc struct {
	Topic   string `json:"topic"`   // file name without .md: what linus help takes
	Title   string `json:"title"`   // its first heading
	Summary string `json:"summary"` // its first paragraph, one line
	Text    string `json:"text"`    // all of it, Markdown
}

// Docs returns the documents in reading order.
func Docs() []Doc {
	topics := []string{
		"tools", "manifest", "cli", "settings", "guarantees", "http", "operate", "scale",
		"scripts", "templates", "lab", "architecture", "benchmark", "troubleshooting",
	}
	list := make([]Doc, 0, len(topics))
	for _, topic := range topics {
		text, err := docs.ReadFile("docs/" + topic + ".md")
		if err != nil {
			panic(err) // compiled in
		}
		d, err := parseDoc(topic, string(text))
		if err != nil {
			panic(err) // a test reads them all
		}
		list = append(list, d)
	}
	return list
}

// parseDoc takes title and summary from a document's first two paragraphs.
func parseDoc(topic, text string) (Doc, error) {
	parts := strings.SplitN(text, "\n\n", 3)
	if len(parts) < 3 || !strings.HasPrefix(parts[0], "# ") || slices.ContainsFunc(parts[:2], func(p string) bool { return strings.Contains(p, "\n") }) {
		return Doc{}, fmt.Errorf("document %s does not begin with a title and a summary of one line each", topic)
	}
	return Doc{Topic: topic, Title: strings.TrimPrefix(parts[0], "# "), Summary: parts[1], Text: text}, nil
}

// Plot returns a picture that a document shows, by its file name.
func Plot(name string) (svg []byte, ok bool) {
	svg, err := docs.ReadFile("docs/" + name)
	return svg, err == nil && strings.HasSuffix(name, ".svg")
}
