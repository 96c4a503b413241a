package embed

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestDocs_EveryFileIsATopic(t *testing.T) {
	var topics []string
	for _, d := range Docs() {
		topics = append(topics, d.Topic)
		if d.Title == "" || len(d.Summary) > 100 {
			t.Errorf("%s: title %q, summary %q", d.Topic, d.Title, d.Summary)
		}
	}
	files, err := fs.Glob(docs, "docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(topics, strings.TrimSuffix(path.Base(f), ".md")) {
			t.Errorf("%s is in no list of topics", f)
		}
	}
	if len(files) != len(topics) {
		t.Errorf("%d files, %d topics", len(files), len(topics))
	}
}

func TestParseDoc_WantsTitleAndSummary(t *testing.T) {
	for name, text := range map[string]string{
		"no title":             "Text\n\nMore\n\nAnd more",
		"summary of two lines": "# Title\n\nOne\ntwo\n\nText",
		"nothing else":         "# Title\n\nSummary",
	} {
		if d, err := parseDoc("x", text); err == nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestHeads_AreTheDocumentsWithoutTexts(t *testing.T) {
	t.Parallel()
	want := Docs()
	for i := range want {
		want[i].Text = ""
	}
	if got := Heads(); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
