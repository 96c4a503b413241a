package web

import (
	"html"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of what a terminal holds, whatever a task writes.
const (
	maxLine   = 16 << 10 // characters; a longer line is broken
	maxEscape = 256      // bytes of an escape sequence; a longer one is none
)

// terminal turns a task's output into HTML as a screen would show it: colours
// become classes, other escape sequences vanish, and of a line that was written
// over (\r, \b, as progress bars do) the last state is shown. Text may be
// written in any pieces. The zero value is a terminal with nothing on it.
type terminal struct {
	done    strings.Builder // finished lines as HTML, not taken yet
	line    []cell          // the line under way
	column  int
	style   style
	pending []byte // an unfinished character or escape sequence
}

type cell struct {
	char  rune
	style style
}

// style is how a character looks. Colours are 1 to 16, 0 is the default.
type style struct {
	fg, bg                                uint8
	bold, dim, italic, underline, inverse bool
}

func (t *terminal) Write(p []byte) (int, error) {
	data := append(t.pending, p...)
	t.pending = nil
	for len(data) > 0 {
		if data[0] == '\x1b' {
			n := escapeLength(data)
			if n == 0 && len(data) < maxEscape {
				break
			}
			t.escape(string(data[:n]))
			data = data[max(n, 1):]
			continue
		}
		if !utf8.FullRune(data) {
			break
		}
		r, size := utf8.DecodeRune(data)
		t.put(r)
		data = data[size:]
	}
	t.pending = append(t.pending, data...)
	return len(p), nil
}

// put shows a character, or does what a control character asks for.
func (t *terminal) put(r rune) {
	switch {
	case r == '\n':
		t.endLine()
	case r == '\r':
		t.column = 0
	case r == '\b':
		t.column = max(0, t.column-1)
	case r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0: // bell and the like
	default:
		if t.column >= maxLine {
			t.endLine()
		}
		for len(t.line) <= t.column {
			t.line = append(t.line, cell{char: ' '})
		}
		t.line[t.column] = cell{r, t.style}
		t.column++
	}
}

func (t *terminal) endLine() {
	writeLine(&t.done, t.line)
	t.done.WriteByte('\n')
	t.line, t.column = t.line[:0], 0
}

// take answers the lines finished since the last call.
func (t *terminal) take() string {
	text := t.done.String()
	t.done.Reset()
	return text
}

// current is the line under way.
func (t *terminal) current() string {
	var b strings.Builder
	writeLine(&b, t.line)
	return b.String()
}

// escapeLength is the length of the escape sequence data begins with, 0 while
// its end is missing (ECMA-48: CSI to its final byte, OSC and its like to BEL
// or ESC \, others two characters and more).
func escapeLength(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '[':
		for i := 2; i < len(data); i++ {
			if data[i] >= 0x40 && data[i] <= 0x7e {
				return i + 1
			}
		}
		return 0
	case ']', 'P', '_', '^', 'X':
		for i := 2; i < len(data); i++ {
			if data[i] == '\a' {
				return i + 1
			}
			if data[i] == '\x1b' && i+1 < len(data) {
				return i + 2
			}
		}
		return 0
	}
	for i := 1; i < len(data); i++ {
		if data[i] < 0x20 || data[i] > 0x2f {
			return i + 1
		}
	}
	return 0
}

// escape does what a sequence asks for, if it is one of those that matter to a
// line: colours (SGR) and erasing in it (EL).
func (t *terminal) escape(sequence string) {
	if len(sequence) < 3 || sequence[1] != '[' {
		return
	}
	args, final := sequence[2:len(sequence)-1], sequence[len(sequence)-1]
	switch {
	case final == 'm':
		t.paint(args)
	case final == 'K' && (args == "" || args == "0"):
		t.line = t.line[:min(t.column, len(t.line))]
	case final == 'K' && args == "1":
		for i := range min(t.column+1, len(t.line)) {
			t.line[i] = cell{char: ' '}
		}
	case final == 'K' && args == "2":
		t.line = t.line[:0]
	}
}

