// Package doctest checks README and the documents of embed/docs against the code. It finds
// generated parts by their markers, so a part may move from one document to another. It knows
// nothing about their contents.
package doctest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Files returns the paths of README, of every document in embed/docs and .github, and of the
// documents for agents.
func Files(t testing.TB) []string {
	t.Helper()
	root := "." // tests run in the directory of their package
	for _, err := os.Stat("go.mod"); err != nil; _, err = os.Stat(filepath.Join(root, "go.mod")) {
		if root = filepath.Join("..", root); len(root) > 100 {
			t.Fatal("there is no go.mod above")
		}
	}
	files := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"embed/docs/*.md", ".github/*.md", "AGENTS.md", "llms.txt", "skills/*/SKILL.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}

// Read returns a document's text.
func Read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Part returns the text between the markers <!-- NAME:begin --> and <!-- NAME:end -->, each on its
// own line. Exactly one document must have the part.
func Part(t testing.TB, name string) string {
	t.Helper()
	_, _, part, _ := find(t, name)
	return part
}

// Cell escapes text for a cell of a table: a bar does not end the cell, and a word such as NAME_<X>
// is not taken for HTML.
func Cell(text string) string {
	text = angled.ReplaceAllString(text, "`$0`")
	return strings.ReplaceAll(text, "|", `\|`)
}

var angled = regexp.MustCompile(`\w*<\w+>`)

// Keep fails the test unless the part equals text. With update it writes text to the document
// instead.
func Keep(t testing.TB, name, text string, update bool) {
	t.Helper()
	path, before, part, after := find(t, name)
	switch {
	case part == text:
	case update:
		if err := os.WriteFile(path, []byte(before+text+after), 0o644); err != nil { //nolint:gosec // a source file
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is stale (%s): run make golden", path, name)
	}
}

func find(t testing.TB, name string) (path, before, part, after string) {
	t.Helper()
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	for _, file := range Files(t) {
		head, rest, found := strings.Cut(Read(t, file), begin)
		if !found {
			continue
		}
		inner, tail, ended := strings.Cut(rest, end)
		if !ended || path != "" || strings.Contains(tail, begin) {
			t.Fatalf("part %s: in %s it has no end, or it is there twice", name, file)
		}
		path, before, part, after = file, head+begin, inner, end+tail
	}
	if path == "" {
		t.Fatalf("no document has the part %s", name)
	}
	return path, before, part, after
}

// Routes fails the test unless a document's part lists exactly these routes, each
// as a method and a path in a code span.
func Routes(t testing.TB, name string, routes []string) {
	t.Helper()
	var listed []string
	for _, m := range regexp.MustCompile("`([A-Z]+ /[^`]*)`").FindAllStringSubmatch(Part(t, name), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(routes)
	slices.Sort(listed)
	if diff := cmp.Diff(routes, listed); diff != "" {
		t.Errorf("-the router's routes +the document's:\n%s", diff)
	}
}
