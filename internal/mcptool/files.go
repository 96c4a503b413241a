package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"linus/internal/job"
	"linus/internal/term"
)

// The arguments that the tools about files share.
const (
	whichFileVM = "give the name or ID of a VM, or the ID of a job that runs in one; list_vms shows them"

	textEncoding   = "text"
	base64Encoding = "base64"
)

// Bounds of what one call returns of a file.
const (
	fileLines = 2000     // lines; the default, too
	fileBytes = 64 << 10 // bytes of text
	lineBytes = 2000     // of a line; the rest is cut
	rawBytes  = 48 << 10 // bytes before base64
	scanBytes = 32 << 20 // bytes read to find and count lines
)

// fileFaults checks the arguments of every tool about a file.
func fileFaults(vm, path string) *faults {
	var bad faults
	bad.required("vm_id", vm, whichFileVM)
	bad.required("path", path, "give an absolute path, or one below the home of the VM's user")
	return &bad
}

// fileError returns an error of the engine with the names of a tool's arguments.
func fileError(err error) error {
	var field *job.FieldError
	if !errors.As(err, &field) {
		return vmError(err)
	}
	names := map[string]string{"vm": "vm_id", "old": "old_string", "new": "new_string", "data": "content"}
	if name, ok := names[field.Field]; ok {
		return &job.FieldError{Field: name, Problem: field.Problem, Remedy: field.Remedy}
	}
	return field
}

// excerpt is a part of a text file, in whole lines unless they are long.
type excerpt struct {
	text  strings.Builder
	lines int   // in text
	cut   int   // lines of them that were cut
	total int   // lines seen so far, from where it began
	next  int64 // the byte after the last line in text
	more  bool  // lines follow
	end   bool  // total is of all lines
}

// binaryError: a file, or a part of it, is not text.
func binaryError(path string) error {
	return &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is not text in UTF-8", path), Remedy: "read it with encoding base64, or convert it with a command in the VM"}
}

// readLines reads a file's lines, from the one of number first (from 1, counted from
// the byte from), at most most of them, and counts the others.
func readLines(ctx context.Context, e job.Engine, at job.FileRange, first, most int) (*excerpt, job.FileChunk, error) {
	file := &fileReader{ctx: ctx, engine: e, at: at, left: scanBytes}
	lines := bufio.NewReaderSize(file, 64<<10)
	x := &excerpt{next: at.Offset}
	for {
		line, size, err := readLine(lines)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, file.last, err
		}
		if size == 0 {
			break
		}
		x.total++
		switch {
		case x.total < first:
			x.next += size
		case x.more:
		case x.lines == most || x.text.Len()+len(line) > fileBytes:
			x.more = true
		case bytes.IndexByte(line, 0) >= 0 || !utf8.Valid(line):
			return nil, file.last, binaryError(at.Path)
		default:
			x.add(line, size)
		}
	}
	x.end = file.last.End
	x.more = x.more || !x.end
	if !x.end && x.lines == 0 {
		return nil, file.last, &job.FieldError{Field: "offset", Problem: fmt.Sprintf("line %d is further than %d bytes", first, scanBytes), Remedy: "give byte_offset instead, or use sed in the VM"}
	}
	return x, file.last, nil
}

// add appends a line, of which more than that may have been read.
func (x *excerpt) add(line []byte, size int64) {
	x.text.Write(line)
	x.lines++
	x.next += size
	if cut := size - int64(len(line)); cut > 0 {
		x.cut++
		fmt.Fprintf(&x.text, " ... [%d bytes cut]\n", cut)
	}
}

// readLine returns a line with its end, or the first lineBytes of it, and how long it is.
func readLine(from *bufio.Reader) (line []byte, size int64, err error) {
	for {
		part, err := from.ReadSlice('\n')
		size += int64(len(part))
		line = append(line, part[:min(len(part), lineBytes+utf8.UTFMax-len(line))]...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			if size > int64(len(line)) || len(line) > lineBytes {
				line = line[:term.WholeRunes(line[:lineBytes])]
			}
			return line, size, err
		}
	}
}

// fileReader reads a file from an offset, and at most left bytes of it.
type fileReader struct {
	ctx    context.Context //nolint:containedctx // of one call
	engine job.Engine
	at     job.FileRange
	left   int64
	last   job.FileChunk // its Data is not read yet
	begun  bool
}

func (r *fileReader) Read(data []byte) (int, error) {
	for len(r.last.Data) == 0 {
		if r.begun && r.last.End || r.left <= 0 {
			return 0, io.EOF
		}
		chunk, err := r.engine.ReadFile(r.ctx, r.at)
		if err != nil {
			return 0, err
		}
		if len(chunk.Data) == 0 {
			chunk.End = true
		}
		r.last, r.begun = chunk, true
		r.at.Offset = chunk.Next
		r.left -= int64(len(chunk.Data))
	}
	n := copy(data, r.last.Data)
	r.last.Data = r.last.Data[n:]
	return n, nil
}
