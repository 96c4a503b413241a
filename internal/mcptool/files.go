package mcptool

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/term"
)

const (
	whichFileVM = "give the name or ID of a VM, or the ID of a job that runs in one; list_vms shows them"

	textEncoding   = "text"
	base64Encoding = "base64"
)

// Bounds of what one call returns of a file.
const (
	fileLines = 2000     // lines; also the default
	fileBytes = 64 << 10 // bytes of text
	lineBytes = 2000     // of a line; the rest is cut
	rawBytes  = 48 << 10 // bytes before base64
	scanBytes = 32 << 20 // bytes read to find and count lines
)

// fileArg has the arguments of the tools for one file.
type fileArg struct {
	VMID string `json:"vm_id" jsonschema_description:"Or a running job's ID."`
	Path string `json:"path" jsonschema_description:"Absolute, or below the home."`
}

func (a fileArg) check(bad *faults) {
	bad.required("vm_id", a.VMID, whichFileVM)
	bad.required("path", a.Path, "give an absolute path, or one below the home of the VM's user")
}

func (fileArg) named(err error) error { return fileError(err) }

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

// excerpt is a part of a text file, in whole lines unless they are too long.
type excerpt struct {
	text  strings.Builder
	lines int   // in text
	cut   int   // lines in text that were cut
	total int   // lines seen so far, counted from the start offset
	next  int64 // the byte after the last line in text
	more  bool  // lines follow
	end   bool  // total counts all lines
}

// readLines reads at most most lines of a file, beginning with line number first (counted from 1 at
// the offset), and counts the others.
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
			return nil, file.last, &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q is not text in UTF-8", at.Path), Remedy: "read it with encoding base64, or convert it with a command in the VM"}
		default:
			x.add(line, size)
		}
	}
	x.end = file.last.End
	x.more = x.more || !x.end
	if !x.end && x.lines == 0 {
		return nil, file.last, &job.FieldError{Field: "offset", Problem: fmt.Sprintf("line %d is more than %d bytes into the file", first, scanBytes), Remedy: "give byte_offset instead, or use sed in the VM"}
	}
	return x, file.last, nil
}

// add appends a line of size bytes, of which line may only be the beginning.
func (x *excerpt) add(line []byte, size int64) {
	x.text.Write(line)
	x.lines++
	x.next += size
	if cut := size - int64(len(line)); cut > 0 {
		x.cut++
		fmt.Fprintf(&x.text, " ... [%d bytes cut]\n", cut)
	}
}

// readLine returns a line with its newline, or its first lineBytes, and the line's full size.
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

// fileReader reads at most left bytes of a file, from an offset on.
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

type listFilesInput struct {
	VMID   string `json:"vm_id" jsonschema_description:"Or a running job's ID."`
	Path   string `json:"path,omitempty" jsonschema_description:"Default: the home."`
	Offset int    `json:"offset,omitempty" jsonschema:"minimum=0" jsonschema_description:"next_offset of the last call."`
	Limit  *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=1000"`
}

func (in listFilesInput) check(bad *faults) { bad.required("vm_id", in.VMID, whichFileVM) }

func (listFilesInput) named(err error) error { return fileError(err) }

type listFilesOutput struct {
	Entries    []fileOutput `json:"entries" jsonschema_description:"By name."`
	Total      int          `json:"total"`
	NextOffset int          `json:"next_offset,omitempty" jsonschema_description:"Absent on the last page."`
}

type fileOutput struct {
	Name     string       `json:"name"`
	Type     job.FileType `json:"type" jsonschema:"enum=file,enum=directory,enum=symlink,enum=other"`
	Size     int64        `json:"size"`
	Mode     string       `json:"mode"`
	Modified time.Time    `json:"modified_at"`
	Inexact  bool         `json:"inexact_name,omitempty" jsonschema_description:"The name is not UTF-8: only a command in the VM can use it."`
}

// defaultEntries is the default of list_files's limit.
const defaultEntries = 200

func (o Options) listFiles() server.ServerTool {
	return define("list_files", "List files",
		"List a directory in a running VM.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in listFilesInput) (listFilesOutput, error) {
			page, err := o.Engine.ListFiles(ctx, job.FileList{VM: in.VMID, Path: in.Path, Offset: in.Offset, Limit: given(in.Limit, defaultEntries)})
			return listFilesOutput{Total: page.Total, NextOffset: page.Next, Entries: each(page.Entries, func(f job.FileInfo) fileOutput {
				return fileOutput{Name: f.Name, Type: f.Type, Size: f.Size, Mode: f.Mode, Modified: f.ModTime, Inexact: len(f.RawName) > 0}
			})}, err
		})
}

type readFileInput struct {
	fileArg

	Offset     *int   `json:"offset,omitempty" jsonschema:"minimum=1" jsonschema_description:"First line, from 1."`
	Limit      *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=2000" jsonschema_description:"Lines."`
	ByteOffset int64  `json:"byte_offset,omitempty" jsonschema:"minimum=0" jsonschema_description:"Lines count from there."`
	Encoding   string `json:"encoding,omitempty" jsonschema:"enum=text,enum=base64" jsonschema_description:"base64: 48 KiB from byte_offset."`
}

