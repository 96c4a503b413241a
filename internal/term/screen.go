package term

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxErased is the length, in characters, of the longest line in which a sequence may erase. No
// progress bar is longer, and a task could keep linus busy by erasing a long line again and again.
const maxErased = 1024

// Screen shows a task's output as a terminal would: colours become styles, other escape sequences
// vanish, and a line that was overwritten (\r, \b, as by progress bars) is shown in its last state.
// It keeps the current line, and finished lines until they are taken. Text may be written in any
// pieces. The zero value is an empty screen.
type Screen struct {
	// MaxLine is how many characters a line may have; longer ones are broken. 0: unlimited.
	MaxLine int

	done    []Row // finished, not taken yet
	line    Row   // the current line
	column  int
	style   Style
	pending []byte // an unfinished character or escape sequence
}

// Row is a line of a screen, without its newline.
type Row []Cell

// Cell is one character on a screen.
type Cell struct {
	Char  rune
	Style Style
}

// Style is how a character looks. Colours are 1 to 16, 0 is the default.
type Style struct {
	FG, BG                                uint8
	Bold, Dim, Italic, Underline, Inverse bool
}

// String is the row's text.
func (r Row) String() string {
	var b strings.Builder
	for _, c := range r {
		b.WriteRune(c.Char)
	}
	return b.String()
}

// Write puts p on the screen. It never fails.
func (s *Screen) Write(p []byte) (int, error) {
	data := p
	if len(s.pending) > 0 {
		data = append(s.pending, p...)
		s.pending = nil
	}
	for len(data) > 0 {
		if n := introducer(data); n > 0 {
			whole := sequence(data)
			if whole == 0 && len(data) < maxSequence {
				break
			}
			s.control(data[:whole])
			data = data[max(whole, n):]
			continue
		}
		if !utf8.FullRune(data) {
			break
		}
		r, size := utf8.DecodeRune(data)
		s.put(r)
		data = data[size:]
	}
	s.pending = append([]byte(nil), data...)
	return len(p), nil
}

// Take returns the lines finished since the last call.
func (s *Screen) Take() []Row {
	done := s.done
	s.done = nil
	return done
}

// Current is the current, unfinished line.
func (s *Screen) Current() Row { return s.line }

// put shows a character, or executes a control character.
func (s *Screen) put(r rune) {
	switch {
	case r == '\n':
		s.endLine()
	case r == '\r':
		s.column = 0
	case r == '\b':
		s.column = max(0, s.column-1)
	case r != '\t' && isHidden(r): // bell and the like
	default:
		if s.MaxLine > 0 && s.column >= s.MaxLine {
			s.endLine()
		}
		for len(s.line) < s.column {
			s.line = append(s.line, Cell{Char: ' '})
		}
		if s.column < len(s.line) {
			s.line[s.column] = Cell{r, s.style}
		} else {
			s.line = append(s.line, Cell{r, s.style})
		}
		s.column++
	}
}

func (s *Screen) endLine() {
	s.done = append(s.done, s.line)
	s.line, s.column = nil, 0
}

// control executes a sequence if it affects a line: colours (SGR), erasing in it (EL), moving in it
// (CUF, CUB, CHA).
func (s *Screen) control(sequence []byte) {
	var body string
	switch text := string(sequence); {
	case strings.HasPrefix(text, "\x1b["):
		body = text[len("\x1b["):]
	case strings.HasPrefix(text, "\u009b"):
		body = text[len("\u009b"):]
	}
	if body == "" {
		return
	}
	args, final := body[:len(body)-1], body[len(body)-1]
	count, err := strconv.Atoi(args)
	if err != nil || count < 1 {
		count = 1
	}
	switch {
	case final == 'm':
		s.paint(args)
	case final == 'G': // not beyond what was written: a few bytes must not become many
		s.column = min(count-1, len(s.line))
	case final == 'C':
		s.column = min(s.column+min(count, len(s.line)), max(s.column, len(s.line)))
	case final == 'D':
		s.column = max(0, s.column-count)
	case final == 'K' && (args == "" || args == "0"):
		s.line = s.line[:min(s.column, len(s.line))]
	case final == 'K' && max(s.column, len(s.line)) > maxErased:
	case final == 'K' && args == "1":
		for i := range min(s.column+1, len(s.line)) {
			s.line[i] = Cell{Char: ' '}
		}
	case final == 'K' && args == "2":
		s.line = s.line[:0]
	}
}
