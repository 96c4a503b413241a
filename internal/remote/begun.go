package remote

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// markLine returns a command line that prints a line with the mark before it runs line. Everything on stdout
// before the mark comes from the login shell, whose start-up files may print anything, and any amount of it.
func markLine(mark, line string) string { return "echo; echo " + mark + "; " + line }

// AfterMark passes on everything written to it after the first Mark.
type AfterMark struct {
	Mark  []byte
	To    io.Writer
	Found bool

	seen []byte // end of the data so far, while Mark is not found
}

func (w *AfterMark) Write(b []byte) (int, error) {
	n := len(b)
	if !w.Found {
		w.seen = append(w.seen, b...)
		_, rest, found := bytes.Cut(w.seen, w.Mark)
		if !found {
			w.seen = bytes.Clone(w.seen[max(0, len(w.seen)-len(w.Mark)):])
			return n, nil
		}
		w.Found, w.seen, b = true, nil, rest
	}
	if len(b) > 0 {
		if _, err := w.To.Write(b); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// markedReader passes on everything read after the line with the mark.
type markedReader struct {
	mark string
	from *bufio.Reader
	open bool
}

func (r *markedReader) Read(b []byte) (int, error) {
	for begins := true; !r.open; {
		line, err := r.from.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return 0, err
		}
		r.open = begins && err == nil && string(line) == r.mark+"\n"
		begins = err == nil
	}
	return r.from.Read(b)
}
