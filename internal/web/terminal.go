package web

import (
	"html"
	"strconv"
	"strings"

	"linus/internal/term"
)

// maxLine is the maximum number of characters in a line on the page. Longer lines are broken.
const maxLine = 16 << 10

// terminal renders a task's output as HTML the way a screen would show it, with
// colours as classes. The zero value is an empty terminal.
type terminal struct{ term.Screen }

func (t *terminal) Write(p []byte) (int, error) {
	t.MaxLine = maxLine
	return t.Screen.Write(p)
}

// take returns the lines finished since the last call.
func (t *terminal) take() string {
	var b strings.Builder
	for _, line := range t.Take() {
		writeLine(&b, line)
		b.WriteByte('\n')
	}
	return b.String()
}

func (t *terminal) current() string {
	var b strings.Builder
	writeLine(&b, t.Current())
	return b.String()
}

// writeLine writes cells as HTML, runs of one style in one span.
func writeLine(b *strings.Builder, line term.Row) {
	for i := 0; i < len(line); {
		j := i
		var text strings.Builder
		for ; j < len(line) && line[j].Style == line[i].Style; j++ {
			text.WriteRune(line[j].Char)
		}
		if name := class(line[i].Style); name != "" {
			b.WriteString(`<span class="` + name + `">` + html.EscapeString(text.String()) + `</span>`)
		} else {
			b.WriteString(html.EscapeString(text.String()))
		}
		i = j
	}
}

// class returns the style as class names, "" for the default.
func class(s term.Style) string {
	if s == (term.Style{}) {
		return ""
	}
	var names []string
	add := func(given bool, name string) {
		if given {
			names = append(names, name)
		}
	}
	add(s.FG > 0, "f"+strconv.Itoa(int(s.FG)-1))
	add(s.BG > 0, "b"+strconv.Itoa(int(s.BG)-1))
	add(s.Bold, "bold")
	add(s.Dim, "dim")
	add(s.Italic, "italic")
	add(s.Underline, "underline")
	add(s.Inverse, "inverse")
	return strings.Join(names, " ")
}
