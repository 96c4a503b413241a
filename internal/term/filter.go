// Package term is everything linus knows about terminals: a filter for texts that others wrote
// (guests, their agents and SSH servers, host scripts that quote them) before people see them, and
// a model of the screen for a task's output. It knows nothing of jobs and imports only the standard
// library; every package may import it.
package term

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Text returns a text of several lines made safe to show on a terminal: without escape sequences,
// control characters other than newline and tab, and characters that reverse or hide text. Invalid
// UTF-8 becomes U+FFFD. Clean text is returned unchanged, so Text is idempotent.
func Text(text string) string { return filter(text, false, nil) }

// Line is Text on one line: newlines and tabs become spaces.
func Line(text string) string { return filter(text, true, nil) }

// Name returns a name, of a file for example, with '_' for each character that is not shown as
// itself. No character vanishes, so different names are likely to stay different.
func Name(name string) string {
	if isPlain(name, true) {
		return name
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == utf8.RuneError || isHidden(r) {
			return '_'
		}
		return r
	}, name)
}

// Visible is Text that leaves nothing out: what Text would remove is written as an escape
// such as \x1b or \u202e. Only a carriage return before a newline vanishes.
func Visible(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if isPlain(text, false) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t' || !isHidden(r):
			out.WriteRune(r) // U+FFFD if invalid
		case r < 0x80:
			_, _ = fmt.Fprintf(&out, `\x%02x`, r)
		case r < 0x10000:
			_, _ = fmt.Fprintf(&out, `\u%04x`, r)
		default:
			_, _ = fmt.Fprintf(&out, `\U%08x`, r)
		}
	}
	return out.String()
}

// JSON returns JSON in which characters that Text would remove are escaped, as \u009b: it means the
// same and is safe to show.
func JSON(data []byte) []byte {
	if isPlain(string(data), false) {
		return data
	}
	out := make([]byte, 0, len(data)+64)
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		// Encoders escape what is below U+0020, but write newlines between values.
		if r >= 0x7f && isHidden(r) {
			for _, unit := range utf16.Encode([]rune{r}) {
				out = fmt.Appendf(out, `\u%04x`, unit)
			}
		} else {
			out = append(out, data[:size]...)
		}
		data = data[size:]
	}
	return out
}

// isPlain reports whether text is printable ASCII, with newlines and tabs unless it must be one
// line: a fast check for the usual case.
func isPlain(text string, line bool) bool {
	for i := range len(text) {
		if c := text[i]; (c < ' ' && (line || (c != '\n' && c != '\t'))) || c >= 0x7f {
			return false
		}
	}
	return true
}

// filter removes escape sequences and hidden characters. If harmless is not nil, the sequences that
// it accepts stay, and so do \r and \b.
func filter(text string, line bool, harmless func(sequence []byte) bool) string {
	if isPlain(text, line) {
		return text
	}
	data := []byte(text)
	var out strings.Builder
	for len(data) > 0 {
		if n := introducer(data); n > 0 {
			if whole := sequence(data); whole > 0 {
				n = whole
			}
			if harmless != nil && harmless(data[:n]) {
				out.Write(data[:n])
			}
			data = data[n:] // of an unfinished sequence only the introducer
			continue
		}
		r, size := utf8.DecodeRune(data)
		switch {
		case line && (r == '\n' || r == '\t' || r == '\u2028' || r == '\u2029'):
			out.WriteByte(' ')
		case r == '\n' || r == '\t' || !isHidden(r), harmless != nil && (r == '\r' || r == '\b'):
			out.WriteRune(r) // U+FFFD if invalid
		}
		data = data[size:]
	}
	return out.String()
}

// isHidden reports whether a character is not visible where it stands: controls (C0, DEL, C1),
// characters that set the direction of text, line separators, and invisible ones.
func isHidden(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0:
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // direction
	case r == 0x2028, r == 0x2029:
	case r == 0xad, r == 0x200b, r == 0xfeff, r >= 0x2060 && r <= 0x2065, r >= 0x206a && r <= 0x206f, r >= 0xfff9 && r <= 0xfffb, r == 0x180e: // invisible
	case r >= 0xe0000 && r <= 0xe007f: // tags
	default:
		return false
	}
	return true
}

// maxSequence bounds an escape sequence, in bytes: anything longer is not one.
const maxSequence = 1024

// introducer returns the length of a sequence's introducer at the beginning of data: ESC, or one of
// the C1 controls that mean ESC and a letter, in UTF-8.
func introducer(data []byte) int {
	switch {
	case data[0] == '\x1b':
		return 1
	case len(data) > 1 && data[0] == 0xc2 && data[1] >= 0x80 && data[1] < 0xa0:
		return 2
	}
	return 0
}

// sequence returns the length of the control sequence that data begins with; 0 if its end is
// missing (ECMA-48: CSI ends with its final byte, OSC and the like with BEL or ST, others have two
// characters or more). data begins with an introducer.
func sequence(data []byte) int {
	n := introducer(data)
	if len(data) > maxSequence {
		data = data[:maxSequence]
	}
	var kind byte
	if n == 2 {
		kind = data[1] - 0x40
	} else if len(data) > 1 {
		kind, n = data[1], 2
	} else {
		return 0
	}
	switch kind {
	case '[':
		for ; n < len(data); n++ {
			switch c := data[n]; {
			case c >= 0x40 && c <= 0x7e:
				return n + 1
			case c < 0x20 || c > 0x7e: // not part of the sequence, which ends before it
				return n
			}
		}
		return 0
	case ']', 'P', '_', '^', 'X':
		for i := n; i < len(data); i++ {
			switch {
			case data[i] == '\a':
				return i + 1
			case data[i] == '\x1b' && i+1 < len(data) && data[i+1] == '\\', data[i] == 0xc2 && i+1 < len(data) && data[i+1] == 0x9c:
				return i + 2
			case i+1 < len(data) && introducer(data[i:]) > 0: // another sequence begins: this one is over
				return i
			}
		}
		return 0
	}
	if data[0] != '\x1b' {
		return n // a control by itself
	}
	for i := 1; i < len(data); i++ {
		if data[i] < 0x20 || data[i] > 0x2f {
			if data[i] < 0x20 || data[i] > 0x7e {
				return i
			}
			return i + 1
		}
	}
	return 0
}

// WholeRunes returns the length of data without an incomplete character at its end, for callers
// that get the rest later.
func WholeRunes(data []byte) int {
	for i := len(data) - 1; i >= 0 && i >= len(data)-utf8.UTFMax; i-- {
		if utf8.RuneStart(data[i]) {
			if !utf8.FullRune(data[i:]) {
				return i
			}
			break
		}
	}
	return len(data)
}

// Whole returns the length of data without an incomplete character or escape sequence at its end.
func Whole(data []byte) int {
	n := WholeRunes(data)
	// The last sequence may begin with an ESC that is part of another.
	from := max(0, n-maxSequence+1)
	for at := from; at < n; {
		i := bytes.IndexFunc(data[at:n], func(r rune) bool { return r == '\x1b' || (r >= 0x80 && r < 0xa0) })
		if i < 0 {
			break
		}
		at += i
		length := sequence(data[at:n])
		if length == 0 {
			return at
		}
		at += length
	}
	return n
}
