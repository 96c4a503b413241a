package mcptool

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"

	"linus/internal/job"
)

// disk has the files of VM dev, which come in pieces, and records what is asked of it.
type disk struct {
	files map[string]string
	piece int64 // 0: MaxFileChunk
	calls int
	wrote job.FileWrite
	edit  job.FileEdit
	list  job.FileList
	fails error
}

func (e *engine) ReadFile(_ context.Context, r job.FileRange) (job.FileChunk, error) {
	e.disk.calls++
	content, ok := e.disk.files[r.Path]
	if !ok || r.VM != "dev" {
		return job.FileChunk{}, &job.FieldError{Field: "path", Problem: `"` + r.Path + `" does not exist`, Remedy: "list its directory"}
	}
	limit := r.Limit
	if limit == 0 {
		limit = job.MaxFileChunk
	}
	if e.disk.piece > 0 {
		limit = min(limit, e.disk.piece)
	}
	from := min(r.Offset, int64(len(content)))
	to := min(from+limit, int64(len(content)))
	return job.FileChunk{Data: []byte(content[from:to]), Next: to, End: to == int64(len(content)), Size: int64(len(content)), Mode: "0644"}, e.disk.fails
}

func (e *engine) WriteFile(_ context.Context, w job.FileWrite) (job.FileWritten, error) {
	e.disk.wrote = w
	return job.FileWritten{Created: true, Size: int64(len(w.Data)), Mode: "0600"}, e.disk.fails
}

func (e *engine) EditFile(_ context.Context, edit job.FileEdit) (job.FileEdited, error) {
	e.disk.edit = edit
	return job.FileEdited{Replaced: 2, Line: 3, Size: 4}, e.disk.fails
}

func (e *engine) ListFiles(_ context.Context, q job.FileList) (job.FilePage, error) {
	e.disk.list = q
	odd := job.FileInfo{Type: job.FileOther, ModTime: at}
	odd.SetName("a\xff")
	return job.FilePage{Entries: []job.FileInfo{{Name: "a", Type: job.FileRegular, Size: 3, Mode: "0644", ModTime: at}, odd}, Total: 9, Next: 2}, e.disk.fails
}

// ask calls a tool and reads its result into out; the error's text, if it is one.
func ask(t *testing.T, e job.Engine, tool string, args map[string]any, out any) string {
	t.Helper()
	c, err := client.NewInProcessClient(inProcess(t, e))
	begin(t, c, err)
	r := callTool(t, c, tool, args)
	if r.IsError {
		return text(r)
	}
	if err := json.Unmarshal([]byte(text(r)), out); err != nil {
		t.Fatalf("%s: %v in %s", tool, err, text(r))
	}
	return ""
}

