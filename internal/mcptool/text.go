package mcptool

import (
	"bytes"
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
// plain amid an escape sequence, unless the stream does. With plain it is what a
// terminal shows, as the command line prints it: a line that was written over
// since the stretch before comes once more.
func read(ctx context.Context, e job.Engine, id, stream string, offset int64, limit int, plain bool) (piece, error) {
	chunk, err := e.Output(ctx, id, stream, offset, int64(limit))
	if err != nil {
		return piece{}, err
	}
	data := chunk.Data
	if !chunk.Complete {
		n := term.WholeRunes(data)
		if plain {
			n = term.Whole(data)
		}
		if n > 0 || len(data) < limit { // else nothing would ever come
			data = data[:n]
		}
	}
	p := piece{offset: chunk.Offset, dropped: chunk.Dropped, next: chunk.Offset + int64(len(data)), invalid: !utf8.Valid(data)}
	p.whole = chunk.Complete && len(data) == len(chunk.Data)
	if !plain {
		p.text = strings.ToValidUTF8(string(data), "\uFFFD")
		return p, nil
	}
	line, err := before(ctx, e, id, stream, p.offset)
	p.text = term.Plain(line, data)
	p.invalid = p.invalid && strings.ContainsRune(p.text, utf8.RuneError) // else what was cut off is whole here
	return p, err
}

// lineBefore is how much of a line before a stretch is looked at, in bytes: a
// progress bar writes over no more.
const lineBefore = 4096

// before returns what of the line that goes on at offset was written before it.
func before(ctx context.Context, e job.Engine, id, stream string, offset int64) ([]byte, error) {
	begin := max(0, offset-lineBefore)
	if begin == offset {
		return nil, nil
	}
	chunk, err := e.Output(ctx, id, stream, begin, offset-begin)
	if err != nil || chunk.Next != offset { // it is not held any more
		return nil, err
	}
	return chunk.Data[bytes.LastIndexByte(chunk.Data, '\n')+1:], nil
}

// streams are both outputs of a task.
var streams = []string{job.Stdout, job.Stderr}
