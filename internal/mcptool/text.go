package mcptool

import (
	"context"
	"strings"
	"unicode/utf8"

	"linus/internal/job"
	"linus/internal/term"
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

// read returns a stretch of a stream. It never ends amid a character, nor with
// plain amid an escape sequence, unless the stream does.
func read(ctx context.Context, e job.Engine, id, stream string, offset int64, limit int, plain bool) (piece, error) {
	chunk, err := e.Output(ctx, id, stream, offset, int64(limit))
	if err != nil {
		return piece{}, err
	}
	data := chunk.Data
	if !chunk.Complete {
		n := wholeRunes(data)
		if plain {
			n = term.Whole(data)
		}
		if n > 0 || len(data) < limit { // else nothing would ever come
			data = data[:n]
		}
	}
	p := piece{offset: chunk.Offset, dropped: chunk.Dropped, next: chunk.Offset + int64(len(data)), invalid: !utf8.Valid(data)}
	p.whole = chunk.Complete && len(data) == len(chunk.Data)
	p.text = strings.ToValidUTF8(string(data), "\uFFFD")
	if plain {
		p.text = term.Plain(p.text)
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

// streams are both outputs of a task.
var streams = []string{job.Stdout, job.Stderr}
