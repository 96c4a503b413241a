package manual_test

import (
	"regexp"
	"strings"
	"testing"

	"linus/internal/manual"
)

func doc(text string) manual.Topic { return manual.Topic{Topic: "x", Text: text} }

func TestText_IsPlain(t *testing.T) {
	got := manual.Text(doc(strings.Join([]string{
		"# Title", "", "Some `code`, **bold** and [settings](settings.md#x), [the page](http.md),", "[out](https://example.com).", "",
		"<!-- part:begin -->", "| name | default | what |", "| --- | --- | --- |", "| `A` |  | first |", "| `B\\|C` | 1 | second |", "<!-- part:end -->", "",
		"| code | what |", "| --- | --- |", "| 1 | it failed, and these are words enough for more than one line |", "",
		"## Part", "", "- one", "  two", "", "1. first", "2. second", "", "```console", "$ a  b", "```", "", "### Deeper", "", "End.",
	}, "\n")), 60)
	want := `TITLE
=====

Some code, bold and linus help settings, the page (linus
help http), out.

A
    what: first
B|C
    default: 1
    what: second

1  it failed, and these are words enough for more than one
   line

Part
----

- one two

1. first
2. second

    $ a  b

Deeper

End.
`
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// Every document: nothing of Markdown's marks is left, and only what cannot be
// broken is wider than asked for.
func TestText_OfEveryDocument(t *testing.T) {
	for _, topic := range manual.Topics() {
		text := manual.Text(topic, 80)
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			code := strings.HasPrefix(line, "    ")
			if words := strings.Fields(line); len([]rune(line)) > 80 && len(words) > 1 && !code {
				t.Errorf("%s: a line is wider than 80: %q", topic.Topic, line)
			}
			if !code && regexp.MustCompile(`<!--|\*\*\w|\]\(|^#|^\|`).MatchString(line) {
				t.Errorf("%s: Markdown is left: %q", topic.Topic, line)
			}
		}
	}
}

func TestHTML_LeadsToOtherDocumentsAndHoldsNoRawHTML(t *testing.T) {
	got, err := manual.HTML(doc("# A title\n\n<script>alert(1)</script>\n\n<!-- part:begin -->\nText <b onclick=x>bold</b> [s](settings.md#where) [j](javascript:alert(1)) [o](https://example.com) &lt;i&gt; `<u>`\n"), "/help/")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`<h1 id="a-title">`, `href="/help/settings#where"`, `href="https://example.com"`, `&lt;i&gt;`, `<code>&lt;u&gt;</code>`} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s in:\n%s", want, got)
		}
	}
	for _, foreign := range []string{"<script", "onclick", "javascript:", "<!--", "<b"} {
		if strings.Contains(got, foreign) {
			t.Errorf("%s is in:\n%s", foreign, got)
		}
	}
}

func TestHTML_OfEveryDocument(t *testing.T) {
	for _, topic := range manual.Topics() {
		html, err := manual.HTML(topic, "/help/")
		if err != nil || !strings.Contains(html, "<h1") || strings.Contains(html, "<!--") || strings.Contains(html, `.md"`) {
			t.Errorf("%s: %v\n%s", topic.Topic, err, html)
		}
	}
}