func TestReadFile(t *testing.T) {
	long := strings.Repeat("é", 3000)
	many := strings.Repeat("0123456789\n", 3000)
	wide := strings.Repeat(strings.Repeat("w", 1000)+"\n", 100)
	files := map[string]string{
		"/three": "one\r\ntwo\n\nfour", "/empty": "", "/long": "a\n" + long + "\nb\n", "/many": many, "/wide": wide,
		"/binary": "text\nmore\x00\n", "/latin": "caf\xe9\n", "/nl": "\n\n",
	}
	for _, tt := range []struct {
		name string
		args map[string]any
		want readFileOutput
		says string // instead: the error
	}{
		{name: "whole", args: map[string]any{"path": "/three"}, want: readFileOutput{Content: files["/three"], Size: 14, FirstLine: 1, Lines: 4, TotalLines: 4}},
		{name: "a range", args: map[string]any{"path": "/three", "offset": 2, "limit": 2}, want: readFileOutput{Content: "two\n\n", Size: 14, FirstLine: 2, Lines: 2, TotalLines: 4, NextOffset: 4, NextByte: 10}},
		{name: "the last", args: map[string]any{"path": "/three", "offset": 4}, want: readFileOutput{Content: "four", Size: 14, FirstLine: 4, Lines: 1, TotalLines: 4}},
		{name: "past the end", args: map[string]any{"path": "/three", "offset": 9}, want: readFileOutput{Size: 14, TotalLines: 4}},
		{name: "from a byte", args: map[string]any{"path": "/three", "byte_offset": 10}, want: readFileOutput{Content: "four", Size: 14, FirstLine: 1, Lines: 1, TotalLines: 1}},
		{name: "empty", args: map[string]any{"path": "/empty"}, want: readFileOutput{}},
		{name: "empty lines", args: map[string]any{"path": "/nl"}, want: readFileOutput{Content: "\n\n", Size: 2, FirstLine: 1, Lines: 2, TotalLines: 2}},
		{name: "a long line", args: map[string]any{"path": "/long"}, want: readFileOutput{
			Content: "a\n" + strings.Repeat("é", 1000) + " ... [4001 bytes cut]\nb\n", Size: 6005, FirstLine: 1, Lines: 3, TotalLines: 3, CutLines: 1,
		}},
		{name: "many lines", args: map[string]any{"path": "/many"}, want: readFileOutput{Content: many[:2000*11], Size: 33000, FirstLine: 1, Lines: 2000, TotalLines: 3000, NextOffset: 2001, NextByte: 22000}},
		{name: "many bytes", args: map[string]any{"path": "/wide"}, want: readFileOutput{Content: wide[:65*1001], Size: 100_100, FirstLine: 1, Lines: 65, TotalLines: 100, NextOffset: 66, NextByte: 65 * 1001}},
		{name: "base64", args: map[string]any{"path": "/binary", "encoding": "base64", "byte_offset": 5}, want: readFileOutput{Content: base64.StdEncoding.EncodeToString([]byte("more\x00\n")), Encoding: "base64", Size: 11}},
		{name: "base64, more", args: map[string]any{"path": "/wide", "encoding": "base64"}, want: readFileOutput{Content: base64.StdEncoding.EncodeToString([]byte(wide[:rawBytes])), Encoding: "base64", Size: 100_100, NextByte: rawBytes}},
		{name: "a NUL", args: map[string]any{"path": "/binary"}, says: "not text in UTF-8; read it with encoding base64"},
		{name: "before the NUL", args: map[string]any{"path": "/binary", "limit": 1}, want: readFileOutput{Content: "text\n", Size: 11, FirstLine: 1, Lines: 1, TotalLines: 2, NextOffset: 2, NextByte: 5}},
		{name: "another encoding", args: map[string]any{"path": "/latin"}, says: "not text in UTF-8"},
		{name: "missing", args: map[string]any{"path": "/none"}, says: "does not exist"},
		{name: "no path", args: map[string]any{"path": ""}, says: "path: is required"},
		{name: "lines of base64", args: map[string]any{"path": "/three", "encoding": "base64", "limit": 3}, says: "base64 has no lines"},
		{name: "too many", args: map[string]any{"path": "/three", "limit": 2001}, says: "limit: 2001 is out of range"},
	} {
		for _, piece := range []int64{0, 7} {
			if piece > 0 && tt.name == "base64, more" {
				continue
			}
			t.Run(fmt.Sprintf("%s in pieces of %d", tt.name, piece), func(t *testing.T) {
				args := map[string]any{"vm_id": "dev"}
				for k, v := range tt.args {
					args[k] = v
				}
				var got readFileOutput
				said := ask(t, &engine{disk: disk{files: files, piece: piece}}, "read_file", args, &got)
				if tt.says != "" {
					if !strings.Contains(said, tt.says) {
						t.Errorf("said %q, want %q", said, tt.says)
					}
					return
				}
				if tt.want.Encoding == "" {
					tt.want.Encoding = "text"
				}
				tt.want.Mode = "0644"
				if diff := cmp.Diff(tt.want, got); said != "" || diff != "" {
					t.Errorf("%s (-want +got):\n%s", said, diff)
				}
			})
		}
	}
}

