package mcptool

import (
	"bytes"
	"context"
	"strings"
	"unicode/utf8"

	"linus/internal/job"
	"linus/internal/term"
)

// piece is a part of a stream as text.
type piece struct {
	text    string
	offset  int64 // of its first byte
	next    int64 // the offset to ask for next
	dropped int64 // requested bytes before offset that are not stored
	whole   bool  // the stream ends at next
	invalid bool  // invalid UTF-8 was replaced
}

// read returns a part of a stream. It never ends within a character nor, with plain, within an
// escape sequence, unless the stream does. With plain it returns what a terminal shows, as the
// command line prints it, and repeats a line that was overwritten since the previous part.
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
		if n > 0 || len(data) < limit { // otherwise nothing would ever be returned
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
	p.invalid = p.invalid && strings.ContainsRune(p.text, utf8.RuneError) // unless only the removed part was invalid
	return p, err
}

// lineBefore is how many bytes of a line are read before a part: a progress bar overwrites no more.
const lineBefore = 4096

// before returns the start of the line that continues at offset.
func before(ctx context.Context, e job.Engine, id, stream string, offset int64) ([]byte, error) {
	begin := max(0, offset-lineBefore)
	if begin == offset {
		return nil, nil
	}
	chunk, err := e.Output(ctx, id, stream, begin, offset-begin)
	if err != nil || chunk.Next != offset { // no longer stored
		return nil, err
	}
	return chunk.Data[bytes.LastIndexByte(chunk.Data, '\n')+1:], nil
}

var streams = []string{job.Stdout, job.Stderr}
