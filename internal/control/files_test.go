package control_test

import (
	std "cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"linus/internal/job"
)

func (e *engine) ListFiles(_ context.Context, q job.FileList) (job.FilePage, error) {
	e.called("ListFiles")
	return job.FilePage{Entries: []job.FileInfo{e.file(q)}, Total: 1}, e.err
}

func (e *engine) ReadFile(_ context.Context, r job.FileRange) (job.FileChunk, error) {
	e.called("ReadFile")
	return job.FileChunk{Data: []byte{0, 255}, Mode: e.file(r).Name}, e.err
}

func (e *engine) WriteFile(_ context.Context, w job.FileWrite) (job.FileWritten, error) {
	e.called("WriteFile")
	return job.FileWritten{Mode: e.file(w).Name}, e.err
}

func (e *engine) EditFile(_ context.Context, edit job.FileEdit) (job.FileEdited, error) {
	e.called("EditFile")
	return job.FileEdited{Size: int64(len(e.file(edit).Name))}, e.err
}

func (e *engine) ReadTree(_ context.Context, f job.FileRef) (io.ReadCloser, error) {
	e.called("ReadTree")
	return io.NopCloser(io.MultiReader(strings.NewReader(e.file(f).Name), iotest.ErrReader(std.Or(e.treeErr, io.EOF)))), e.err
}

func (e *engine) WriteTree(_ context.Context, f job.FileRef, archive io.Reader) error {
	e.called("WriteTree")
	data, err := io.ReadAll(archive)
	e.input = e.file(f).Name + string(data)
	return errors.Join(err, e.err)
}

// file is named after what was asked for.
func (e *engine) file(asked any) job.FileInfo {
	return job.FileInfo{Name: fmt.Sprintf("%+q", fmt.Sprint(asked))}
}

// A file's name is bytes, which JSON does not have: they arrive all the same.
func TestClient_CallsAboutFilesArrive(t *testing.T) {
	e := &engine{}
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c, ctx := dial(t, dir), t.Context()
	const path = "/a b/%2F?\xff#\n"
	q := job.FileList{VM: "dev/1", Path: path, Offset: 3, Limit: 7}
	page, err := c.ListFiles(ctx, q)
	check(t, "ListFiles", page, job.FilePage{Entries: []job.FileInfo{e.file(q)}, Total: 1}, err)
	r := job.FileRange{VM: "dev", Path: path, Offset: 1 << 40, Limit: 9}
	chunk, err := c.ReadFile(ctx, r)
	check(t, "ReadFile", chunk, job.FileChunk{Data: []byte{0, 255}, Mode: e.file(r).Name}, err)
	w := job.FileWrite{VM: "dev", Path: path, Data: []byte("\xff\r\n"), Mode: "0600", Parents: true}
	written, err := c.WriteFile(ctx, w)
	check(t, "WriteFile", written, job.FileWritten{Mode: e.file(w).Name}, err)
	edit := job.FileEdit{VM: "dev", Path: path, Old: "a\r\n", New: "<b>", All: true}
	edited, err := c.EditFile(ctx, edit)
	check(t, "EditFile", edited, job.FileEdited{Size: int64(len(e.file(edit).Name))}, err)
	f := job.FileRef{VM: "dev", Path: path}
	tree, err := c.ReadTree(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(tree)
	check(t, "ReadTree", string(data), e.file(f).Name, errors.Join(err, tree.Close()))
	err = c.WriteTree(ctx, f, strings.NewReader("\x00archive"))
	check(t, "WriteTree", e.input, e.file(f).Name+"\x00archive", err)
}

// What goes wrong in the middle of an archive is the reader's error, with its type.
func TestClient_AnArchiveEndsWithItsError(t *testing.T) {
	e := &engine{treeErr: &job.FieldError{Field: "path", Problem: "was not copied\ncompletely", Remedy: "r"}}
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	tree, err := dial(t, dir).ReadTree(t.Context(), job.FileRef{VM: "dev", Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(tree)
	var field *job.FieldError
	if !errors.As(err, &field) || field.Problem != "was not copied\ncompletely" || len(data) == 0 {
		t.Errorf("the archive ends with %v after %d bytes, want the engine's error after some", err, len(data))
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	tree, err = dial(t, dir).ReadTree(job.WithPrincipal(t.Context(), job.Operator()), job.FileRef{VM: "dev", Path: "/"})
	if err == nil {
		err = tree.Close() // without reading: what is left is not waited for
	}
	if err != nil {
		t.Error(err)
	}
}