// An endless file is read to a bound, and lines beyond it are not looked for.
func TestReadFile_Endless(t *testing.T) {
	big := strings.Repeat(strings.Repeat("x", 127)+"\n", 40<<20/128)
	e := &engine{disk: disk{files: map[string]string{"/big": big}}}
	var got readFileOutput
	if said := ask(t, e, "read_file", map[string]any{"vm_id": "dev", "path": "/big", "limit": 1}, &got); said != "" || got.TotalLines != 0 || got.NextOffset != 2 || e.disk.calls != scanBytes/job.MaxFileChunk {
		t.Errorf("%s: %+v after %d calls", said, got, e.disk.calls)
	}
	if said := ask(t, e, "read_file", map[string]any{"vm_id": "dev", "path": "/big", "offset": 18 << 20}, &got); !strings.Contains(said, "give byte_offset instead") {
		t.Errorf("said %q", said)
	}
}

func TestWriteFile(t *testing.T) {
	for encoding, content := range map[string]string{"": "a\r\n\u2028<b>", "base64": base64.StdEncoding.EncodeToString([]byte("\x00\xff"))} {
		e := &engine{}
		var got writeFileOutput
		said := ask(t, e, "write_file", map[string]any{"vm_id": "dev", "path": "/f", "content": content, "encoding": encoding, "mode": "0600", "create_directories": true}, &got)
		want := job.FileWrite{VM: "dev", Path: "/f", Data: []byte(content), Mode: "0600", Parents: true}
		if encoding != "" {
			want.Data = []byte{0, 255}
		}
		if diff := cmp.Diff(want, e.disk.wrote); said != "" || diff != "" || !got.Created || got.Size != int64(len(want.Data)) {
			t.Errorf("%s%+v (-want +got):\n%s", said, got, diff)
		}
	}
	e := &engine{disk: disk{fails: &job.FieldError{Field: "data", Problem: "too much", Remedy: "less"}}}
	if said := ask(t, e, "write_file", map[string]any{"vm_id": "dev", "path": "/f", "content": "x"}, nil); said != "content: too much; less" {
		t.Errorf("said %q", said)
	}
	if said := ask(t, e, "write_file", map[string]any{"vm_id": "dev", "path": "/f", "content": "?", "encoding": "base64"}, nil); !strings.Contains(said, "content: illegal base64") {
		t.Errorf("said %q", said)
	}
}

func TestEditFile(t *testing.T) {
	e := &engine{}
	var got editFileOutput
	args := map[string]any{"vm_id": "dev", "path": "/f", "old_string": "a\n", "new_string": "", "replace_all": true}
	said := ask(t, e, "edit_file", args, &got)
	if want := (job.FileEdit{VM: "dev", Path: "/f", Old: "a\n", All: true}); said != "" || e.disk.edit != want || got != (editFileOutput{2, 3, 4}) {
		t.Errorf("%s: %+v, asked %+v", said, got, e.disk.edit)
	}
	e.disk.fails = &job.FieldError{Field: "old", Problem: `is 2 times in "/f"`, Remedy: "more"}
	if said := ask(t, e, "edit_file", args, nil); said != `old_string: is 2 times in "/f"; more` {
		t.Errorf("said %q", said)
	}
	args["old_string"] = ""
	if said := ask(t, e, "edit_file", args, nil); !strings.Contains(said, "old_string: is required") {
		t.Errorf("said %q", said)
	}
}

func TestListFiles(t *testing.T) {
	e := &engine{}
	var got listFilesOutput
	said := ask(t, e, "list_files", map[string]any{"vm_id": "dev", "offset": 3}, &got)
	want := listFilesOutput{Total: 9, NextOffset: 2, Entries: []fileOutput{
		{Name: "a", Type: job.FileRegular, Size: 3, Mode: "0644", Modified: at}, {Name: "a\uFFFD", Type: job.FileOther, Modified: at, Inexact: true},
	}}
	if diff := cmp.Diff(want, got); said != "" || diff != "" || e.disk.list != (job.FileList{VM: "dev", Offset: 3, Limit: 200}) {
		t.Errorf("%s, asked %+v (-want +got):\n%s", said, e.disk.list, diff)
	}
	e.disk.fails = &job.FieldError{Field: "vm", Problem: `"x" is stopped`, Remedy: "start it"}
	if said := ask(t, e, "list_files", map[string]any{"vm_id": "x"}, nil); said != `vm_id: "x" is stopped; start it` {
		t.Errorf("said %q", said)
	}
}
