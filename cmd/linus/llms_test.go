package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"linus/internal/doctest"
	"linus/internal/manual"
)

// llms.txt tells models which documents there are, in the form of llmstxt.org: README's
// title and first sentence, then each document with its own.
func TestDocs_LLMsTxtListsEveryDocument(t *testing.T) {
	t.Parallel()
	head := regexp.MustCompile(`^# (.+)\n\n\*\*(.+)\*\*\n`).FindStringSubmatch(doctest.Read(t, filepath.Join(repository, "README.md")))
	if head == nil {
		t.Fatal("README does not begin with a title and one sentence")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n> %s\n\n## Documents\n\n", head[1], head[2])
	for _, d := range manual.Heads() {
		fmt.Fprintf(&b, "- [%s](embed/docs/%s.md): %s\n", d.Title, d.Topic, d.Summary)
	}
	b.WriteString("\n## For agents\n\n" +
		"- [Skill](skills/linus/SKILL.md): How to use linus, by its command or by MCP.\n" +
		"- [AGENTS](AGENTS.md): How to work on this repository.\n" +
		"- [CONTRIBUTING](.github/CONTRIBUTING.md): Build, test loops, rules.\n")
	path := filepath.Join(repository, "llms.txt")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil { //nolint:gosec // a source file
			t.Fatal(err)
		}
	}
	if doctest.Read(t, path) != b.String() {
		t.Errorf("%s is stale: run make golden", path)
	}
}
