package control_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"linus/internal/job"
)

// A file's name is bytes, which JSON does not have: they arrive all the same.
func TestClient_CallsAboutFilesArrive(t *testing.T) {
	e := newEngine(&engine{})
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c, ctx := dial(t, dir), t.Context()
	f := job.FileRef{VM: "dev/1", Path: "/a b/%2F?\xff#\n"}
	for verb, in := range map[*job.Verb]any{
		job.VerbListFiles.Verb: job.FileList{VM: f.VM, Path: f.Path, Offset: 3, Limit: 7},
		job.VerbReadFile.Verb:  job.FileRange{VM: f.VM, Path: f.Path, Offset: 1 << 40, Limit: 9},
		job.VerbWriteFile.Verb: job.FileWrite{VM: f.VM, Path: f.Path, Data: []byte("\xff\r\n"), Mode: "0600", Parents: true},
		job.VerbEditFile.Verb:  job.FileEdit{VM: f.VM, Path: f.Path, Old: "a\r\n", New: "<b>", All: true},
	} {
		_, err := verb.Do(ctx, c, in)
		check(t, verb.Name, e.in, in, err)
	}
	tree, err := c.ReadTree(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(tree)
	check(t, "ReadTree", string(data), "archive", errors.Join(err, tree.Close()))
	check(t, "ReadTree of", e.in, any(f), nil)
	err = c.WriteTree(ctx, f, strings.NewReader("\x00archive"))
	check(t, "WriteTree", e.in, any([]any{f, "\x00archive"}), err)
}

// What goes wrong in the middle of an archive is the reader's error, with its type.
func TestClient_AnArchiveEndsWithItsError(t *testing.T) {
	e := newEngine(&engine{treeErr: &job.FieldError{Field: "path", Problem: "was not copied\ncompletely", Remedy: "r"}})
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