func (in readFileInput) check(bad *faults) {
	in.fileArg.check(bad)
	if in.Encoding == base64Encoding && (in.Offset != nil || in.Limit != nil) {
		bad.add("encoding", "base64 has no lines", "give byte_offset instead of offset and limit")
	}
}

type readFileOutput struct {
	Content    string `json:"content" jsonschema_description:"Byte for byte, but for lines over 2000 bytes, which are cut."`
	Encoding   string `json:"encoding"`
	Size       int64  `json:"size" jsonschema_description:"Bytes of the file."`
	Mode       string `json:"mode"`
	FirstLine  int    `json:"first_line,omitempty"`
	Lines      int    `json:"lines,omitempty" jsonschema_description:"Lines in content."`
	TotalLines int    `json:"total_lines,omitempty" jsonschema_description:"Absent if the file is too large to count them."`
	CutLines   int    `json:"cut_lines,omitempty"`
	NextOffset int    `json:"next_offset,omitempty" jsonschema_description:"The offset to continue with. Absent at the end."`
	NextByte   int64  `json:"next_byte_offset,omitempty" jsonschema_description:"The same as a byte_offset."`
}

func (o Options) readFile() server.ServerTool {
	return define("read_file", "Read a file",
		"Read a file in a running VM, as its user: up to 2000 lines or 64 KiB, from a line on.",
		hints{readOnly: true, idempotent: true, openWorld: true, long: true},
		func(ctx context.Context, in readFileInput) (readFileOutput, error) {
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			at := job.FileRange{VM: in.VMID, Path: in.Path, Offset: in.ByteOffset}
			if in.Encoding == base64Encoding {
				at.Limit = rawBytes
				chunk, err := o.Engine.ReadFile(ctx, at)
				out := readFileOutput{Content: base64.StdEncoding.EncodeToString(chunk.Data), Encoding: base64Encoding, Size: chunk.Size, Mode: chunk.Mode}
				if !chunk.End {
					out.NextByte = chunk.Next
				}
				return out, err
			}
			first := given(in.Offset, 1)
			x, file, err := readLines(ctx, o.Engine, at, first, given(in.Limit, fileLines))
			if err != nil {
				return readFileOutput{}, err
			}
			out := readFileOutput{Content: x.text.String(), Encoding: textEncoding, Size: cmp.Or(file.Size, file.Next), Mode: file.Mode, Lines: x.lines, CutLines: x.cut}
			if x.lines > 0 {
				out.FirstLine = first
			}
			if x.end {
				out.TotalLines = x.total
			}
			if x.more {
				out.NextOffset, out.NextByte = first+x.lines, x.next
			}
			return out, nil
		})
}

type writeFileInput struct {
	fileArg

	Content  string `json:"content" jsonschema_description:"10 MiB at most."`
	Encoding string `json:"encoding,omitempty" jsonschema:"enum=text,enum=base64"`
	Mode     string `json:"mode,omitempty" jsonschema_description:"Octal; default what it has, or 0644."`
	Parents  bool   `json:"create_directories,omitempty"`
}

type writeFileOutput struct {
	Created bool   `json:"created" jsonschema_description:"There was no such file."`
	Size    int64  `json:"size"`
	Mode    string `json:"mode"`
}

func (o Options) writeFile() server.ServerTool {
	return define("write_file", "Write a file",
		"Create or replace a file in a running VM, as its user. To change a part use edit_file.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in writeFileInput) (writeFileOutput, error) {
			data := []byte(in.Content)
			if in.Encoding == base64Encoding {
				var err error
				if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
					return writeFileOutput{}, &job.FieldError{Field: "content", Problem: err.Error(), Remedy: "give base64, with padding, or encoding text"}
				}
			}
			w, err := o.Engine.WriteFile(ctx, job.FileWrite{VM: in.VMID, Path: in.Path, Data: data, Mode: in.Mode, Parents: in.Parents})
			return writeFileOutput(w), err
		})
}

type editFileInput struct {
	fileArg

	Old string `json:"old_string"`
	New string `json:"new_string"`
	All bool   `json:"replace_all,omitempty"`
}

func (in editFileInput) check(bad *faults) {
	in.fileArg.check(bad)
	bad.required("old_string", in.Old, "give text that is in the file; write_file writes a new one")
}

type editFileOutput struct {
	Replaced int   `json:"replaced" jsonschema_description:"Occurrences."`
	Line     int   `json:"line" jsonschema_description:"Of the first one."`
	Size     int64 `json:"size" jsonschema_description:"Bytes of the file now."`
}

func (o Options) editFile() server.ServerTool {
	return define("edit_file", "Edit a file",
		"Replace text in a file in a running VM, as its user. If old_string is not there exactly once, nothing changes.",
		hints{destructive: true, openWorld: true},
		func(ctx context.Context, in editFileInput) (editFileOutput, error) {
			edited, err := o.Engine.EditFile(ctx, job.FileEdit{VM: in.VMID, Path: in.Path, Old: in.Old, New: in.New, All: in.All})
			return editFileOutput(edited), err
		})
}
