package embed

import (
	"embed"
	"fmt"
	"io"
	"math"
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
func Docs() []Doc { return read(math.MaxInt) }

// Heads returns the documents without their texts, which costs little: each start of linus
// lists them.
func Heads() []Doc {
	list := read(maxHead)
	for i := range list {
		list[i].Text = ""
	}
	return list
}

// maxHead is the most bytes that title and summary have.
const maxHead = 1 << 10

// read returns the documents with at most limit bytes of their texts.
func read(limit int64) []Doc {
	topics := []string{
		"tools", "manifest", "cli", "settings", "guarantees", "http", "api", "access", "network", "credentials", "dispatch", "e2b", "operate", "costs", "scale",
		"scripts", "templates", "lab", "architecture", "benchmark", "troubleshooting",
	}
	list := make([]Doc, 0, len(topics))
	for _, topic := range topics {
		var d Doc
		f, err := docs.Open("docs/" + topic + ".md")
		if err == nil {
			var text strings.Builder
			_, err = io.Copy(&text, io.LimitReader(f, limit))
			_ = f.Close()
			if err == nil {
				d, err = parseDoc(topic, text.String())
			}
		}
		if err != nil {
			panic(err) // compiled in, and a test reads them all
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
