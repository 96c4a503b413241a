package doctest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/doctest"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// A link between documents leads to a file there is, and to a heading in it.
func TestLinks_LeadSomewhere(t *testing.T) {
	count := 0
	for _, file := range doctest.Files(t) {
		text := fence.ReplaceAllString(doctest.Read(t, file), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			count++
			path, anchor, hasAnchor := strings.Cut(m[1], "#")
			target := file
			if path != "" {
				target = filepath.Join(filepath.Dir(file), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			} else if hasAnchor && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s links to %s, where no such heading is", file, m[1])
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d links were found", count)
	}
}

// anchors are the ids of a document's headings, as GitHub makes them.
func anchors(t *testing.T, path string) (ids []string) {
	t.Helper()
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(doctest.Read(t, path), ""), -1) {
		id := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		ids = append(ids, strings.ReplaceAll(id, " ", "-"))
	}
	return ids
}

// What looks like HTML is not shown: not on GitHub, not by the page.
func TestDocuments_HoldNoHTMLButComments(t *testing.T) {
	code := regexp.MustCompile("`[^`\n]*`")
	for _, file := range doctest.Files(t) {
		text := code.ReplaceAllString(fence.ReplaceAllString(doctest.Read(t, file), ""), "")
		for _, m := range regexp.MustCompile(`<[A-Za-z/][^>]*>`).FindAllString(text, -1) {
			t.Errorf("%s: %s is HTML; put it in backquotes", file, m)
		}
	}
}

// README is the first screen and the way on, not the manual.
func TestReadme_IsShort(t *testing.T) {
	const limit = 12_300 // bytes
	if n := len(doctest.Read(t, doctest.Files(t)[0])); n > limit {
		t.Errorf("README.md has %d bytes, more than %d: what is not for everybody goes to embed/docs", n, limit)
	}
}

// What troubleshooting quotes is what the code says; "..." stands for what
// differs.
func TestTroubleshooting_QuotesWhatIsSaid(t *testing.T) {
	root := filepath.Dir(doctest.Files(t)[0])
	var said strings.Builder
	for _, dir := range []string{"cmd/linus", "internal", "scripts"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") || !slices.Contains([]string{".go", ".sh"}, filepath.Ext(path)) {
				return err
			}
			said.WriteString(doctest.Read(t, path))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(doctest.Read(t, filepath.Join(root, "embed", "docs", "troubleshooting.md")), -1)
	if len(rows) < 10 {
		t.Fatalf("%d messages", len(rows))
	}
	source := strings.ReplaceAll(said.String(), `\"`, `"`)
	for _, m := range rows {
		for _, part := range strings.Split(m[1], "...") {
			if part = strings.Trim(part, ` "'`); !strings.Contains(source, part) {
				t.Errorf("nothing says %q, of %q", part, m[1])
			}
		}
	}
}
