// Package manual shows the built-in documents: as plain text for a terminal and as HTML for the web
// page. It owns the rendering of Markdown, and does not know what the documents say.
package manual

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"

	"linus/embed"
)

// Topic is one document.
type Topic = embed.Doc

// Topics returns all documents in reading order.
func Topics() []Topic { return embed.Docs() }

// Heads returns all documents without their texts.
func Heads() []Topic { return embed.Heads() }

// Find returns the document with a topic's name.
func Find(name string) (Topic, bool) {
	topics := Topics()
	i := slices.IndexFunc(topics, func(t Topic) bool { return t.Topic == name })
	if i < 0 {
		return Topic{}, false
	}
	return topics[i], true
}

// Plot returns the SVG with this file name that a document shows; ok is false if there is none.
func Plot(name string) (svg []byte, ok bool) { return embed.Plot(name) }

// HTML renders a document for a page: headings get IDs, raw HTML is left out, and a link to another
// document leads to base + its topic. goldmark decides which other links are allowed: it drops
// javascript: and the like.
func HTML(t Topic, base string) (string, error) {
	source := []byte(t.Text)
	tree := markdown().Parser().Parse(text.NewReader(source))
	var raw []ast.Node
	err := ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := n.(type) {
		case *ast.Link:
			if topic, anchor, ok := topicLink(string(n.Destination)); ok && entering {
				n.Destination = []byte(base + topic + anchor)
			}
		case *ast.HTMLBlock, *ast.RawHTML:
			if entering {
				raw = append(raw, n)
			}
		}
		return ast.WalkContinue, nil
	})
	for _, n := range raw {
		n.Parent().RemoveChild(n.Parent(), n)
	}
	var b bytes.Buffer
	if err == nil {
		err = markdown().Renderer().Render(&b, source, tree)
	}
	if err != nil {
		return "", fmt.Errorf("render %s: %w", t.Topic, err)
	}
	return b.String(), nil
}

// topicLink splits a link to another document, topic.md#anchor. It returns false for other links.
func topicLink(destination string) (topic, anchor string, ok bool) {
	file, fragment, found := strings.Cut(destination, "#")
	if found {
		anchor = "#" + fragment
	}
	topic, ok = strings.CutSuffix(file, ".md")
	return topic, anchor, ok && !strings.Contains(topic, "/")
}

func markdown() goldmark.Markdown {
	return goldmark.New(goldmark.WithExtensions(extension.Table), goldmark.WithParserOptions(parser.WithAutoHeadingID()))
}