// paint sets the style of what follows.
func (t *terminal) paint(args string) {
	var codes []int
	for _, word := range strings.FieldsFunc(args+";", func(r rune) bool { return r == ';' || r == ':' }) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return // a private sequence
		}
		codes = append(codes, n)
	}
	if len(codes) == 0 {
		codes = []int{0}
	}
	s := &t.style
	for i := 0; i < len(codes); i++ {
		switch c := codes[i]; {
		case c == 0:
			*s = style{}
		case c == 1:
			s.bold = true
		case c == 2:
			s.dim = true
		case c == 3:
			s.italic = true
		case c == 4:
			s.underline = true
		case c == 7:
			s.inverse = true
		case c == 22:
			s.bold, s.dim = false, false
		case c == 23:
			s.italic = false
		case c == 24:
			s.underline = false
		case c == 27:
			s.inverse = false
		case c >= 30 && c <= 37:
			s.fg = uint8(c - 30 + 1)
		case c >= 90 && c <= 97:
			s.fg = uint8(c - 90 + 9)
		case c >= 40 && c <= 47:
			s.bg = uint8(c - 40 + 1)
		case c >= 100 && c <= 107:
			s.bg = uint8(c - 100 + 9)
		case c == 39:
			s.fg = 0
		case c == 49:
			s.bg = 0
		case c == 38 || c == 48:
			colour, used := extended(codes[i+1:])
			if c == 38 {
				s.fg = colour
			} else {
				s.bg = colour
			}
			i += used
		}
	}
}

// extended reads the rest of "38;5;N" or "38;2;R;G;B" and answers the nearest
// of the sixteen colours, and how many codes that took.
func extended(codes []int) (colour uint8, used int) {
	switch {
	case len(codes) >= 2 && codes[0] == 5:
		n := codes[1]
		switch {
		case n < 0 || n > 255:
			return 0, 2
		case n < 16:
			return uint8(n + 1), 2
		case n < 232: // a cube of 6 by 6 by 6
			n -= 16
			return nearest(n/36*51, n/6%6*51, n%6*51), 2
		}
		grey := (n-232)*10 + 8
		return nearest(grey, grey, grey), 2
	case len(codes) >= 4 && codes[0] == 2:
		return nearest(codes[1], codes[2], codes[3]), 4
	}
	return 0, len(codes)
}

// nearest is the one of the sixteen colours that comes closest.
func nearest(r, g, b int) uint8 {
	high := max(r, g, b)
	switch {
	case high < 48:
		return 1 // black
	case high-min(r, g, b) < 32: // a grey
		return map[bool]uint8{true: 16, false: 9}[high > 160]
	}
	colour := uint8(1)
	for i, v := range []int{r, g, b} {
		if v > high/2 {
			colour += 1 << i
		}
	}
	if high > 210 {
		colour += 8
	}
	return colour
}

// writeLine writes cells as HTML, runs of one style in one span.
func writeLine(b *strings.Builder, line []cell) {
	for i := 0; i < len(line); {
		j := i
		var text strings.Builder
		for ; j < len(line) && line[j].style == line[i].style; j++ {
			text.WriteRune(line[j].char)
		}
		if class := line[i].style.class(); class != "" {
			b.WriteString(`<span class="` + class + `">` + html.EscapeString(text.String()) + `</span>`)
		} else {
			b.WriteString(html.EscapeString(text.String()))
		}
		i = j
	}
}

// class is the style as class names, empty for the default.
func (s style) class() string {
	if s == (style{}) {
		return ""
	}
	var names []string
	add := func(given bool, name string) {
		if given {
			names = append(names, name)
		}
	}
	add(s.fg > 0, "f"+strconv.Itoa(int(s.fg)-1))
	add(s.bg > 0, "b"+strconv.Itoa(int(s.bg)-1))
	add(s.bold, "bold")
	add(s.dim, "dim")
	add(s.italic, "italic")
	add(s.underline, "underline")
	add(s.inverse, "inverse")
	return strings.Join(names, " ")
}
