package mcptool

import (
	"cmp"
	"context"
	"encoding/base64"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type readFileInput struct {
	VMID       string `json:"vm_id" jsonschema_description:"The VM's name or ID, or the ID of a job that runs in it."`
	Path       string `json:"path" jsonschema_description:"Absolute, or relative to the home of the VM's user."`
	Offset     *int   `json:"offset,omitempty" jsonschema:"minimum=1" jsonschema_description:"First line. Default 1."`
	Limit      *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=2000" jsonschema_description:"Lines. Default 2000."`
	ByteOffset int64  `json:"byte_offset,omitempty" jsonschema:"minimum=0" jsonschema_description:"Start at this byte; lines count from there."`
	Encoding   string `json:"encoding,omitempty" jsonschema:"enum=text,enum=base64" jsonschema_description:"base64: up to 48 KiB of any bytes from byte_offset. Default text."`
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
	NextOffset int    `json:"next_offset,omitempty" jsonschema_description:"The offset to go on with. Absent at the end."`
	NextByte   int64  `json:"next_byte_offset,omitempty" jsonschema_description:"The same as a byte_offset."`
}

func readFile(e job.Engine) server.ServerTool {
	return define("read_file", "Read a file",
		"Read a file in a running VM, as the VM's user: up to 2000 lines or 64 KiB of text, from a line on.",
		hints{readOnly: true, idempotent: true, openWorld: true, long: true},
		func(ctx context.Context, in readFileInput) (readFileOutput, error) {
			bad := fileFaults(in.VMID, in.Path)
			bad.word("encoding", in.Encoding, textEncoding, base64Encoding)
			first := bad.number("offset", in.Offset, 1, 1, 1<<31)
			most := bad.number("limit", in.Limit, fileLines, 1, fileLines)
			if in.Encoding == base64Encoding && (in.Offset != nil || in.Limit != nil) {
				bad.add("encoding", "base64 knows no lines", "give byte_offset instead of offset and limit")
			}
			if err := bad.err(); err != nil {
				return readFileOutput{}, err
			}
			ctx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			at := job.FileRange{VM: in.VMID, Path: in.Path, Offset: in.ByteOffset}
			if in.Encoding == base64Encoding {
				at.Limit = rawBytes
				chunk, err := e.ReadFile(ctx, at)
				if err != nil {
					return readFileOutput{}, fileError(err)
				}
				out := readFileOutput{Content: base64.StdEncoding.EncodeToString(chunk.Data), Encoding: base64Encoding, Size: chunk.Size, Mode: chunk.Mode}
				if !chunk.End {
					out.NextByte = chunk.Next
				}
				return out, nil
			}
			x, file, err := readLines(ctx, e, at, first, most)
			if err != nil {
				return readFileOutput{}, fileError(err)
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
