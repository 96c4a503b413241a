package mcptool

import (
	"context"
	"strings"
	"unicode/utf8"

	"linus/internal/job"
)

// piece is a stretch of a stream as text.
type piece struct {
	text    string
	offset  int64 // of its first byte
	next    int64 // the offset to ask for next
	dropped int64 // bytes before offset that were asked for and are not held
	whole   bool  // the stream ends at next
	invalid bool  // bytes that are no UTF-8 were replaced
}

// read answers a stretch of a stream. It never ends amid a character, nor with
// plain amid an escape sequence, unless the stream does.
func read(ctx context.Context, e Engine, id, stream string, offset int64, limit int, plain bool) (piece, error) {
	chunk, err := e.Output(ctx, id, stream, offset, int64(limit))
	if err != nil {
		return piece{}, err
	}
	data := chunk.Data
	if !chunk.Complete {
		n := wholeRunes(data)
		if plain {
			n = wholeEscapes(data[:n])
		}
		if n > 0 || len(data) < limit { // else nothing would ever come
			data = data[:n]
		}
	}
	p := piece{offset: chunk.Offset, dropped: chunk.Dropped, next: chunk.Offset + int64(len(data)), invalid: !utf8.Valid(data)}
	p.whole = chunk.Complete && len(data) == len(chunk.Data)
	p.text = strings.ToValidUTF8(string(data), "\uFFFD")
	if plain {
		p.text = screen(p.text)
	}
	return p, nil
}

// wholeRunes is the length of data without a character that is cut off.
func wholeRunes(data []byte) int {
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

// longestEscape bounds what is taken for the beginning of an escape sequence.
const longestEscape = 256

// wholeEscapes is the length of data without an escape sequence that is cut off.
func wholeEscapes(data []byte) int {
	at := strings.LastIndexByte(string(data), esc)
	if at >= 0 && len(data)-at < longestEscape && escape(string(data[at:])) == 0 {
		return at
	}
	return len(data)
}

const (
	esc = '\x1b'
	bel = '\a'
)

// escape is the length of the escape sequence text begins with, 0 when it is
// cut off (ECMA-48: CSI to its final byte, OSC and its like to BEL or ESC \,
// others two characters and more).
func escape(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '[':
		for i := 2; i < len(text); i++ {
			if text[i] >= 0x40 && text[i] <= 0x7e {
				return i + 1
			}
		}
		return 0
	case ']', 'P', '_', '^', 'X':
		for i := 2; i < len(text); i++ {
			if text[i] == bel {
				return i + 1
			}
			if text[i] == esc && i+1 < len(text) {
				return i + 2
			}
		}
		return 0
	}
	for i := 1; i < len(text); i++ {
		if text[i] < 0x20 || text[i] > 0x2f {
			return i + 1
		}
	}
	return 0
}

// screen is what a terminal would show of text: no colours and other escape
// sequences, and of a line that was written over (progress bars: \r, \b) the
// last state.
func screen(text string) string {
	if !strings.ContainsAny(text, "\x1b\r\b\a\x7f") {
		return text
	}
	var out strings.Builder
	var line []rune
	column, erased := 0, false
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == esc:
			n := escape(text)
			if n == 0 {
				n = len(text)
			}
			switch text[:n] {
			case "\x1b[K", "\x1b[0K":
				line = line[:column]
			case "\x1b[2K":
				erased = true
				for i := range line {
					line[i] = ' '
				}
			}
			text = text[n:]
			continue
		case r == '\n':
			if erased {
				line = []rune(strings.TrimRight(string(line), " "))
			}
			out.WriteString(string(line) + "\n")
			line, column, erased = line[:0], 0, false
		case r == '\r':
			column = 0
		case r == '\b':
			column = max(0, column-1)
		case r < 0x20 && r != '\t', r == 0x7f:
		case column < len(line):
			line[column] = r
			column++
		default:
			line = append(line, r)
			column++
		}
		text = text[size:]
	}
	out.WriteString(string(line))
	return out.String()
}

// streams are both outputs of a task.
var streams = []string{job.Stdout, job.Stderr}
